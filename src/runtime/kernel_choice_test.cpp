#include "runtime/kernel_choice.h"

#include <gtest/gtest.h>

#include "ops/attention/attention_kernels.h"

namespace nibble {
namespace {

TEST(KernelChoice, AutoTakesTheFirstThatThisCpuRuns) {
  const auto dots = choose_dot_kernels("auto");
  ASSERT_TRUE(dots.ok());
  EXPECT_EQ(dots->kernels, &best_dot_kernels());
  EXPECT_EQ(dots->name, "cpu_" + std::string(best_dot_kernels().name));
  EXPECT_NE(dots->why.find("order of preference"), std::string::npos);
  EXPECT_EQ(choose_attention_kernels("auto")->kernels, &best_attention_kernels());
}

TEST(KernelChoice, ANameIsHonouredOrRefusedWithThoseThatRunHere) {
  for (const DotKernels& each : dot_kernels()) {
    const auto chosen = choose_dot_kernels("cpu_" + std::string(each.name));
    EXPECT_EQ(chosen.ok(), each.supported()) << each.name;
    if (chosen.ok()) {
      EXPECT_EQ(chosen->kernels, &each);
      EXPECT_EQ(chosen->why, "asked for");
    } else {
      EXPECT_EQ(chosen.status().exit_code(), 2);
      EXPECT_NE(chosen.status().message().find("lacks what cpu_" + std::string(each.name)),
                std::string::npos);
      EXPECT_NE(chosen.status().message().find("cpu_scalar"), std::string::npos);
    }
  }
  for (const AttentionKernels& each : attention_kernels()) {
    const auto chosen = choose_attention_kernels("cpu_" + std::string(each.name));
    EXPECT_EQ(chosen.ok(), each.supported()) << each.name;
  }
}

TEST(KernelChoice, AnUnknownNameIsRefused) {
  for (const char* name : {"avx2", "cpu_", "marlin", ""}) {
    const auto chosen = choose_attention_kernels(name);
    ASSERT_FALSE(chosen.ok()) << name;
    EXPECT_NE(chosen.status().message().find("is not built in; give auto or one of "), std::string::npos);
  }
}

}  // namespace
}  // namespace nibble
