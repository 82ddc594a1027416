#include "ops/linear/dot_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ops/linear/dot_tile_avx2.h"
#include "ops/linear/float_inputs.h"
#include "ops/linear/int8_inputs.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

// Products [count, rows] of all inputs, the rows cut into ranges of `range` as threads would.
std::vector<float> multiply(const DotKernels& kernels, const DenseMatrix& matrix, InputValues values,
                            const std::vector<float>& x, int range = 1 << 20,
                            WeightLines lines = WeightLines::each) {
  const int rows = matrix_rows(matrix), cols = matrix_cols(matrix);
  const int count = static_cast<int>(x.size()) / cols;
  AlignedBytes room(prepared_bytes(cols, count));
  const DotInputs inputs{.rows = {.first = x.data(), .count = count, .cols = cols},
                         .values = values,
                         .lines = lines,
                         .prepared = room.data()};
  for (int i = 0; i < count; i += input_group)
    prepare_rows(kernels, matrix, inputs, i, std::min(count, i + input_group));
  std::vector<float> out(static_cast<std::size_t>(count * rows), 7);
  const auto store = [&](int row, int input, const float* totals) {
    std::copy_n(totals, std::min(tile_rows, rows - row), out.begin() + input * rows + row);
  };
  for (std::int64_t row = 0; row < rows; row += range) {
    multiply_rows(kernels, matrix, static_cast<int>(row),
                  static_cast<int>(std::min<std::int64_t>(rows, row + range)), inputs, TotalsSink(store));
  }
  return out;
}

const DotKernels& scalar() { return dot_kernels().back(); }

constexpr InputValues all_values[] = {InputValues::any_float, InputValues::bf16, InputValues::int8};

std::vector<float> inputs_of(std::mt19937& random, InputValues values, std::size_t count) {
  std::vector<float> x = random_floats(random, count, 100.0f);
  if (values != InputValues::any_float) {
    for (float& value : x) value = Bf16::from_float(value).to_float();
  }
  return x;
}

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Values of every magnitude a bfloat16 can have, subnormals, zeros of both signs, infinities and NaN too.
std::vector<float> wild_bf16(std::mt19937& random, std::size_t count) {
  std::vector<float> x(count);
  for (float& value : x) {
    const std::uint32_t kind = random() % 16;
    value = kind == 0   ? float_of(random() << 31)
            : kind == 1 ? float_of((random() << 31) | (random() % 2000 == 0 ? 0x7f800000u : 0u))
                        : Bf16{static_cast<std::uint16_t>(random())}.to_float();
    if (!std::isfinite(value) && random() % 2000 != 0) value = 1;
  }
  return x;
}

// A NaN equals a NaN; everything else bit for bit.
bool same_bits(float a, float b) { return std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b)); }

testing::AssertionResult same_bits(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!same_bits(found[i], expected[i]))
      return testing::AssertionFailure() << "at " << i << ": " << found[i] << " is not " << expected[i];
  }
  return testing::AssertionSuccess();
}

// Whether an input's products are the same alone and in every company, wherever it stands, however the rows
// are cut.
testing::AssertionResult independent_of_company(const DotKernels& kernels, const DenseMatrix& matrix,
                                                InputValues values, const std::vector<float>& x) {
  const std::ptrdiff_t cols = matrix_cols(matrix), rows = matrix_rows(matrix);
  const std::ptrdiff_t count = static_cast<std::ptrdiff_t>(x.size()) / cols;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::vector<float> alone =
        multiply(kernels, matrix, values, {x.begin() + i * cols, x.begin() + (i + 1) * cols});
    for (const auto& [begin, end] : {std::pair{std::ptrdiff_t{0}, count}, {0, i + 1}, {i, count}}) {
      const std::vector<float> together =
          multiply(kernels, matrix, values, {x.begin() + begin * cols, x.begin() + end * cols}, range_rows);
      const auto row = together.begin() + (i - begin) * rows;
      if (testing::AssertionResult same = same_bits({row, row + rows}, alone); !same)
        return testing::AssertionFailure()
               << "input " << i << " of [" << begin << ", " << end << ") " << same.message();
    }
  }
  return testing::AssertionSuccess();
}

