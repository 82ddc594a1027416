// On a GPU, or on its emulation: ranks are those of a count on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ops/cuda/device_test_util.h"
#include "ops/sample/cuda/target_ranks_cuda.h"

namespace nibble {
namespace {

using TargetRanksOnTheGpu = OnTheGpu;

TEST_F(TargetRanksOnTheGpu, AreOneAndTheNumberOfLikelierTokens) {
  constexpr int rows = 9;
  std::mt19937 random(4);
  for (const int vocabulary : {1, 31, 513, 5'000}) {
    const int stride = vocabulary + 3;
    std::vector<float> logits(static_cast<std::size_t>(rows * stride),
                              1e9f);  // what is past a row is no token
    std::vector<std::int32_t> targets(rows), expected(rows, -7);
    for (int row = 0; row < rows; ++row) {
      const auto begin = logits.begin() + row * stride;
      // Few values, so that many are alike.
      std::generate(begin, begin + vocabulary, [&] { return static_cast<float>(random() % 50) - 25.0f; });
      const int target = row % 4 == 3 ? -1 : static_cast<int>(random() % static_cast<unsigned>(vocabulary));
      targets[static_cast<std::size_t>(row)] = target;
      if (target < 0) continue;
      expected[static_cast<std::size_t>(row)] =
          1 + static_cast<int>(std::count_if(begin, begin + vocabulary,
                                             [&](float logit) { return logit > begin[target]; }));
    }
    DeviceBuffer device_logits = on_device(logits), device_targets = on_device(targets);
    DeviceBuffer ranks = on_device(std::vector<std::int32_t>(rows, -7));
    target_ranks_cuda({.logits = device_logits.as<float>(),
                       .rows = rows,
                       .vocabulary = vocabulary,
                       .stride = stride,
                       .targets = device_targets.as<std::int32_t>(),
                       .ranks = ranks.as<std::int32_t>()},
                      nullptr);
    std::vector<std::int32_t> found(rows);
    ranks.copy_to(std::span(found));
    EXPECT_EQ(found, expected) << vocabulary;
  }
}

}  // namespace
}  // namespace nibble
