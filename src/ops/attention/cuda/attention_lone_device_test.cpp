// On a GPU, or on its emulation: attention of one sequence has the same bits whether its context is known to
// be short or not.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "ops/attention/cuda/attention_device_test_util.h"

namespace nibble {
namespace {

using namespace attention_test;

// Of the last `rows` rows of a lone context: as one that is known to be short, if it is, and as one of any
// length. Each has a kernel of its own. What rows do not see are no numbers.
void expect_same_alone(std::mt19937& random, const AttentionShape& shape, int length, int rows) {
  const Sequence sequence(random, shape, length);
  const std::vector<SequenceCuda> cut = {{0, rows, length - rows, 0}};
  const AttentionRows which = rows == 1 ? AttentionRows::one : AttentionRows::both;
  AttentionLaunch few(sequence, cut);
  few.forget_lengths();
  few.queue(which, false, nullptr);
  const std::vector<Bf16> expected = few.result();
  const int first = shape.window > 0 ? length - rows - shape.window + 1 : 0;
  const Sequence hostile = sequence.seen_from(first, length);
  for (const bool settled : {false, true}) {
    AttentionLaunch alone(hostile, cut);
    if (settled) alone.add_later_clusters();
    EXPECT_EQ(
        attention_shared_bytes(alone.args(which, settled)) < attention_shared_bytes(few.args(which, settled)),
        rows == 1 && length <= short_positions(shape.head_dim))
        << "the other kernel";
    alone.queue(which, settled, nullptr);
    EXPECT_TRUE(same(expected, alone.result())) << name_of(shape, length) << ", " << rows << " rows";
  }
}

class AttentionOfALoneContext : public OnTheGpu, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, AttentionOfALoneContext, testing::Values(64, 128));

TEST_P(AttentionOfALoneContext, HasTheSameBitsWhetherItIsKnownToBeShort) {
  std::mt19937 random(11);
  const int dims = GetParam(), step = attention_step_of(dims), most = short_positions(dims);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const int group : {1, 2, 4, 8, 16}) {
      if (small_cases && dtype == DType::f8_e4m3 && group % 8 != 0) continue;
      const AttentionShape shape{2 * group, 2, 64, 0, group % 8 == 0, dtype, dims};
      for (const int length : {1, 15, 16, 17, step, step + 1, 5 * step - 20})
        expect_same_alone(random, shape, length, 1);
    }
    // Around the border behind which four steps are a split, in such splits, and up to the longest.
    const int lone = attention_lone_steps * step, four = attention_split_steps * step;
    for (const int length : {lone - step, lone, lone + 1, lone + step + 1, lone + four, lone + four + 3,
                             lone + 9 * four + 2 * step, most, most + 1}) {
      if (small_cases && dtype == DType::f8_e4m3 && length != lone + four + 3) continue;
      expect_same_alone(random, {16, 1, 128, 0, false, dtype, dims}, length, 1);
    }
  }
}

// Rows whose queries fill a tile or a part of it, and windows, which begin anywhere in a step.
TEST_P(AttentionOfALoneContext, HasTheSameBitsInSeveralRowsAndWindows) {
  std::mt19937 random(12);
  const int dims = GetParam(), step = attention_step_of(dims), most = short_positions(dims);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const auto& [group, rows] :
         std::vector<std::pair<int, int>>{{1, 16}, {1, 3}, {2, 5}, {4, 3}, {8, 2}, {16, 1}}) {
      for (const int window : {0, 150, 300})
        expect_same_alone(random, {group, 1, 64, window, true, dtype, dims}, 333, rows);
    }
    expect_same_alone(random, {8, 1, 64, 0, true, dtype, dims}, most, 2);
    expect_same_alone(random, {4, 2, 64, 700, false, dtype, dims}, most, 3);
    // Windows that end in later splits, and begin in lone steps or in any step of a later split.
    const int lone = attention_lone_steps * step;
    expect_same_alone(random, {2, 1, 64, 700, true, dtype, dims}, lone + 90, 1);
    for (const int steps : {1, 2, 3, 4})
      expect_same_alone(random, {4, 1, 64, 9 * step, true, dtype, dims}, lone + (9 + steps) * step + 5, 1);
  }
  if (dims == 64) return;  // whose short windows have a kernel in any context
  expect_same_alone(random, {8, 1, 64, 40, true, DType::bf16, dims}, 200, 1);
}

TEST_P(AttentionOfALoneContext, MayHaveNoRowsOrMoreThanATileOfThem) {
  std::mt19937 random(13);
  const Sequence sequence(random, {8, 1, 64, 0, true, DType::bf16, GetParam()}, 150);
  EXPECT_TRUE(sequence.on_gpu({{0, 0, 0, 0}}, AttentionRows::one).empty());
  EXPECT_TRUE(same(sequence.on_gpu({{0, 5, 145, 0}}, AttentionRows::both),
                   sequence.on_gpu({{0, 5, 145, 0}}, AttentionRows::all_as_many)));
}

}  // namespace
}  // namespace nibble