struct Shape {
  int rows, cols, count;
};
constexpr Shape shapes[] = {{16, 32, 1},  {16, 2880, 3},  {40, 96, 70},  {7, 64, 2},    {48, 160, 5},
                            {80, 544, 9}, {16, 4192, 8},  {33, 512, 6},  {64, 1056, 4}, {96, 96, 33},
                            {32, 64, 17}, {49, 2880, 16}, {150, 352, 7}, {48, 96, 12}};

class EveryKernel : public testing::TestWithParam<std::size_t> {
 protected:
  const DotKernels& kernel() const { return dot_kernels()[GetParam()]; }
  void SetUp() override {
    if (!kernel().supported()) GTEST_SKIP() << "this machine has no " << kernel().name;
  }
  void expect_scalar_bits(const DenseMatrix& matrix, InputValues values, const std::vector<float>& x,
                          WeightLines lines = WeightLines::each) const {
    ASSERT_TRUE(same_bits(multiply(kernel(), matrix, values, x, 1 << 20, lines),
                          multiply(scalar(), matrix, values, x)))
        << matrix_rows(matrix) << "x" << matrix_cols(matrix) << " by " << x.size();
  }
};

TEST_P(EveryKernel, GivesTheScalarBitsOnBf16) {
  std::mt19937 random(1);
  for (const Shape& shape : shapes) {
    for (int cols : {shape.cols, shape.cols - 13}) {
      const std::vector<Bf16> weights =
          random_bf16(random, static_cast<std::size_t>(shape.rows * cols), 4.0f);
      for (const InputValues values : all_values) {
        expect_scalar_bits(Bf16Matrix{weights.data(), shape.rows, cols}, values,
                           inputs_of(random, values, static_cast<std::size_t>(shape.count * cols)));
      }
    }
  }
}

TEST_P(EveryKernel, GivesTheScalarBitsOnBf16OfEveryMagnitude) {
  std::mt19937 random(5);
  for (const Shape& shape : shapes) {
    std::vector<Bf16> weights;
    for (float value : wild_bf16(random, static_cast<std::size_t>(shape.rows * shape.cols)))
      weights.push_back(Bf16::from_float(value));
    for (const InputValues values : all_values) {
      expect_scalar_bits(Bf16Matrix{weights.data(), shape.rows, shape.cols}, values,
                         wild_bf16(random, static_cast<std::size_t>(shape.count * shape.cols)));
    }
  }
}

// Results near the smallest normal number, where subnormals would show.
TEST_P(EveryKernel, GivesTheScalarBitsWhereResultsUnderflow) {
  std::mt19937 random(6);
  const auto tiny = [&](std::size_t count, int exponent) {
    std::vector<float> values = random_floats(random, count, std::ldexp(1.0f, exponent));
    for (float& value : values) value = Bf16::from_float(value).to_float();
    return values;
  };
  for (const Shape& shape : shapes) {
    std::vector<Bf16> weights;
    for (float value : tiny(static_cast<std::size_t>(shape.rows * shape.cols), -70))
      weights.push_back(Bf16::from_float(value));
    expect_scalar_bits(Bf16Matrix{weights.data(), shape.rows, shape.cols}, InputValues::bf16,
                       tiny(static_cast<std::size_t>(shape.count * shape.cols), -56));
  }
}

TEST_P(EveryKernel, GivesTheScalarBitsOnMxfp4AtEveryScale) {
  std::mt19937 random(2);
  for (const Shape& shape : shapes) {
    RandomMxfp4 weights(random, 1, shape.rows, shape.cols);
    for (const InputValues values : all_values) {
      for (bool wild : {false, true}) {
        if (wild) {
          for (std::uint8_t& scale : weights.scales)
            scale = static_cast<std::uint8_t>(random() % 40 ? random() : 0);
        }
        const std::size_t size = static_cast<std::size_t>(shape.count * shape.cols);
        expect_scalar_bits(weights.experts[0], values,
                           wild ? wild_bf16(random, size) : inputs_of(random, values, size));
      }
    }
  }
}

