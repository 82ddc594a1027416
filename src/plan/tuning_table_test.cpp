#include "plan/tuning_table.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "plan/plan_test_util.h"

namespace nibble {
namespace {

TuningTable example() {
  TuningTable table{.machine = "A CPU", .made = "2026-11-28 by nibble 0.2.0", .entries = {}};
  table.put(
      {.model = "b", .field = "weight_lines", .value = "led", .measured = {{"led", 12.5}, {"each", 10}}});
  table.put({.model = "a", .field = "many_tokens_from", .value = "3", .measured = {{"3", 1e6}}});
  table.put({.model = "a", .field = "weight_lines", .value = "each", .measured = {}});
  return table;
}

TEST(TuningTable, ReadsWhatItWroteAndKeepsOneEntryAModelAndField) {
  TuningTable table = example();
  const Result<TuningTable> again = TuningTable::parse(table.json());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, table);
  EXPECT_EQ(again->json(), table.json());
  EXPECT_EQ(again->digest(), table.digest());
  const std::string before = table.digest();
  table.put({.model = "b", .field = "weight_lines", .value = "each_near", .measured = {}});
  EXPECT_EQ(table.entries.size(), 3u);
  EXPECT_EQ(table.find("b", "weight_lines")->value, "each_near");
  EXPECT_EQ(table.find("b", "many_tokens_from"), nullptr);
  EXPECT_NE(table.digest(), before);
}

TEST(TuningTable, ADigestIsOfWhatAPlanTakesFromIt) {
  TuningTable table = example();
  const std::string before = table.digest();
  table.made = "another day";
  table.entries[0].measured.clear();
  EXPECT_EQ(table.digest(), before);
  table.machine = "B";
  EXPECT_NE(table.digest(), before);
}

TEST(TuningTable, WhatIsNoTableIsRefusedWithWhatIsWrong) {
  const auto refusal = [](std::string_view change_from, std::string_view change_to) {
    std::string text = example().json();
    const std::size_t at = text.find(change_from);
    EXPECT_NE(at, std::string::npos);
    text.replace(at, change_from.size(), change_to);
    return TuningTable::parse(text).status().message();
  };
  EXPECT_NE(refusal("tuning table 1", "tuning table 2").find("make it anew"), std::string::npos);
  EXPECT_NE(
      refusal("\"led\",\"tokens", "\"lead\",\"tokens").find("it can be led, each, each_near, each_late"),
      std::string::npos);
  EXPECT_NE(refusal("many_tokens_from", "many_rows").find("which no table can choose"), std::string::npos);
  EXPECT_NE(refusal("\"machine\"", "\"computer\"").find("no text \"machine\""), std::string::npos);
  EXPECT_NE(refusal("12.5", "\"fast\"").find("is no number"), std::string::npos);
  EXPECT_NE(refusal("\"entries\": [", "\"entries\": 3, \"x\": [").find("no list"), std::string::npos);
  EXPECT_NE(refusal("\"model\":\"b\"", "\"model\":\"a\"").find("two entries of weight_lines"),
            std::string::npos);
  EXPECT_FALSE(TuningTable::parse("[]").ok());
  EXPECT_FALSE(TuningTable::parse("{").ok());
  const std::string whole = example().json();
  for (std::size_t cut = 0; cut + 2 < whole.size(); cut += 7)
    EXPECT_FALSE(TuningTable::parse(whole.substr(0, cut)).ok()) << cut;
}

TEST(TuningTable, IsOfOneKindOfMachine) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "a_tuning_table.json";
  std::ofstream(file) << example().json();
  Machine machine;
  machine.cpu.model = "A CPU";
  EXPECT_TRUE(take_tuning(file.string(), machine).ok());
  EXPECT_EQ(machine.tuning, example());
  machine.cpu.model = "Another CPU";
  EXPECT_NE(
      take_tuning(file.string(), machine).message().find("was made on \"A CPU\", and this is \"Another"),
      std::string::npos);
  machine.gpu = {.model = "A CPU", .count = 1};  // a name is a name
  EXPECT_TRUE(take_tuning(file.string(), machine).ok());
  std::filesystem::remove(file);
  EXPECT_FALSE(take_tuning(file.string(), machine).ok());
}

// A table's values are taken where the rules would have chosen another one, and say so; of other shapes they
// are not.
TEST(TuningTable, DecidesWhatRulesWouldGuessForItsModelAlone) {
  Machine machine = *declared_machine("cpu");
  machine.cpu.vendor = "GenuineIntel";
  machine.cpu.features = {"avx2",    "avx512_bf16", "avx512_vnni", "avx512bw", "avx512dq",
                          "avx512f", "avx512vl",    "f16c",        "fma"};
  const EngineOptions options{.dtype = FloatType::int8};
  const Result<Plan> without = resolve(options, machine, gpt_oss());
  ASSERT_TRUE(without.ok()) << without.status().message();
  EXPECT_EQ(without->choice("tuning_table").value, "none");
  for (const std::string_view name : weight_lines_names) {
    TuningTable table{.machine = machine.cpu.model, .made = "now", .entries = {}};
    table.put({.model = without->tuning_model,
               .field = "weight_lines",
               .value = std::string(name),
               .measured = {{"led", 3}, {"each", 2.5}}});
    machine.tuning = table;
    const Result<Plan> plan = resolve(options, machine, gpt_oss());
    ASSERT_TRUE(plan.ok());
    const Choice& lines = plan->choice("weight_lines");
    EXPECT_EQ(lines.value, name);
    EXPECT_EQ(lines.from, "rule:lines-measured");
    EXPECT_EQ(lines.why, "measured by nibble tune, tokens a second: led 3, each 2.5");
    EXPECT_EQ(plan->weight_lines, find_weight_lines(name));
    EXPECT_EQ(plan->choice("tuning_table").value, table.digest());
    EXPECT_NE(plan->choice("tuning_table").why.find("it has weight_lines"), std::string::npos);
    machine.tuning->entries[0].model = "others";
    const Result<Plan> others = resolve(options, machine, gpt_oss());
    EXPECT_EQ(others->choice("weight_lines").value, without->choice("weight_lines").value);
    EXPECT_NE(others->choice("tuning_table").why.find("it has nothing, so rules decide"), std::string::npos);
  }
}

TEST(TuningTable, SaysFromHowManyTokensAnExpertAGpuTakesTheOtherKernel) {
  Machine machine = *declared_machine("h200x1");
  const Result<Plan> without = resolve({}, machine, gpt_oss());
  ASSERT_TRUE(without.ok()) << without.status().message();
  EXPECT_EQ(without->many_tokens_from, 3);
  TuningTable table{.machine = machine.gpu.model, .made = "now", .entries = {}};
  table.put(
      {.model = without->tuning_model, .field = "many_tokens_from", .value = "6", .measured = {{"6", 1}}});
  machine.tuning = table;
  const Result<Plan> plan = resolve({}, machine, gpt_oss());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->many_tokens_from, 6);
  EXPECT_EQ(plan->choice("many_tokens_from").from, "rule:experts-measured");
}

}  // namespace
}  // namespace nibble
