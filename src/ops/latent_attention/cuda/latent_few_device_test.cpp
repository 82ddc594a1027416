// On a GPU, or on its emulation: latent attention by clusters has the bits of that by tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "formats/e4m3.h"
#include "ops/cuda/device_test_util.h"
#include "ops/cuda/launch.cuh"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

using FewLatentsOnTheGpu = OnTheGpu;

constexpr int page_size = 128;

std::size_t size_of(std::int64_t rows, std::int64_t width) { return static_cast<std::size_t>(rows * width); }

struct Case {
  int heads;
  std::vector<int> positions = {};  // of each sequence, its rows the last ones
  int rows = 1;
  int rank = 32, rotated = 16;
  DType dtype = DType::bf16;
  float scale = 0.7f;
};

// A launch: random queries and vectors, and what is no number in every slot that no row sees.
class Attention {
 public:
  explicit Attention(const Case& of) : of_(of) {
    std::mt19937 random(11);
    const int width = of.rank + of.rotated;
    std::vector<std::int32_t> table;
    for (const int positions : of.positions) {
      sequences_.push_back({.row_begin = rows_,
                            .row_count = of.rows,
                            .first_position = positions - of.rows,
                            .pages_at = static_cast<std::int32_t>(table.size())});
      rows_ += of.rows;
      table.resize(table.size() + static_cast<std::size_t>((positions + page_size - 1) / page_size));
    }
    std::iota(table.begin(), table.end(), 1);
    std::shuffle(table.begin(), table.end(), random);
    slots_ = (static_cast<int>(table.size()) + 1) * page_size;
    const std::size_t bytes = dtype_bytes(of.dtype);
    std::vector<std::uint8_t> vectors(size_of(slots_, width) * bytes, 0xff);
    for (std::size_t i = 0; i < of.positions.size(); ++i) {
      for (int position = 0; position < of.positions[i]; ++position) {
        const std::int32_t page = table[size_of(sequences_[i].pages_at + position / page_size, 1)];
        const std::size_t slot = size_of(page * page_size + position % page_size, width);
        const std::vector<float> vector = random_floats(random, static_cast<std::size_t>(width));
        for (std::size_t column = 0; column < vector.size(); ++column) {
          if (of.dtype == DType::f8_e4m3) {
            vectors[slot + column] = E4m3::from_float(vector[column]).bits;
          } else {
            const std::uint16_t bits = Bf16::from_float(vector[column]).bits;
            std::memcpy(&vectors[(slot + column) * 2], &bits, 2);
          }
        }
      }
    }
    vectors_ = on_device(vectors);
    table_ = on_device(table);
    device_sequences_ = on_device(sequences_);
    q_ = on_device(random_bf16(random, size_of(rows_ * of.heads, width)));
  }