TEST_P(EveryKernel, GivesTheScalarBitsOnQ8AtEveryScale) {
  std::mt19937 random(7);
  for (const Shape& shape : shapes) {
    RandomQ8 weights(random, shape.rows, shape.cols);
    for (const InputValues values : all_values) {
      for (bool wild : {false, true}) {
        if (wild) {
          for (std::uint8_t& scale : weights.scales)
            scale = static_cast<std::uint8_t>(random() % 40 ? random() : 0);
        }
        const std::size_t size = static_cast<std::size_t>(shape.count * shape.cols);
        expect_scalar_bits(weights.matrix, values,
                           wild ? wild_bf16(random, size) : inputs_of(random, values, size));
      }
    }
  }
}

// Where a kernel may add a step's sum by one multiply-add, since its product with the scale is exact, and
// just beyond; sums that cancel to a few bits show whether it was.
TEST_P(EveryKernel, GivesTheScalarBitsAtTheBordersOfWhatItMayFuse) {
  std::mt19937 random(12);
  constexpr int rows = 32, cols = 320, count = 9;
  for (const int scale : {1, 20, 66, 67, 68, 127, 186, 187, 188, 230, 254}) {
    for (const float magnitude :
         {0x1p-120f, 0x1p-61f, 0x1p-53f, 0x1p-52f, 0x1p0f, 0x1p46f, 0x1p48f, 0x1p60f}) {
      RandomMxfp4 mxfp4(random, 1, rows, cols);
      RandomQ8 q8(random, rows, cols);
      std::ranges::fill(mxfp4.scales, static_cast<std::uint8_t>(scale));
      std::ranges::fill(q8.scales, static_cast<std::uint8_t>(scale));
      std::vector<float> x = inputs_of(random, InputValues::int8, std::size_t{count * cols});
      for (float& value : x) value *= magnitude / 100.0f;
      expect_scalar_bits(mxfp4.experts[0], InputValues::int8, x);
      expect_scalar_bits(q8.matrix, InputValues::int8, x);
    }
  }
}

// As in files: not where a line does, nor at a multiple of a step. Nothing lies behind them.
TEST_P(EveryKernel, GivesTheScalarBitsWhereverWeightsBeginAndHoweverTheyAreAskedFor) {
  std::mt19937 random(13);
  for (const Shape& shape : {Shape{33, 544, 1}, Shape{18, 2880, 2}, Shape{40, 96, 5}, Shape{16, 352, 20}}) {
    RandomMxfp4 mxfp4(random, 1, shape.rows, shape.cols);
    RandomQ8 q8(random, shape.rows, shape.cols);
    for (const std::ptrdiff_t from : {0, 1, 16, 48, 112}) {
      const auto moved = [&](auto bytes) {
        bytes.insert(bytes.begin(), static_cast<std::size_t>(from), 0);
        bytes.shrink_to_fit();
        return bytes;
      };
      const auto blocks = moved(mxfp4.blocks), scales = moved(mxfp4.scales), q8_scales = moved(q8.scales);
      const auto codes = moved(q8.codes);
      for (const InputValues values : all_values) {
        const std::vector<float> x =
            inputs_of(random, values, static_cast<std::size_t>(shape.count * shape.cols));
        for (const WeightLines lines :
             {WeightLines::led, WeightLines::each, WeightLines::each_near, WeightLines::each_late}) {
          expect_scalar_bits(
              Mxfp4Checkpoint{blocks.data() + from, scales.data() + from, shape.rows, shape.cols}, values, x,
              lines);
          expect_scalar_bits(Q8Matrix{codes.data() + from, q8_scales.data() + from, shape.rows, shape.cols},
                             values, x, lines);
        }
      }
    }
  }
}

