// Layouts of scales and weights: the worked offsets, and that each is a bijection on every legal shape.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "formats/layout_stamp.h"
#include "formats/scale_layout.h"
#include "formats/sm90_w4_layout.h"

namespace nibble {
namespace {

std::vector<std::uint8_t> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

TEST(ScaleLayout, TheWorkedOffsets) {
  const ScaleShape two_tiles{256, 8};
  EXPECT_EQ(Scales128x4::offset(two_tiles, 33, 5), 533);
  EXPECT_EQ(Scales8x4::offset(two_tiles, 9, 5), 101);
  EXPECT_EQ(LinearScales::offset(two_tiles, 9, 5), 77);
  EXPECT_EQ(scale_bytes<Scales128x4>({129, 5}), 256 * 8);
  EXPECT_EQ(scale_bytes<Scales8x4>({9, 5}), 16 * 8);
  EXPECT_EQ(scale_bytes<LinearScales>({9, 5}), 45);
}

// Every scale has a place of its own, inside the bytes the layout says.
template <class Layout>
void expect_bijection(const ScaleShape& shape) {
  std::set<std::int64_t> places;
  for (std::int64_t m = 0; m < shape.rows; ++m) {
    for (std::int64_t k = 0; k < shape.cols; ++k) {
      const std::int64_t place = Layout::offset(shape, m, k);
      RC_ASSERT(place >= 0 && place < scale_bytes<Layout>(shape));
      RC_ASSERT(places.insert(place).second);
    }
  }
}

// There and back, with padding that is zero.
template <class Layout>
void expect_round_trip(const ScaleShape& shape) {
  std::vector<std::uint8_t> linear = random_bytes(static_cast<std::size_t>(shape.rows * shape.cols), 5);
  for (std::uint8_t& byte : linear) byte |= 1;
  std::vector<std::uint8_t> placed(static_cast<std::size_t>(scale_bytes<Layout>(shape)), 0xaa);
  convert_scales<Layout>(ScaleView<LinearScales>{linear.data(), shape}, placed);
  RC_ASSERT(std::count(placed.begin(), placed.end(), 0) ==
            static_cast<std::ptrdiff_t>(placed.size() - linear.size()));
  std::vector<std::uint8_t> back(linear.size());
  const Result<ScaleView<Layout>> view = view_scales<Layout>(placed, shape);
  RC_ASSERT(view.ok());
  convert_scales<LinearScales>(*view, back);
  RC_ASSERT(back == linear);
}

RC_GTEST_PROP(ScaleLayout, IsABijectionOnEveryShape, ()) {
  const ScaleShape shape{*rc::gen::inRange<std::int64_t>(0, 300), *rc::gen::inRange<std::int64_t>(0, 20)};
  expect_bijection<LinearScales>(shape);
  expect_bijection<Scales128x4>(shape);
  expect_bijection<Scales8x4>(shape);
  expect_round_trip<Scales128x4>(shape);
  expect_round_trip<Scales8x4>(shape);
}

TEST(ScaleLayout, BytesOfAnotherLayoutAreRefused) {
  const std::vector<std::uint8_t> bytes(45);
  EXPECT_TRUE(view_scales<LinearScales>(bytes, {9, 5}).ok());
  EXPECT_EQ(view_scales<Scales128x4>(bytes, {9, 5}).status().message(),
            "scales of 9 rows and 5 columns in the layout 128x4 take 1024 bytes, not 45");
  EXPECT_FALSE(view_scales<Scales8x4>(bytes, {9, 5}).ok());
  EXPECT_FALSE(view_scales<LinearScales>(bytes, {-9, -5}).ok());
}

struct Matrix {
  std::int64_t rows, cols;
  std::vector<std::uint8_t> blocks, scales;

  Mxfp4Checkpoint view() const { return {blocks.data(), scales.data(), rows, cols}; }
};

Matrix random_matrix(std::int64_t rows, std::int64_t cols, unsigned seed) {
  return {rows, cols, random_bytes(static_cast<std::size_t>(rows * cols / 2), seed),
          random_bytes(static_cast<std::size_t>(rows * cols / 32), seed + 1)};
}

// The code of (row, col) in a checkpoint's layout.
std::uint32_t code_at(const Matrix& matrix, std::int64_t row, std::int64_t col) {
  const std::uint8_t pair = matrix.blocks[static_cast<std::size_t>((row * matrix.cols + col) / 2)];
  return col % 2 == 0 ? pair & 15u : pair >> 4;
}

TEST(Sm90W4Layout, TheWorkedScaleOffset) {
  Matrix matrix = random_matrix(128, 256, 1);
  std::fill(matrix.scales.begin(), matrix.scales.end(), std::uint8_t{0});
  matrix.scales[70 * 8 + 6] = 7;
  std::vector<std::uint8_t> blocks(matrix.blocks.size()), scales(matrix.scales.size());
  ASSERT_TRUE(pack_sm90_w4(matrix.view(), blocks, scales).ok());
  EXPECT_EQ(scales[((1 * 2 + 1) * 16 + 6) * 16 + 2], 7) << "row 70, group 6 lies at [1, 1, 6, 2]";
}

// Where a code's sign and magnitude lie in a word, by the pair's turn and by half.
float value_in_word(std::uint32_t word, int pair, int half) {
  std::uint32_t placed = 0;
  constexpr std::uint32_t magnitude = 0x01c001c0u, signs = 0x80008000u;
  if (pair == 0) placed = word & (magnitude | signs);
  if (pair == 1) placed = (word << 3) & (magnitude | signs);
  if (pair == 2) placed = (word << 6) & (magnitude | signs);
  // The last pair's magnitude is split: its lowest bit lies apart.
  if (pair == 3) placed = ((word << 1) & signs) | ((word >> 3) & 0x01800180u) | ((word >> 7) & 0x00400040u);
  const Bf16 number{static_cast<std::uint16_t>(placed >> (16 * half))};
  return std::ldexp(number.to_float(), 126);
}

TEST(Sm90W4Layout, AWordsBitsAreBfloat16NumbersAfterAShiftAndAMask) {
  const Matrix matrix = random_matrix(64, 128, 3);
  std::vector<std::uint8_t> blocks(matrix.blocks.size()), scales(matrix.scales.size());
  ASSERT_TRUE(pack_sm90_w4(matrix.view(), blocks, scales).ok());
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t j = 0; j < 16; ++j) {
      std::uint32_t word;
      std::memcpy(&word, blocks.data() + row * 64 + j * 4, sizeof word);
      const std::int64_t upper = row / 16 * 16 + row % 8, c = j / 4 * 32 + row % 16 / 8 * 16 + j % 4 * 2;
      const std::int64_t rows[4] = {upper, upper + 8, upper, upper + 8}, cols[4] = {c, c, c + 8, c + 8};
      for (int pair = 0; pair < 4; ++pair) {
        for (int half = 0; half < 2; ++half) {
          const E2m1 code{static_cast<std::uint8_t>(code_at(matrix, rows[pair], cols[pair] + half))};
          ASSERT_EQ(value_in_word(word, pair, half), code.to_float()) << row << " " << j << " " << pair;
        }
      }
    }
  }
}