  std::vector<Bf16> run(LatentCudaKernels kernels, bool settled) {
    DeviceBuffer work = device_bytes(size_of(latent_work_bytes(rows_, count(), of_.heads), 1), 0xff);
    latent_work_cuda({.kernels = kernels,
                      .sequences = device_sequences_.as<SequenceCuda>(),
                      .sequence_count = count(),
                      .heads = of_.heads,
                      .rows = rows_,
                      .rows_at_once = rows_,
                      .work = work.as<std::uint8_t>()},
                     nullptr);
    const std::size_t outputs = size_of(rows_ * of_.heads, latent_padded(of_.rank));
    DeviceBuffer out = device_bytes(outputs * sizeof(Bf16), 0xee),
                 totals = device_bytes(size_of(latent_total_floats(processors_of_device()), 4), 0xff),
                 partials = device_bytes(size_of(latent_partial_floats(of_.rank), 4), 0xff);
    const Status status =
        latent_attention_cuda({.kernels = kernels,
                               .q = q_.as<Bf16>(),
                               .rows = rows_,
                               .heads = of_.heads,
                               .work = work.as<std::uint8_t>(),
                               .sequence_count = count(),
                               .rows_at_once = rows_,
                               .page_table = table_.as<std::int32_t>(),
                               .page_size = page_size,
                               .cache = {vectors_.data(), slots_, of_.dtype, of_.rank, of_.rotated},
                               .settled = settled,
                               .scale = of_.scale,
                               .out = out.as<Bf16>(),
                               .totals = totals.as<float>(),
                               .partials = partials.as<float>()},
                              nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<Bf16> found(outputs);
    out.copy_to(std::span(found));
    return found;
  }

  int rows() const { return rows_; }

 private:
  int count() const { return static_cast<int>(sequences_.size()); }

  Case of_;
  int rows_ = 0, slots_ = 0;
  std::vector<SequenceCuda> sequences_;
  DeviceBuffer vectors_, table_, device_sequences_, q_;
};

void expect_same_bits(const Case& of) {
  SCOPED_TRACE(testing::Message() << of.heads << " heads, " << of.positions.size()
                                  << " sequences, the first of " << of.positions[0] << " positions, "
                                  << of.rows << " rows");
  Attention attention(of);
  const LatentCudaKernels tiles{.path = LatentPath::tiles}, clusters{.path = LatentPath::clusters};
  ASSERT_TRUE(clusters.are_clusters(attention.rows(), of.heads, processors_of_device()));
  const std::vector<Bf16> expected = attention.run(tiles, false);
  for (const Bf16 value : expected) ASSERT_TRUE(std::isfinite(value.to_float()));
  EXPECT_EQ(attention.run(clusters, of.heads % 2 == 0), expected);
  if (of.positions.size() > 1 || of.positions[0] > latent_short_positions) return;
  EXPECT_EQ(attention.run({.short_context = true}, false), expected);
}

TEST_F(FewLatentsOnTheGpu, OneRowHasTheBitsOfTiles) {
  for (const int positions : {1, 63, 64, 65, 255, 256, 257, 300}) expect_same_bits({20, {positions}});
  for (const int positions : {1, 65, 257}) expect_same_bits({1, {positions}});
  for (const int heads : {32, 64, 128}) expect_same_bits({heads, {300}});
}

TEST_F(FewLatentsOnTheGpu, LongContextsHaveTheBitsOfTiles) {
  for (const int positions : {1024, 2047, 2048, 2049, 2600}) expect_same_bits({20, {positions}});
  if (small_cases) return;
  for (const int heads : {1, 32, 64, 128}) {
    for (const int positions : {1024, 2600, 8192}) expect_same_bits({heads, {positions}, 1, 512, 64});
  }
}

TEST_F(FewLatentsOnTheGpu, ColumnsOfAllBlocksHaveTheBitsOfTiles) {
  expect_same_bits({17, {300}, 1, 512, 64});
  expect_same_bits({5, {130}, 1, 400, 32});
  expect_same_bits({3, {65}, 1, 512, 64, DType::f8_e4m3});
  expect_same_bits({5, {70}, 1, 48, 16, DType::bf16, 0.01f});
}

TEST_F(FewLatentsOnTheGpu, SequencesAndRowsHaveTheBitsOfTiles) {
  expect_same_bits({20, {300, 64, 1030}});
  expect_same_bits({128, {65, 257, 3}});
  expect_same_bits({20, {300, 258}, 5});
  expect_same_bits({7, {1026}, 5});
  expect_same_bits({20, {300, 64, 1030}, 1, 144, 16, DType::f8_e4m3});
}

// A cluster takes all splits of a tile where there are tiles enough for all multiprocessors, as on the
// emulation, which has four, or more splits than there is room for.
TEST_F(FewLatentsOnTheGpu, TilesThatAreNotCutHaveTheBitsOfTiles) {
  expect_same_bits({128, {1100}, 4});
  if (small_cases) return;
  std::vector<int> positions(342, 513);
  positions[0] = 2100;
  expect_same_bits({1, positions, 1, 16, 16});
}

TEST(FewLatents, AShortContextHasClusters) {
  const LatentCudaKernels one{.short_context = true};
  EXPECT_TRUE(one.are_clusters(1, 128, 132));
  EXPECT_TRUE(one.are_clusters(6, 20, 64));
  EXPECT_FALSE(one.are_clusters(2, 128, 132)) << "tiles are as fast";
  EXPECT_FALSE(one.are_clusters(1, 128, 63)) << "a slice of a GPU";
  EXPECT_FALSE(LatentCudaKernels().are_clusters(1, 1, 132)) << "nobody knows how long";
}

TEST(FewLatents, AForcedPathIsTaken) {
  EXPECT_FALSE((LatentCudaKernels{.path = LatentPath::tiles, .short_context = true}.are_clusters(1, 1, 132)));
  const LatentCudaKernels clusters{.path = LatentPath::clusters};
  EXPECT_TRUE(clusters.are_clusters(4, 128, 1));
  EXPECT_FALSE(clusters.are_clusters(27, 19, 132)) << "more queries than clusters take";
}

}  // namespace
}  // namespace nibble