// dot_tile.h's words on eight-bit inputs, in double precision where they say exact.
std::vector<float> eight_bit_products(const std::vector<float>& weights,
                                      const std::vector<std::uint8_t>& scales, const std::vector<float>& x,
                                      int cols) {
  const std::size_t steps = static_cast<std::size_t>(cols) / dot_step, rows = scales.size() / steps;
  std::vector<float> out;
  for (std::size_t i = 0; i < x.size() / static_cast<std::size_t>(cols); ++i) {
    for (std::size_t row = 0; row < rows; ++row) {
      float places[8] = {};
      for (std::size_t step = 0; step < steps; ++step) {
        const float* values = x.data() + (i * steps + step) * dot_step;
        const float* codes = weights.data() + (row * steps + step) * dot_step;
        float largest = 0;
        for (int k = 0; k < dot_step; ++k) largest = std::max(largest, std::fabs(values[k]));
        double sum = 0;
        for (int k = 0; k < dot_step; ++k) {
          const float code = largest == 0 ? 0.0f : values[k] * (127.0f / largest);
          sum += std::nearbyint(static_cast<double>(code)) * static_cast<double>(codes[k]);
        }
        places[step % 8] +=
            static_cast<float>(sum) * (largest / 127.0f) * E8m0{scales[row * steps + step]}.to_float();
      }
      const float* p = places;
      out.push_back(((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7])));
    }
  }
  return out;
}

TEST_P(EveryKernel, RoundsInputsToEightBitsAStepAndAddsStepsByTheirPlaces) {
  std::mt19937 random(11);
  for (const Shape& shape : shapes) {
    const std::size_t count = static_cast<std::size_t>(shape.rows * shape.cols);
    std::vector<float> x =
        inputs_of(random, InputValues::int8, static_cast<std::size_t>(shape.count * shape.cols));
    std::fill_n(x.begin(), dot_step, 0.0f);
    const RandomMxfp4 mxfp4(random, 1, shape.rows, shape.cols);
    std::vector<float> weights(count);
    for (std::size_t k = 0; k < count; ++k) {
      const std::uint8_t codes = mxfp4.blocks[k / 2];
      weights[k] = E2m1{static_cast<std::uint8_t>(k % 2 == 0 ? codes & 15 : codes >> 4)}.to_float();
    }
    EXPECT_TRUE(same_bits(multiply(kernel(), mxfp4.experts[0], InputValues::int8, x),
                          eight_bit_products(weights, mxfp4.scales, x, shape.cols)));
    const RandomQ8 q8(random, shape.rows, shape.cols);
    for (std::size_t k = 0; k < count; ++k) weights[k] = q8.codes[k];
    EXPECT_TRUE(same_bits(multiply(kernel(), q8.matrix, InputValues::int8, x),
                          eight_bit_products(weights, q8.scales, x, shape.cols)));
  }
}

// The largest sums there can be, where sixteen bits would not do.
TEST_P(EveryKernel, AddsTheLargestEightBitProductsExactly) {
  const int rows = 17, cols = 320;
  const std::size_t count = static_cast<std::size_t>(rows * cols), steps = count / dot_step;
  const std::vector<std::uint8_t> scales(steps, 127);
  for (const int code : {-128, -127, 127}) {
    for (const float sign : {-1.0f, 1.0f}) {
      const std::vector<std::int8_t> codes(count, static_cast<std::int8_t>(code));
      const std::vector<float> x(static_cast<std::size_t>(2 * cols), sign);
      for (const float found :
           multiply(kernel(), Q8Matrix{codes.data(), scales.data(), rows, cols}, InputValues::int8, x))
        ASSERT_NEAR(found, static_cast<float>(code * cols) * sign, 0.01f) << code;
      const std::vector<std::uint8_t> fours(count / 2, code < 0 ? 0xff : 0x77);  // -6 and 6
      for (const float found :
           multiply(kernel(), Mxfp4Checkpoint{fours.data(), scales.data(), rows, cols}, InputValues::int8, x))
        ASSERT_NEAR(found, static_cast<float>((code < 0 ? -6 : 6) * cols) * sign, 0.01f) << code;
    }
  }
}

