// On a GPU, or on its emulation: attention against double precision, and its bits against themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/attention/cuda/attention_device_test_util.h"
#include "ops/cuda/absent.h"
#include "ops/cuda/device_test_util.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

using namespace attention_test;
using AttentionOnTheGpu = OnTheGpu;

struct Case {
  AttentionShape shape;
  int length;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    const std::vector<Case> small = {
        {{8, 1, 64, 0, true, dtype}, 150},        {{4, 2, 128, 40, false, dtype}, 70},
        {{8, 1, 128, 128, true, dtype}, 300},     {{16, 1, 64, 128, true, dtype}, 200},
        {{8, 1, 64, 0, false, dtype, 128}, 200},  {{16, 1, 128, 0, true, dtype, 128}, 150},
        {{4, 2, 64, 70, false, dtype, 128}, 230}, {{16, 2, 64, 0, false, dtype, 256}, 150},
        {{4, 2, 128, 70, true, dtype, 256}, 200}};
    const std::vector<Case> large = {
        {{64, 8, 64, 0, true, dtype}, 700},        {{64, 8, 256, 128, true, dtype}, 700},
        {{4, 2, 128, 40, false, dtype}, 333},      {{16, 1, 64, 0, false, dtype}, 257},
        {{3, 3, 64, 0, true, dtype}, 130},         {{64, 8, 128, 0, true, dtype}, 2100},
        {{32, 4, 64, 0, false, dtype, 128}, 1500}, {{64, 4, 128, 0, false, dtype, 128}, 700},
        {{6, 3, 64, 100, true, dtype, 128}, 450},  {{16, 2, 64, 0, false, dtype, 256}, 1500},
        {{32, 2, 128, 100, true, dtype, 256}, 700}};
    const std::vector<Case>& some = small_cases ? small : large;
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST_F(AttentionOnTheGpu, AgreesWithDoublePrecision) {
  std::mt19937 random(1);
  for (const auto& [shape, length] : cases()) {
    const Sequence sequence(random, shape, length);
    for (const AttentionRows rows : {AttentionRows::one, AttentionRows::all_as_many}) {
      std::vector<SequenceCuda> cuts;
      for (int position : {0, 1, 62, 63, 64, 127, length / 2, length - 1})
        cuts.push_back({static_cast<std::int32_t>(cuts.size()), 1, std::min(position, length - 1), 0});
      const std::vector<Bf16> found = sequence.on_gpu(cuts, rows);
      double difference = 0, norm = 0;
      for (const SequenceCuda& cut : cuts) {
        for (int head = 0; head < shape.heads; ++head) {
          const std::vector<double> expected = sequence.exact(cut.first_position, head);
          for (int d = 0; d < shape.head_dim; ++d) {
            const auto at =
                static_cast<std::size_t>((cut.row_begin * shape.heads + head) * shape.head_dim + d);
            const double error = found[at].to_float() - expected[static_cast<std::size_t>(d)];
            difference += error * error;
            norm += expected[static_cast<std::size_t>(d)] * expected[static_cast<std::size_t>(d)];
          }
        }
      }
      EXPECT_LT(std::sqrt(difference / norm), 4e-3) << name_of(shape, length);
    }
  }
}

TEST_F(AttentionOnTheGpu, ARowsBitsDependNeitherOnTheKernelNorOnThePromptsCutting) {
  std::mt19937 random(2);
  for (const auto& [shape, length] : cases()) {
    const Sequence sequence(random, shape, length);
    const int tile_rows = attention_tile / (shape.heads / shape.kv_heads);
    const std::vector<Bf16> whole = sequence.whole(AttentionRows::all_as_many);
    EXPECT_TRUE(same(whole, sequence.in_runs(1, AttentionRows::one))) << name_of(shape, length);
    EXPECT_TRUE(same(whole, sequence.in_runs(tile_rows, AttentionRows::both))) << name_of(shape, length);
    EXPECT_TRUE(same(whole, sequence.in_runs(33, AttentionRows::both))) << name_of(shape, length);
  }
}

// Short windows begin and end anywhere in steps that are splits of their own, or (from 2,048 on) in one
// split, and with many rows of a head lie in three steps. A short context has its own kernel where it is the
// only one: in a fifth of the launches.
TEST_F(AttentionOnTheGpu, GivesFewSequencesThatSeeLittleTheSameBits) {
  std::mt19937 random(8);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const Case& c : std::vector<Case>{{{8, 1, 128, 128, true, dtype}, 2780},
                                           {{16, 1, 64, 20, false, dtype}, 300},
                                           {{4, 2, 64, 128, true, dtype}, 290},
                                           {{2, 2, 256, 120, false, dtype}, 2360},
                                           {{8, 1, 64, 0, true, dtype}, 2048},
                                           {{16, 1, 64, 300, true, dtype}, 900},
                                           {{4, 2, 256, 0, false, dtype}, 190},
                                           {{8, 1, 64, 0, false, dtype, 128}, 1000},
                                           {{2, 1, 64, 40, true, dtype, 128}, 400},
                                           {{8, 1, 64, 0, false, dtype, 256}, 400}}) {
      const Sequence sequence(random, c.shape, c.length);
      const int width = c.shape.heads * c.shape.head_dim;
      const int begin = c.length > 2048 ? c.length - 800 : small_cases ? std::max(0, c.length - 300) : 0;
      const int tile_rows = attention_tile / (c.shape.heads / c.shape.kv_heads);
      const std::vector<Bf16> expected =
          sequence.on_gpu({{0, c.length - begin, begin, 0}}, AttentionRows::all_as_many);
      for (int launch = 0; launch < (small_cases ? 10 : 200); ++launch) {
        std::vector<SequenceCuda> cuts;
        std::vector<Bf16> wanted;
        int rows = 0;
        for (unsigned i = random() % 5 + 1; i > 0; --i) {
          const int count = static_cast<int>(random() % static_cast<unsigned>(tile_rows + 1));
          const int first =
              begin + static_cast<int>(random() % static_cast<unsigned>(c.length - begin - count));
          cuts.push_back({rows, count, first, 0});
          rows += count;
          const auto from = expected.begin() + (first - begin) * width;
          wanted.insert(wanted.end(), from, from + count * width);
        }
        EXPECT_TRUE(same(wanted, sequence.on_gpu(cuts, AttentionRows::both, launch % 2 == 0)))
            << name_of(c.shape, c.length) << ", launch " << launch;
      }
    }
  }
}

