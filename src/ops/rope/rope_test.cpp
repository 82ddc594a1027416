#include "ops/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

TEST(YarnRope, KeepsFastDimensionsWhileSlowOnesAreStretched) {
  const RopeFrequencies yarn = yarn_rope(64, {.truncate = false});
  const RopeFrequencies plain = default_rope(64, 150000.0);
  EXPECT_EQ(yarn.inv_freq[0], plain.inv_freq[0]);
  EXPECT_EQ(yarn.inv_freq[8], plain.inv_freq[8]) << "the ramp begins at dimension 8.09";
  EXPECT_LT(yarn.inv_freq[9], plain.inv_freq[9]);
  EXPECT_FLOAT_EQ(yarn.inv_freq[18], plain.inv_freq[18] / 32) << "it ends at 17.4";
}

// Values of transformers' _compute_yarn_parameters for theta 150000, factor 32, original 4096, head 64.
TEST(YarnRope, TruncationMovesTheRampToWholeDimensions) {
  const RopeFrequencies cut = yarn_rope(64, {.truncate = true});
  const RopeFrequencies exact = yarn_rope(64, {.truncate = false});
  const double plain = std::pow(150000.0, -2.0 * 10 / 64);
  EXPECT_NEAR(cut.inv_freq[10], plain * (1 - 0.2) + plain / 32 * 0.2, 1e-7) << "ramp 8..18";
  EXPECT_NE(cut.inv_freq[10], exact.inv_freq[10]);
}

TEST(YarnRope, AFactorOfOneChangesNothing) {
  const RopeFrequencies yarn = yarn_rope(64, {.factor = 1.0});
  const RopeFrequencies plain = default_rope(64, 150000.0);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(yarn.inv_freq[i], plain.inv_freq[i]);
}

TEST(Rope, TurnsHalvesNotNeighbours) {
  ThreadPool threads(2);
  OpContext context{threads};
  const RopeFrequencies plain = default_rope(64, 10000.0);
  const std::vector<int> positions = {0, 1, 700};
  std::vector<float> cos(3 * 32), sin(3 * 32);
  rope_angles(context, plain, positions, cos.data(), sin.data());
  std::mt19937 random(1);
  const std::vector<float> before = random_floats(random, 3 * 2 * 64);
  std::vector<float> x = before;
  rope(context, {.x = x.data(), .cos = cos.data(), .sin = sin.data(), .rows = 3, .heads = 2, .head_dim = 64});
  for (std::size_t i = 0; i < 2 * 64; ++i) EXPECT_EQ(x[i], before[i]) << "position 0 is not turned";
  for (std::size_t row = 1; row < 3; ++row) {
    for (std::size_t head = 0; head < 2; ++head) {
      const std::size_t at = (row * 2 + head) * 64;
      for (std::size_t i = 0; i < 32; ++i) {
        const double angle = positions[row] * std::pow(10000.0, -2.0 * static_cast<double>(i) / 64);
        const double a = before[at + i], b = before[at + i + 32];
        EXPECT_NEAR(x[at + i], a * std::cos(angle) - b * std::sin(angle), 2e-4);
        EXPECT_NEAR(x[at + i + 32], b * std::cos(angle) + a * std::sin(angle), 2e-4);
      }
    }
  }
}

TEST(Rope, TurnsTheFirstDimensionsOfAHeadAsAHeadOfThatWidth) {
  ThreadPool threads(1);
  OpContext context{threads};
  constexpr int turned = 64, head_dim = 256, heads = 2;
  const RopeFrequencies plain = default_rope(turned, 1e7);
  const std::vector<int> positions = {262143};
  std::vector<float> cos(turned / 2), sin(turned / 2);
  rope_angles(context, plain, positions, cos.data(), sin.data());
  std::mt19937 random(2);
  const std::vector<float> before = random_floats(random, heads * head_dim);
  std::vector<float> x = before;
  rope(context, {.x = x.data(),
                 .cos = cos.data(),
                 .sin = sin.data(),
                 .rows = 1,
                 .heads = heads,
                 .head_dim = head_dim,
                 .turned = turned});
  for (std::size_t head = 0; head < heads; ++head) {
    const auto first = before.begin() + static_cast<std::ptrdiff_t>(head * head_dim);
    std::vector<float> narrow(first, first + turned);
    rope(context, {.x = narrow.data(),
                   .cos = cos.data(),
                   .sin = sin.data(),
                   .rows = 1,
                   .heads = 1,
                   .head_dim = turned});
    for (std::size_t i = 0; i < head_dim; ++i)
      EXPECT_EQ(x[head * head_dim + i], i < turned ? narrow[i] : before[head * head_dim + i]);
  }
}

}  // namespace
}  // namespace nibble