TEST_P(EveryKernel, AnEightBitInputThatIsNoNumberMakesItsProductsNone) {
  std::mt19937 random(12);
  const int rows = 20, cols = 320;
  const RandomQ8 weights(random, rows, cols);
  for (const float wrong : {NAN, INFINITY, -INFINITY, 0x1p110f}) {
    std::vector<float> x = inputs_of(random, InputValues::int8, 3 * cols);
    x[cols + 77] = wrong;
    const std::vector<float> found = multiply(kernel(), weights.matrix, InputValues::int8, x);
    for (int i = 0; i < 3 * rows; ++i)
      ASSERT_EQ(std::isnan(found[static_cast<std::size_t>(i)]), i / rows == 1) << wrong;
  }
}

TEST_P(EveryKernel, AnInputsTotalsDependOnItAloneWhateverTheFormat) {
  std::mt19937 random(3);
  const int rows = 80, cols = 608, count = 41;
  const RandomMxfp4 mxfp4(random, 1, rows, cols);
  const RandomQ8 q8(random, rows, cols);
  const std::vector<Bf16> bf16 = random_bf16(random, static_cast<std::size_t>(rows * cols));
  for (const InputValues values : all_values) {
    const std::vector<float> x = inputs_of(random, values, static_cast<std::size_t>(count * cols));
    EXPECT_TRUE(independent_of_company(kernel(), mxfp4.experts[0], values, x));
    EXPECT_TRUE(independent_of_company(kernel(), q8.matrix, values, x));
    EXPECT_TRUE(independent_of_company(kernel(), Bf16Matrix{bf16.data(), rows, cols}, values, x));
  }
}