// Of heads of 256 a tile's steps go to two halves of a block in turns, on from one tile to the next. So there
// are tiles of one step, of odd and even numbers of them, and such as begin within a split, in several
// orders, and more of them than an emulated GPU has multiprocessors.
struct RowRun {
  int first, count;
};
std::vector<RowRun> runs_of_any_steps() {
  return {{0, 9}, {59, 3}, {61, 12}, {135, 17}, {250, 4}, {1020, 12}, {1090, 8}};
}

TEST_F(AttentionOnTheGpu, GivesWideHeadsTheSameBitsInTilesOfAnySteps) {
  std::mt19937 random(9);
  for (const auto& [dtype, window] : std::vector<std::pair<DType, int>>{{DType::bf16, 0},
                                                                        {DType::bf16, 20},
                                                                        {DType::bf16, 100},
                                                                        {DType::bf16, 200},
                                                                        {DType::f8_e4m3, 0},
                                                                        {DType::f8_e4m3, 100}}) {
    const Sequence sequence(random, {8, 1, 64, window, true, dtype, 256}, 1100);
    std::vector<RowRun> runs = runs_of_any_steps();
    for (int launch = 0; launch < (small_cases ? 2 : 20); ++launch) {
      std::shuffle(runs.begin(), runs.end(), random);
      std::vector<SequenceCuda> as_many, one_by_one;
      int rows = 0;
      for (const RowRun& run : runs) {
        as_many.push_back({rows, run.count, run.first, 0});
        for (int i = 0; i < run.count; ++i) one_by_one.push_back({rows++, 1, run.first + i, 0});
      }
      EXPECT_TRUE(same(sequence.on_gpu(as_many, AttentionRows::all_as_many),
                       sequence.on_gpu(one_by_one, AttentionRows::one)))
          << name_of(sequence.shape, sequence.length) << ", launch " << launch;
    }
  }
}

