#include "plan/kernel_check.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble {
namespace {

TEST(KernelCheck, EveryKernelOfThisProgramIsEqualToItsScalarOne) {
  ThreadPool threads(2);
  const std::vector<KernelCheck> checks = check_kernels(threads);
  EXPECT_GE(checks.size(), 4 * (dot_kernels().size() - 1) + 3 * (attention_kernels().size() - 1) + 1);
  for (const KernelCheck& check : checks)
    EXPECT_EQ(check.equal, check.supported) << check.family << " by " << check.kernel << ": " << check.what;
}

std::vector<std::string> caught(const std::vector<KernelCheck>& checks) {
  std::vector<std::string> names;
  for (const KernelCheck& check : checks) {
    if (check.supported && !check.equal) names.push_back(check.family + " by " + check.kernel);
  }
  return names;
}

// Kernels that are right but for one lane's last row of a full tile.
TEST(KernelCheck, ABrokenProductIsCaughtAndNamed) {
  static constexpr auto broken = [](const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                                    const TotalsSink& store) {
    const auto spoil = [&](int row, int input, const float* totals) {
      TileTotals changed;
      std::copy_n(totals, tile_rows, changed);
      if (input == 17) changed[tile_rows - 1] *= 1.0000002f;
      store(row, input, changed);
    };
    dot_kernels().back().multiply(matrix, begin, end, inputs, TotalsSink(spoil));
  };
  const DotKernels list[] = {{.name = "broken",
                              .supported = [] { return true; },
                              .prepare = dot_kernels().back().prepare,
                              .multiply = broken,
                              .prepare_int8 = dot_kernels().back().prepare_int8,
                              .multiply_int8 = dot_kernels().back().multiply_int8},
                             dot_kernels().back()};
  ThreadPool threads(1);
  const auto checks = check_kernels(threads, {}, {.dots = list});
  EXPECT_EQ(caught(checks), (std::vector<std::string>{"products with bfloat16 weights by cpu_broken",
                                                      "products with mxfp4 weights by cpu_broken",
                                                      "products with q8 weights by cpu_broken"}))
      << "the expert layer has fewer inputs";
  const auto first = std::find_if(checks.begin(), checks.end(),
                                  [](const auto& each) { return !each.equal && each.supported; });
  EXPECT_NE(first->what.find("by the scalar kernel"), std::string::npos) << first->what;
}

TEST(KernelCheck, BrokenAttentionIsCaughtAndNamed) {
  static constexpr auto broken = [](const QueryTile& tile, const SplitView& split, float* partials) {
    scalar_attend_split(tile, split, partials);
    if (split.dtype == DType::bf16) partials[3] = -partials[3];
  };
  const AttentionKernels list[] = {{"broken", [] { return true; }, broken}, attention_kernels().back()};
  ThreadPool threads(1);
  EXPECT_EQ(caught(check_kernels(threads, {}, {.attention = list})),
            (std::vector<std::string>{"attention over bf16 keys and values by cpu_broken"}));
}

}  // namespace
}  // namespace nibble
