// The tile kernels on tiles in plain C++, so that packing, blocking and decoding are tested on any machine
// that has the rest of what they need.
#include "ops/linear/amx_product.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "ops/linear/dot_avx512.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

// As AmxTiles, with the instruction's arithmetic spelled out.
struct PlainTiles {
  struct Tile {
    std::uint8_t rows[16][64];
  };
  static inline Tile tiles[8];
  static inline std::array<std::uint16_t, 8> row_bytes = {};  // of none unless begun

  static void begin(const std::array<std::uint16_t, 8>& bytes) {
    row_bytes = bytes;
    std::memset(tiles, 0, sizeof tiles);
  }
  static void end() { row_bytes.fill(0); }
  template <int tile>
  static void zero() {
    std::memset(&tiles[tile], 0, sizeof(Tile));
  }
  template <int tile>
  static void load(const void* base, std::int64_t stride) {
    EXPECT_GT(row_bytes[tile], 0);
    std::memset(&tiles[tile], 0, sizeof(Tile));
    for (int r = 0; r < 16; ++r)
      std::memcpy(tiles[tile].rows[r], static_cast<const std::byte*>(base) + r * stride, row_bytes[tile]);
  }
  template <int tile>
  static void store(void* base, std::int64_t stride) {
    for (int r = 0; r < 16; ++r)
      std::memcpy(static_cast<std::byte*>(base) + r * stride, tiles[tile].rows[r], row_bytes[tile]);
  }
  template <int sums, int a, int b>
  static void multiply() {
    const auto value = [](const Tile& tile, int row, int index) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, tile.rows[row] + 2 * index, 2);
      return Bf16{bits}.to_float();
    };
    EXPECT_EQ(row_bytes[a], 64);
    EXPECT_EQ(row_bytes[sums], row_bytes[b]);
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < row_bytes[b] / 4; ++n) {
        float chains[2] = {0, 0}, total = 0;
        for (int k = 0; k < 16; ++k) {
          for (int parity = 0; parity < 2; ++parity) {
            chains[parity] = std::fma(value(tiles[a], m, 2 * k + parity), value(tiles[b], k, 2 * n + parity),
                                      chains[parity]);
          }
        }
        std::memcpy(&total, tiles[sums].rows[m] + 4 * n, 4);
        total += chains[0] + chains[1];
        std::memcpy(tiles[sums].rows[m] + 4 * n, &total, 4);
      }
    }
  }
};

constexpr DotKernels plain_tiles{"plain tiles", avx512_bf16_supported, amx::prepare,
                                 amx::multiply<PlainTiles>};

std::vector<float> multiply(const DotKernels& kernels, const DenseMatrix& matrix,
                            const std::vector<float>& x) {
  const int rows = matrix_rows(matrix), cols = matrix_cols(matrix);
  const int count = static_cast<int>(x.size()) / cols;
  AlignedBytes room(prepared_bytes(cols, count));
  const DotInputs inputs{.rows = {.first = x.data(), .count = count, .cols = cols},
                         .values = InputValues::bf16,
                         .prepared = room.data()};
  kernels.prepare(matrix, inputs, 0, count);
  std::vector<float> out(static_cast<std::size_t>(count * rows), 7);
  const auto store = [&](int row, int input, const float* totals) {
    std::copy_n(totals, std::min(tile_rows, rows - row), out.begin() + input * rows + row);
  };
  multiply_rows(kernels, matrix, 0, rows, inputs, TotalsSink(store));
  return out;
}

void expect_scalar_bits(const DenseMatrix& matrix, const std::vector<float>& x) {
  const std::vector<float> found = multiply(plain_tiles, matrix, x),
                           expected = multiply(dot_kernels().back(), matrix, x);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(found[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << matrix_rows(matrix) << "x" << matrix_cols(matrix) << " by " << x.size() << " at " << i;
  }
}

std::vector<float> bf16_floats(std::mt19937& random, std::size_t count) {
  std::vector<float> x = random_floats(random, count);
  for (float& value : x) {
    value = Bf16::from_float(std::ldexp(value, static_cast<int>(random() % 260) - 130)).to_float();
    if (random() % 3 == 0) value = random() % 2 == 0 ? 0.0f : 1.0f;
  }
  return x;
}

class AmxProduct : public testing::Test {
 protected:
  void SetUp() override {
    if (!avx512_bf16_supported()) GTEST_SKIP() << "this machine has no AVX-512 BF16";
  }
};

struct Shape {
  int rows, cols, count;
};
constexpr Shape shapes[] = {{32, 32, 1},   {64, 160, 16},  {48, 96, 17},  {7, 64, 33}, {80, 192, 50},
                            {33, 3200, 5}, {32, 3200, 40}, {32, 64, 150}, {64, 96, 2}, {40, 96, 9},
                            {32, 64, 15},  {32, 64, 64},   {32, 64, 112}};

TEST_F(AmxProduct, GivesTheScalarBitsInEveryFormatAndBlocking) {
  std::mt19937 random(1);
  for (const Shape& shape : shapes) {
    const std::vector<float> x = bf16_floats(random, static_cast<std::size_t>(shape.count * shape.cols));
    const RandomMxfp4 mxfp4(random, 1, shape.rows, shape.cols);
    expect_scalar_bits(mxfp4.experts[0], x);
    const RandomQ8 q8(random, shape.rows, shape.cols);
    expect_scalar_bits(q8.matrix, x);
    const std::vector<Bf16> bf16 = random_bf16(random, static_cast<std::size_t>(shape.rows * shape.cols));
    expect_scalar_bits(Bf16Matrix{bf16.data(), shape.rows, shape.cols}, x);
  }
}

TEST_F(AmxProduct, GivesTheScalarBitsWithOneBlockAtEachScale) {
  std::mt19937 random(2);
  RandomMxfp4 mxfp4(random, 1, 32, 64);
  RandomQ8 q8(random, 32, 64);
  for (int byte = 0; byte < 256; ++byte) {
    const std::vector<float> x = bf16_floats(random, 3 * 64);
    mxfp4.scales[5] = q8.scales[9] = static_cast<std::uint8_t>(byte);
    expect_scalar_bits(mxfp4.experts[0], x);
    expect_scalar_bits(q8.matrix, x);
  }
}

TEST_F(AmxProduct, ABlockOfZerosIsZeroAtEveryScaleButNaN) {
  std::mt19937 random(3);
  RandomMxfp4 mxfp4(random, 1, 32, 64);
  std::fill_n(mxfp4.blocks.begin() + 5 * 16, 16, std::uint8_t{0x80});
  RandomQ8 q8(random, 32, 64);
  std::fill_n(q8.codes.begin() + 9 * 32, 32, std::int8_t{0});
  for (int byte : {0, 1, 200, 231, 254, 255}) {
    mxfp4.scales[5] = q8.scales[9] = static_cast<std::uint8_t>(byte);
    // Inputs that no sum turns into no number, which would hide what the block adds.
    std::vector<float> x = random_floats(random, 3 * 64);
    for (float& value : x) value = Bf16::from_float(value).to_float();
    expect_scalar_bits(mxfp4.experts[0], x);
    expect_scalar_bits(q8.matrix, x);
  }
}

}  // namespace
}  // namespace nibble