TEST_F(AttentionOnTheGpu, KeepsNotANumberOutOfTilesOfWideHeads) {
  std::mt19937 random(10);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    const AttentionShape shape{8, 1, 64, 100, true, dtype, 256};
    const Sequence sequence(random, shape, 300);
    for (const RowRun& run : runs_of_any_steps()) {
      if (run.first + run.count > sequence.length) continue;
      const Sequence poisoned = sequence.seen_from(run.first - shape.window + 1, run.first + run.count);
      const std::vector<SequenceCuda> cut = {{0, run.count, run.first, 0}};
      EXPECT_TRUE(same(sequence.on_gpu(cut, AttentionRows::all_as_many),
                       poisoned.on_gpu(cut, AttentionRows::all_as_many)))
          << name_of(shape, sequence.length) << ", from " << run.first;
    }
  }
}

// Blocks share multiprocessors, and some wait there for others, which keeps the memory pipe busy.
TEST_F(AttentionOnTheGpu, GivesTheSameBitsEveryTime) {
  std::mt19937 random(6);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    for (const int window : {0, 128}) {
      const AttentionShape shape = small_cases ? AttentionShape{8, 1, 64, window, true, dtype}
                                               : AttentionShape{64, 8, 64, window, true, dtype};
      const int count = small_cases ? 40 : 700, rounds = small_cases ? 1 : window > 0 ? 15 : 50;
      const Sequence sequence(random, shape, small_cases ? 300 : 1200);
      std::vector<SequenceCuda> cuts;
      for (int i = 0; i < count; ++i) cuts.push_back({i, 1, sequence.length - count + i, 0});
      const std::vector<Bf16> expected = sequence.on_gpu(cuts, AttentionRows::all_as_many);
      AttentionLaunch launch(sequence, cuts);
      int other_bits = 0;
      for (int round = 0; round < rounds; ++round) {
        launch.queue(AttentionRows::one, false, nullptr);
        other_bits += !same(expected, launch.result());
      }
      EXPECT_EQ(other_bits, 0) << "of " << rounds << " launches, " << name_of(shape, sequence.length);
    }
  }
}

class AttentionOfManySplits : public OnTheGpu, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, AttentionOfManySplits, testing::Values(64, 128, 256));

TEST_P(AttentionOfManySplits, TakesThemInByTheDozen) {
  std::mt19937 random(3);
  const int dims = GetParam();
  const AttentionShape shape{2, 1, 64, 0, true, DType::bf16, dims};
  const int length =
      2 * attention_step_of(dims) * (small_cases ? 34 : 70) + 5;  // more splits than are scaled at once
  const Sequence sequence(random, shape, length);
  const std::vector<SequenceCuda> last = {{0, 3, length - 3, 0}};
  const std::vector<Bf16> few = sequence.on_gpu(last, AttentionRows::both);
  EXPECT_TRUE(same(few, sequence.on_gpu(last, AttentionRows::all_as_many)));
  EXPECT_TRUE(same(few, sequence.on_gpu(last, AttentionRows::both, true)));
  // A window that begins within a split, and that blocks share all the same.
  Sequence windowed = sequence;
  windowed.shape.window = 3000 * attention_step_of(dims) / attention_step;
  EXPECT_TRUE(
      same(windowed.on_gpu(last, AttentionRows::both), windowed.on_gpu(last, AttentionRows::all_as_many)));
  const std::vector<double> expected = sequence.exact(length - 1, 1);
  for (int d = 0; d < dims; ++d) {
    const double wanted = expected[static_cast<std::size_t>(d)];
    // Half of bfloat16's last place, and what the sums differ by.
    EXPECT_NEAR(few[static_cast<std::size_t>((2 * 2 + 1) * dims + d)].to_float(), wanted,
                1e-3 + std::abs(wanted) / 256);
  }
}

TEST_F(AttentionOnTheGpu, LeavesOutPaddingAndKeepsNotANumberToItsSequence) {
  std::mt19937 random(4);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    Sequence sequence(random, {8, 1, 64, 0, true, dtype}, 90);
    const std::vector<SequenceCuda> cuts = {
        {0, 1, 40, 0}, {1, 0, 0, 0}, {1, 7, 50, 0}, {8, 0, 0, 0}, {8, 1, 89, 0}};
    const std::vector<Bf16> clean = sequence.on_gpu(cuts, AttentionRows::both);
    // The value at position 70, dimension 3: seen by the last sequence alone.
    sequence.store(sequence.values,
                   element_of(sequence.shape, sequence.slots, 0, sequence.pages[1] * 64 + 70 - 64, 3, true),
                   Bf16{0x7fc0});
    const std::vector<Bf16> found = sequence.on_gpu(cuts, AttentionRows::both);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i / 512 == 8 && i % 64 == 3) {
        EXPECT_TRUE(std::isnan(found[i].to_float())) << i;
      } else {
        EXPECT_EQ(found[i], clean[i]) << i;
      }
    }
  }
}

