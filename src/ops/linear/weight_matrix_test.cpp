#include "ops/linear/weight_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "formats/e4m3_row.h"
#include "formats/fp8_block.h"
#include "ops/linear/linear.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

// An FP8 matrix of random codes without NaN, scales near 2^-6.
struct RandomFp8 {
  std::vector<E4m3> codes;
  std::vector<float> scales;
  Fp8BlockMatrix matrix;

  RandomFp8(std::mt19937& random, int rows, int cols) {
    for (int i = 0; i < rows * cols; ++i) {
      std::uint8_t code = static_cast<std::uint8_t>(random());
      if ((code & 0x7f) == 0x7f) code = 0;
      codes.push_back({code});
    }
    for (std::int64_t i = 0; i < fp8_tiles(rows) * fp8_tiles(cols); ++i)
      scales.push_back(0.001f + 0.00001f * static_cast<float>(random() % 1000));
    matrix = {codes.data(), {.floats = scales.data()}, rows, cols};
  }
};

// The same codes with a scale a row, in float32 or in bfloat16.
struct RandomFp8Rows {
  RandomFp8 codes;
  std::vector<float> scales;
  std::vector<Bf16> narrow;

  RandomFp8Rows(std::mt19937& random, int rows, int cols) : codes(random, rows, cols) {
    for (int row = 0; row < rows; ++row) {
      narrow.push_back(Bf16::from_float(0.001f + 0.00001f * static_cast<float>(random() % 1000)));
      scales.push_back(0.001f + 0.00001f * static_cast<float>(random() % 1000));
    }
  }
  Fp8RowMatrix wide() const { return with({.floats = scales.data()}); }
  Fp8RowMatrix with(const OuterScales& of_rows) const {
    return {codes.codes.data(), of_rows, codes.matrix.rows, codes.matrix.cols};
  }
};

Nvfp4Matrix nvfp4_of(const RandomNvfp4& random) {
  return {random.codes_of(0), reinterpret_cast<const E4m3*>(random.scales_of(0)), random.tensor_scales[0],
          random.rows, random.cols};
}

std::vector<float> product(OpContext& context, const WeightMatrix& matrix, const std::vector<float>& x) {
  const int cols = weight_cols(matrix), rows = static_cast<int>(x.size()) / cols;
  std::vector<float> y(static_cast<std::size_t>(rows * weight_rows(matrix)), NAN);
  AlignedBytes room(linear_workspace_bytes(rows, cols) + 64);
  const std::byte guard{0x5a};
  std::fill(room.span().end() - 64, room.span().end(), guard);
  linear(context, {.x = x.data(),
                   .rows = rows,
                   .weight = matrix,
                   .y = y.data(),
                   .workspace = room.span().first(room.span().size() - 64)});
  EXPECT_TRUE(std::all_of(room.span().end() - 64, room.span().end(), [&](std::byte b) { return b == guard; }))
      << "inputs are prepared within their room";
  return y;
}

Int4Matrix int4_of(const RandomInt4& matrix) {
  return {matrix.codes.data(), matrix.scales.data(), matrix.rows, matrix.cols};
}

struct Sizes {
  int rows, cols;
};

template <class Check>
void for_each_matrix(const Check& check) {
  std::mt19937 random(7);
  for (const Sizes& size : {Sizes{48, 128}, {33, 64}, {200, 320}, {130, 576}, {96, 768}}) {
    const RandomFp8 fp8(random, size.rows, size.cols);
    const RandomNvfp4 nvfp4(random, 1, size.rows, size.cols);
    check(WeightMatrix(fp8.matrix), random);
    const RandomFp8Rows by_row(random, size.rows, size.cols);
    check(WeightMatrix(by_row.wide()), random);
    check(WeightMatrix(by_row.with({.narrow = by_row.narrow.data()})), random);
    check(WeightMatrix(nvfp4_of(nvfp4)), random);
    const RandomInt4 int4(random, 1, size.rows, size.cols);
    check(WeightMatrix(int4_of(int4)), random);
  }
}