TEST(Sm90W4Layout, EachBitOfAWordComesFromOneBitOfThePairs) {
  std::uint32_t seen = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const std::uint32_t word = sm90_w4_word(1u << bit);
    EXPECT_EQ(std::popcount(word), 1);
    seen |= word;
    EXPECT_EQ(sm90_w4_pairs(word), 1u << bit);
  }
  EXPECT_EQ(seen, 0xffffffffu);
}

RC_GTEST_PROP(Sm90W4Layout, IsABijectionOnEveryLegalShape, ()) {
  const Matrix matrix =
      random_matrix(64 * *rc::gen::inRange<std::int64_t>(0, 5), 128 * *rc::gen::inRange<std::int64_t>(0, 5),
                    *rc::gen::arbitrary<unsigned>());
  Matrix packed = matrix, back = matrix;
  RC_ASSERT(pack_sm90_w4(matrix.view(), packed.blocks, packed.scales).ok());
  std::fill(back.blocks.begin(), back.blocks.end(), std::uint8_t{0});
  std::fill(back.scales.begin(), back.scales.end(), std::uint8_t{0});
  const Result<Sm90W4> view = view_sm90_w4(packed.blocks, packed.scales, matrix.rows, matrix.cols);
  RC_ASSERT(view.ok());
  RC_ASSERT(unpack_sm90_w4(*view, back.blocks, back.scales).ok());
  RC_ASSERT(back.blocks == matrix.blocks && back.scales == matrix.scales);
}

TEST(Sm90W4Layout, OtherShapesAreRefused) {
  EXPECT_EQ(check_sm90_w4_shape(64, 96).message(),
            "the layout flashinfer_sm90_w4 needs rows in 64s and columns in 128s, not [64, 96]; pad the "
            "matrix with "
            "zeros");
  EXPECT_FALSE(check_sm90_w4_shape(32, 128).ok());
  const Matrix matrix = random_matrix(64, 128, 1);
  EXPECT_TRUE(view_sm90_w4(matrix.blocks, matrix.scales, 64, 128).ok());
  EXPECT_FALSE(view_sm90_w4(matrix.blocks, matrix.scales, 128, 128).ok());
  const Matrix odd = random_matrix(32, 64, 1);
  std::vector<std::uint8_t> blocks(odd.blocks.size()), scales(odd.scales.size());
  EXPECT_FALSE(pack_sm90_w4(odd.view(), blocks, scales).ok());
}

TEST(LayoutStamp, BytesAreTakenUpOnlyInTheLayoutShapeAndStateTheyWereStampedWith) {
  std::vector<std::uint8_t> bytes = random_bytes(1000, 1);
  const Shape shape{2, 1000};
  const LayoutStamp good = stamp<Sm90W4Layout>(shape, bytes);
  EXPECT_TRUE(check_stamp(good, Sm90W4Layout::tag, shape, bytes, "w13").ok());
  EXPECT_EQ(check_stamp(good, Mxfp4CheckpointLayout::tag, shape, bytes, "w13").message(),
            "\"w13\" is in the layout \"flashinfer_sm90_w4\", not \"mxfp4_checkpoint\"; convert it first");
  EXPECT_FALSE(check_stamp(good, Sm90W4Layout::tag, {1000, 2}, bytes, "w13").ok());
  bytes[999] ^= 1;
  EXPECT_FALSE(check_stamp(good, Sm90W4Layout::tag, shape, bytes, "w13").ok());
}

TEST(LayoutStamp, TheHashSeesEveryByteItsPlaceAndTheLength) {
  const std::vector<std::uint8_t> zeros(200);
  std::set<std::uint64_t> hashes;
  for (std::size_t count = 0; count <= zeros.size(); ++count)
    EXPECT_TRUE(hashes.insert(content_hash({zeros.data(), count})).second) << count;
  for (std::size_t at = 0; at < zeros.size(); ++at) {
    for (const int bit : {0, 7}) {
      std::vector<std::uint8_t> changed = zeros;
      changed[at] = static_cast<std::uint8_t>(1 << bit);
      EXPECT_TRUE(hashes.insert(content_hash(changed)).second) << at;
    }
  }
  EXPECT_EQ(content_hash(zeros), content_hash(zeros));
  EXPECT_NE(content_hash(zeros, 1), content_hash(zeros, 2));
}

}  // namespace
}  // namespace nibble