// Of a window nothing is read that is not seen, or not so that it counts: what lies before it in its chunk,
// and behind it, may be no number.
TEST_F(AttentionOnTheGpu, KeepsNotANumberOutOfWindows) {
  std::mt19937 random(7);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
    Sequence sequence(random, {8, 1, 64, 20, true, dtype}, 160);
    std::vector<SequenceCuda> cuts;
    for (int position = 69; position < 160; ++position)
      cuts.push_back({static_cast<std::int32_t>(cuts.size()), 1, position, 0});
    const std::vector<Bf16> clean = sequence.on_gpu(cuts, AttentionRows::one);
    const int slot = sequence.pages[1] * 64 + 96 - 64;
    sequence.store(sequence.values, element_of(sequence.shape, sequence.slots, 0, slot, 3, true),
                   Bf16{0x7fc0});
    sequence.store(sequence.keys, element_of(sequence.shape, sequence.slots, 0, slot, 5, false),
                   Bf16{0x7fc0});
    const std::vector<Bf16> found = sequence.on_gpu(cuts, AttentionRows::one);
    for (const SequenceCuda& cut : cuts) {
      if (cut.first_position >= 96 && cut.first_position < 96 + 20) continue;
      for (int i = 0; i < 512; ++i) {
        const std::size_t at = static_cast<std::size_t>(cut.row_begin * 512 + i);
        EXPECT_EQ(found[at], clean[at]) << cut.first_position << ": " << i;
      }
    }
  }
}

// A window of one position gives its value back, where the weight is 1.
TEST_F(AttentionOnTheGpu, ReadsEveryCodeOfE4m3) {
  std::mt19937 random(5);
  const AttentionShape shape{1, 1, 64, 1, false, DType::f8_e4m3};
  Sequence sequence(random, shape, 4);
  std::fill(sequence.q.begin(), sequence.q.end(), Bf16{0});
  for (int code = 0; code < 256; ++code) {
    const int slot = sequence.pages[0] * 64 + code / 64;
    sequence.values[element_of(shape, sequence.slots, 0, slot, code % 64, true)] =
        static_cast<std::uint8_t>(code);
  }
  for (const AttentionRows rows : {AttentionRows::one, AttentionRows::all_as_many}) {
    const std::vector<Bf16> found =
        sequence.on_gpu({{0, 1, 0, 0}, {1, 1, 1, 0}, {2, 1, 2, 0}, {3, 1, 3, 0}}, rows);
    for (int code = 0; code < 256; ++code) {
      const float expected = E4m3{static_cast<std::uint8_t>(code)}.to_float();
      const float value = found[static_cast<std::size_t>(code)].to_float();
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected) << code << ": " << value;
    }
  }
}

TEST_F(AttentionOnTheGpu, RefusesWhatHasNoTile) {
  const KvCudaLayer cache{nullptr, nullptr, 2, 64};
  EXPECT_NE(attention_cuda({.heads = 6, .page_size = 64, .cache = cache}, nullptr).message().find("6 for 2"),
            std::string::npos);
  EXPECT_NE(attention_cuda({.heads = 4, .page_size = 32, .cache = cache}, nullptr).message().find("32"),
            std::string::npos);
  KvCudaLayer of_floats = cache;
  of_floats.dtype = DType::f32;
  EXPECT_NE(
      attention_cuda({.heads = 4, .page_size = 64, .cache = of_floats}, nullptr).message().find("not in f32"),
      std::string::npos);
  const Status upside_down =
      attention_cuda({.heads = 4, .page_size = 64, .cache = cache, .scale = -0.125f}, nullptr);
  EXPECT_NE(upside_down.message().find("-0.125"), std::string::npos);
}

}  // namespace
}  // namespace nibble