TEST(WeightMatrix, ProductsAgreeWithDoublePrecision) {
  ThreadPool threads(2);
  for_each_matrix([&](const WeightMatrix& matrix, std::mt19937& random) {
    const int rows = weight_rows(matrix), cols = weight_cols(matrix);
    const std::vector<float> x = random_floats(random, static_cast<std::size_t>(3 * cols));
    OpContext context{threads};
    const std::vector<float> y = product(context, matrix, x);
    std::vector<float> values(static_cast<std::size_t>(cols));
    for (int row = 0; row < rows; ++row) {
      decode_weight_row(matrix, row, values.data());
      for (int input = 0; input < 3; ++input) {
        double exact = 0, size = 0;
        for (int c = 0; c < cols; ++c) {
          const double term =
              double{values[static_cast<std::size_t>(c)]} * x[static_cast<std::size_t>(input * cols + c)];
          exact += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(y[static_cast<std::size_t>(input * rows + row)], exact, 1e-5 * size)
            << row << " of " << rows;
      }
    }
  });
}

TEST(WeightMatrix, BitsDependOnNeitherTheKernelsNorTheCompanyNorTheThreads) {
  for_each_matrix([&](const WeightMatrix& matrix, std::mt19937& random) {
    const int rows = weight_rows(matrix), cols = weight_cols(matrix), inputs = 150;
    std::vector<float> x = random_floats(random, static_cast<std::size_t>(inputs * cols));
    for (const InputValues values :
         {InputValues::any_float, InputValues::bf16, InputValues::int8, InputValues::fp8}) {
      if (values != InputValues::any_float) {
        for (float& value : x) value = Bf16::from_float(value).to_float();
      }
      ThreadPool one(1), two(2);
      OpContext plain{.threads = one, .dots = dot_kernels().back(), .activations = values};
      const std::vector<float> expected = product(plain, matrix, x);
      for (const DotKernels& kernels : dot_kernels()) {
        if (!kernels.supported()) continue;
        OpContext context{.threads = two, .dots = kernels, .activations = values};
        ASSERT_EQ(product(context, matrix, x), expected) << kernels.name;
        for (const int count : {1, 2, 3, 5, 17}) {
          const std::vector<float> some(x.begin(), x.begin() + count * cols);
          ASSERT_EQ(product(context, matrix, some),
                    std::vector<float>(expected.begin(), expected.begin() + count * rows))
              << kernels.name << ", " << count;
        }
      }
    }
  });
}

TEST(WeightMatrix, InputsOfFp8WeightsAreRoundedARowAtATimeAndNoOthers) {
  ThreadPool threads(2);
  OpContext rounding{.threads = threads, .activations = InputValues::fp8};
  OpContext plain{.threads = threads, .activations = InputValues::bf16};
  for_each_matrix([&](const WeightMatrix& matrix, std::mt19937& random) {
    const std::size_t cols = static_cast<std::size_t>(weight_cols(matrix)), inputs = 35;
    std::vector<float> x = random_floats(random, inputs * cols);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] =
          Bf16::from_float(std::ldexp(x[i], static_cast<int>(i % 12) - 12 * static_cast<int>(i / cols % 3)))
              .to_float();
    std::fill_n(x.begin(), cols, 0.0f);
    std::vector<float> rounded = x;
    for (std::size_t row = 0; row < inputs; ++row) {
      const std::span<const float> values = std::span(x).subspan(row * cols, cols);
      round_to_e4m3(values, e4m3_row_factor(values), rounded.data() + row * cols);
    }
    const bool fp8 =
        std::holds_alternative<Fp8BlockMatrix>(matrix) || std::holds_alternative<Fp8RowMatrix>(matrix);
    ASSERT_EQ(product(rounding, matrix, x), product(plain, matrix, fp8 ? rounded : x));
    ASSERT_NE(product(plain, matrix, rounded), product(plain, matrix, x));
  });
}

TEST(WeightMatrix, RowsOfAMatrixHaveTheirBitsWhereverTheyAreCut) {
  ThreadPool threads(2);
  OpContext context{threads};
  for_each_matrix([&](const WeightMatrix& matrix, std::mt19937& random) {
    const int rows = weight_rows(matrix), cols = weight_cols(matrix), inputs = 3;
    const std::vector<float> x = random_floats(random, static_cast<std::size_t>(inputs * cols));
    const std::vector<float> whole = product(context, matrix, x);
    for (const auto& [begin, end] : {std::pair{0, rows}, {32, rows}, {1, 2}, {5, 5}, {24, rows - 1}}) {
      const std::vector<float> part = product(context, rows_of(matrix, begin, end), x);
      for (int input = 0; input < inputs; ++input) {
        for (int row = begin; row < end; ++row) {
          ASSERT_EQ(part[static_cast<std::size_t>(input * (end - begin) + row - begin)],
                    whole[static_cast<std::size_t>(input * rows + row)])
              << row << " of " << begin << " to " << end;
        }
      }
    }
  });
}

