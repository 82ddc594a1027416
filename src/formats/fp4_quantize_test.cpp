#include "formats/fp4_quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tensor/buffer.h"

namespace nibble {
namespace {

ConstTensor floats(const std::vector<float>& values, const Shape& shape) {
  return {reinterpret_cast<const std::byte*>(values.data()), DType::f32, shape};
}

std::vector<float> random_values(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Fp4Quantize, OneGlobalScaleOrOneARow) {
  const std::vector<float> values = random_values(3 * 64), one = {500.0f}, three = {500.0f, 500.0f, 500.0f};
  const ConstTensor rows = floats(values, {3, 64});
  const Result<Fp4Matrix> shared = fp4_quantize(rows, {.global_scale = floats(one, {1})});
  const Result<Fp4Matrix> each = fp4_quantize(rows, {.global_scale = floats(three, {3})});
  ASSERT_TRUE(shared.ok() && each.ok());
  EXPECT_EQ(shared->codes, each->codes);
  EXPECT_EQ(shared->scales, each->scales);
  const std::vector<float> mixed = {500.0f, 100.0f, 900.0f};
  const Result<Fp4Matrix> by_row = fp4_quantize(rows, {.global_scale = floats(mixed, {3})});
  const Result<std::vector<float>> back = fp4_dequantize(*by_row, floats(mixed, {3}));
  ASSERT_TRUE(back.ok());
  for (std::size_t row = 0; row < 3; ++row) {
    std::vector<std::uint8_t> codes(32), scales(4);
    std::vector<float> expected(64);
    nvfp4_encode(std::span(values).subspan(row * 64, 64), mixed[row], codes.data(), scales.data());
    nvfp4_decode(codes.data(), scales.data(), mixed[row], expected);
    EXPECT_TRUE(
        std::equal(expected.begin(), expected.end(), back->begin() + static_cast<std::ptrdiff_t>(row * 64)));
  }
}

TEST(Fp4Quantize, AScaleForEachExpertIsRefusedWithWhatWouldDo) {
  const std::vector<float> values = random_values(3 * 64), eight(8, 1.0f);
  const Status status = fp4_quantize(floats(values, {3, 64}), {.global_scale = floats(eight, {8})}).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(),
            "a global scale must be f32 [1], or [num_tokens], here [3], not f32 [8]; one for each expert "
            "([num_experts]) says nothing of which tokens are whose: quantize an expert's tokens by "
            "themselves with "
            "its scale, or repeat it for each of them");
  const Result<Fp4Matrix> good = fp4_quantize(floats(values, {3, 64}), {.global_scale = floats({1.0f}, {1})});
  EXPECT_FALSE(fp4_dequantize(*good, floats(eight, {8})).ok());
  EXPECT_FALSE(fp4_quantize(floats(values, {3, 64}), {}).ok());
  const std::vector<float> zero = {0.0f};
  EXPECT_FALSE(fp4_quantize(floats(values, {3, 64}), {.global_scale = floats(zero, {1})}).ok());
}

TEST(Fp4Quantize, EveryScaleLayoutHoldsTheSameNumbers) {
  const std::vector<float> values = random_values(130 * 96), one = {300.0f};
  for (const Fp4Format format : {Fp4Format::nvfp4, Fp4Format::mxfp4}) {
    const ConstTensor global = format == Fp4Format::nvfp4 ? floats(one, {1}) : ConstTensor{};
    std::vector<float> expected;
    for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::s128x4, ScaleLayout::s8x4}) {
      const Result<Fp4Matrix> matrix = fp4_quantize(
          floats(values, {130, 96}), {.format = format, .global_scale = global, .scale_layout = layout});
      ASSERT_TRUE(matrix.ok());
      const Result<std::vector<float>> back = fp4_dequantize(*matrix, global);
      ASSERT_TRUE(back.ok()) << back.status().message();
      if (layout == ScaleLayout::linear) expected = *back;
      EXPECT_EQ(*back, expected);
    }
  }
}

TEST(Fp4Quantize, ScalesOfAnotherLayoutAreRefused) {
  const std::vector<float> values = random_values(3 * 64);
  Fp4Matrix matrix = *fp4_quantize(floats(values, {3, 64}), {.format = Fp4Format::mxfp4});
  matrix.scale_layout = ScaleLayout::s128x4;
  EXPECT_EQ(fp4_dequantize(matrix, {}).status().message(),
            "scales of 3 rows and 2 columns in the layout 128x4 take 512 bytes, not 6");
  matrix.scale_layout = ScaleLayout::linear;
  matrix.codes.pop_back();
  EXPECT_FALSE(fp4_dequantize(matrix, {}).ok());
}

TEST(Fp4Quantize, OtherShapesAndDtypesAreRefused) {
  const std::vector<float> values = random_values(96);
  EXPECT_FALSE(fp4_quantize(floats(values, {2, 48}), {.format = Fp4Format::mxfp4}).ok());
  EXPECT_FALSE(fp4_quantize(floats(values, {96}), {.format = Fp4Format::mxfp4}).ok());
  const ConstTensor integers{reinterpret_cast<const std::byte*>(values.data()), DType::i32, {3, 32}};
  EXPECT_FALSE(fp4_quantize(integers, {.format = Fp4Format::mxfp4}).ok());
}

}  // namespace
}  // namespace nibble