TEST(Int8Inputs, EncodersGiveTheSameBytes) {
  if (!avx2_supported()) GTEST_SKIP() << "this machine lacks AVX2";
  std::mt19937 random(13);
  constexpr int values = Int8Group::steps * dot_step;
  const RandomMxfp4 mxfp4(random, 1, 1, values);
  const RandomQ8 q8(random, 1, values);
  const float odd_ones[] = {NAN,      INFINITY, -INFINITY, 0x1p100f, -0x1p99f,
                            0x1p-60f, 0x1p-61f, -0.0f,     0x1p-140f};
  for (int round = 0; round < 2000; ++round) {
    float x[values];
    for (float& value : x) {
      // Of bits at random; of few sizes, so that halves of codes come up.
      const std::uint32_t bits = static_cast<std::uint32_t>(random()) & 0xffff0000u;
      value = round % 2 == 0 ? std::bit_cast<float>(bits)
                             : static_cast<float>(static_cast<int>(bits >> 24) - 127);
    }
    for (std::size_t i = 0; i < std::size(odd_ones); ++i) {
      if (random() % 4 == 0) x[random() % values] = odd_ones[i];
    }
    const int steps = 1 + static_cast<int>(random() % Int8Group::steps);
    for (const DenseMatrix& matrix : {DenseMatrix(mxfp4.experts[0]), DenseMatrix(q8.matrix)}) {
      Int8Group expected, found;
      scalar_encode_int8_group(matrix, x, steps, expected);
      avx2_encode_int8_group(matrix, x, steps, found);
      ASSERT_EQ(std::memcmp(expected.codes, found.codes, sizeof found.codes), 0);
      ASSERT_EQ(std::memcmp(expected.start, found.start, sizeof found.start), 0);
      for (int lane = 0; lane < Int8Group::steps; ++lane) {
        const bool both_none = std::isnan(expected.scales[lane]) && std::isnan(found.scales[lane]);
        ASSERT_TRUE(both_none || expected.scales[lane] == found.scales[lane]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dot, EveryKernel, testing::Range<std::size_t>(0, dot_kernels().size()),
                         [](const auto& instance) {
                           return std::string(dot_kernels()[instance.param].name);
                         });

// The control: kernels whose order of additions depends on how many inputs there are must not pass.
TEST(DotKernels, AnOrderThatDependsOnTheBatchIsCaught) {
  constexpr DotKernels dependent{
      "batch-dependent", [] { return true; }, prepare_float_inputs,
      [](const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs, const TotalsSink& store) {
        const Bf16Matrix& weights = std::get<Bf16Matrix>(matrix);
        const float* x = reinterpret_cast<const float*>(inputs.prepared);
        const int chunk = inputs.rows.count > 4 ? 64 : 32;
        for (int row = begin; row < end; row += tile_rows) {
          for (int i = 0; i < inputs.rows.count; ++i) {
            TileTotals totals = {};
            for (int r = 0; r < std::min(tile_rows, end - row); ++r) {
              for (int k = 0; k < weights.cols; k += chunk) {
                float sum = 0;
                for (int c = k; c < std::min(weights.cols, k + chunk); ++c)
                  sum += weights.data[(row + r) * weights.cols + c].to_float() * x[i * weights.cols + c];
                totals[r] += sum;
              }
            }
            store(row, i, totals);
          }
        }
      }};
  std::mt19937 random(8);
  const std::vector<Bf16> weights = random_bf16(random, 32 * 256);
  const std::vector<float> x = inputs_of(random, InputValues::bf16, 6 * 256);
  EXPECT_FALSE(independent_of_company(dependent, Bf16Matrix{weights.data(), 32, 256}, InputValues::bf16, x));
  EXPECT_TRUE(independent_of_company(scalar(), Bf16Matrix{weights.data(), 32, 256}, InputValues::bf16, x));
}

TEST(DotKernels, AreFoundByName) {
  for (const DotKernels& each : dot_kernels()) EXPECT_EQ(find_dot_kernels(each.name), &each);
  EXPECT_EQ(find_dot_kernels("neon"), nullptr);
}

TEST(DotKernels, MxFp4AddsInTheOrderOfTheContract) {
  std::mt19937 random(4);
  RandomMxfp4 weights(random, 1, 1, 96);
  const std::vector<float> x = random_floats(random, 96);
  float total = 0;
  for (int block = 0; block < 3; ++block) {
    float chains[2] = {0, 0};
    for (int k = 0; k < 32; ++k) {
      const int byte = weights.blocks[static_cast<std::size_t>(block * 16 + k / 2)];
      const float product = E2m1{static_cast<std::uint8_t>(k % 2 ? byte >> 4 : byte & 15)}.to_float() *
                            x[static_cast<std::size_t>(block * 32 + k)];
      chains[k % 2] += product;
    }
    const float scaled =
        (chains[0] + chains[1]) * E8m0{weights.scales[static_cast<std::size_t>(block)]}.to_float();
    total += scaled;
  }
  EXPECT_EQ(multiply(scalar(), weights.experts[0], InputValues::any_float, x)[0], total);
}

TEST(DotKernels, SubnormalsCountAsZeroButTheSmallestScaleKeepsItsValue) {
  const std::vector<Bf16> subnormal(32, Bf16{1});
  EXPECT_EQ(multiply(scalar(), Bf16Matrix{subnormal.data(), 1, 32}, InputValues::any_float,
                     std::vector<float>(32, 0x1p100f))[0],
            0.0f);
  const std::vector<std::uint8_t> sixes(16, 0x77);
  const std::uint8_t scale = 0;
  EXPECT_EQ(multiply(scalar(), Mxfp4Checkpoint{sixes.data(), &scale, 1, 32}, InputValues::bf16,
                     std::vector<float>(32, 1.0f))[0],
            32 * 6 * 0x1p-127f);
}

TEST(DotKernels, Bf16InputsAreBounded) {
  EXPECT_EQ(bounded_bf16_input(0x1.fep-61f), 0.0f);
  EXPECT_EQ(bounded_bf16_input(-0x1p-60f), -0x1p-60f);
  EXPECT_EQ(bounded_bf16_input(0x1.fep99f), 0x1.fep99f);
  EXPECT_EQ(bounded_bf16_input(-0x1p100f), -INFINITY);
  EXPECT_TRUE(std::isnan(bounded_bf16_input(NAN)));
}

}  // namespace
}  // namespace nibble