// A scale that is no power of two is rounded into each row of the result once, and not into its weights.
TEST(WeightMatrix, ARowsScaleMultipliesItsFinishedTotal) {
  std::mt19937 random(5);
  ThreadPool threads(2);
  OpContext context{threads};
  for (const Sizes& size : {Sizes{48, 128}, {33, 320}, {200, 576}}) {
    const RandomFp8Rows by_row(random, size.rows, size.cols);
    const std::vector<float> ones(by_row.codes.scales.size(), 1.0f);
    Fp8BlockMatrix plain = by_row.codes.matrix;
    plain.scales = {.floats = ones.data()};
    const std::vector<float> x = random_floats(random, static_cast<std::size_t>(3 * size.cols));
    const std::vector<float> totals = product(context, plain, x), y = product(context, by_row.wide(), x);
    for (std::size_t i = 0; i < y.size(); ++i)
      ASSERT_EQ(y[i], totals[i] * by_row.scales[i % static_cast<std::size_t>(size.rows)]) << i;
  }
}

// With scales that are powers of two bfloat16 holds the values, and of a block of columns the sums are the
// same.
TEST(WeightMatrix, OfOneBlockOfColumnsFp8ByRowHasTheBitsOfItsValuesInBf16) {
  std::mt19937 random(9);
  ThreadPool threads(2);
  OpContext context{threads};
  RandomFp8Rows by_row(random, 70, weight_block);
  for (float& scale : by_row.scales) scale = std::ldexp(1.0f, -static_cast<int>(random() % 12));
  std::vector<Bf16> values;
  std::vector<float> row(weight_block);
  for (int r = 0; r < 70; ++r) {
    decode_weight_row(by_row.wide(), r, row.data());
    for (const float value : row) {
      values.push_back(Bf16::from_float(value));
      ASSERT_EQ(values.back().to_float(), value);
    }
  }
  const std::vector<float> x = random_floats(random, 3 * weight_block);
  EXPECT_EQ(product(context, by_row.wide(), x),
            product(context, Bf16Matrix{values.data(), 70, weight_block}, x));
}

// Against the formats' own decoders.
TEST(WeightMatrix, ARowIsWhatItsFormatSays) {
  std::mt19937 random(3);
  const RandomFp8 fp8(random, 130, 200);
  std::vector<float> row(200), band(2 * 200);
  fp8_block_decode({.rows = 2, .cols = 200},
                   reinterpret_cast<const std::uint8_t*>(fp8.codes.data()) + 128 * 200, fp8.scales.data() + 2,
                   band.data());
  decode_weight_row(fp8.matrix, 129, row.data());
  EXPECT_EQ(row, std::vector<float>(band.begin() + 200, band.end()));

  const RandomFp8Rows by_row(random, 3, 200);
  decode_weight_row(by_row.wide(), 2, row.data());
  for (int c = 0; c < 200; ++c) {
    EXPECT_EQ(row[static_cast<std::size_t>(c)],
              by_row.codes.codes[static_cast<std::size_t>(400 + c)].to_float() * by_row.scales[2]);
  }

  const RandomNvfp4 nvfp4(random, 1, 5, 96);
  std::vector<float> values(96);
  decode_weight_row(nvfp4_of(nvfp4), 4, values.data());
  for (int c = 0; c < 96; ++c)
    EXPECT_EQ(values[static_cast<std::size_t>(c)], nvfp4.unscaled(0, 4, c) * nvfp4.tensor_scales[0]);

  const RandomInt4 int4(random, 1, 5, 96);
  decode_weight_row(int4_of(int4), 3, values.data());
  for (int c = 0; c < 96; ++c) EXPECT_EQ(values[static_cast<std::size_t>(c)], int4.value(0, 3, c));
}

}  // namespace
}  // namespace nibble
