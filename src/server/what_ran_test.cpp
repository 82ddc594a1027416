#include "server/what_ran.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

RanTable table_of(std::initializer_list<RanRow> rows) {
  RanTable table;
  for (const RanRow& row : rows) table.add(row);
  return table;
}

Plan planned() {
  Plan plan;
  plan.choices = {{.field = "moe_runner", .value = "cpu_avx2"}, {.field = "attention", .value = "cpu_avx2"}};
  return plan;
}

TEST(WhatRan, RowsOfTheSameNamesAreOneAndWhatNeverRanIsNone) {
  const RanTable table = table_of({{"moe_runner", "cpu_avx2", "", 3},
                                   {"all_reduce", "gather", "gather_rows", 0},
                                   {"moe_runner", "cpu_avx2", "", 4},
                                   {"moe_runner", "cpu_avx2", "many", 1}});
  MetricsText text({{"model_name", "m"}});
  write_ran(text, table);
  const std::string written = text.take();
  EXPECT_NE(written.find("# TYPE nibble:ran_total counter\n"), std::string::npos);
  EXPECT_NE(written.find(
                "nibble:ran_total{model_name=\"m\",field=\"moe_runner\",value=\"cpu_avx2\",form=\"\"} 7\n"),
            std::string::npos)
      << written;
  EXPECT_NE(written.find(",form=\"many\"} 1\n"), std::string::npos) << written;
  EXPECT_EQ(written.find("all_reduce"), std::string::npos) << written;
}

TEST(WhatRan, DegradedIsWhatAGateRefusesAndWhatDidNotRunAsPlanned) {
  Plan plan = planned();
  EXPECT_TRUE(
      degraded_by(plan, table_of({{"moe_runner", "cpu_avx2", "", 1}, {"steps", "launches", "", 1}})).empty());
  EXPECT_EQ(degraded_by(plan, table_of({{"attention", "cpu_scalar", "latent", 2}})),
            std::vector<std::string>{"attention cpu_avx2: cpu_scalar ran instead"});
  plan.gates = {{.name = "nccl", .found = "2.28.3", .status = GateStatus::known_bad}};
  plan.gates[0].overridden = true;
  EXPECT_EQ(degraded_by(plan, {}), std::vector<std::string>{"nccl"});
}

}  // namespace
}  // namespace nibble
