#include "formats/fp4_quantize.h"

#include <string>

#include "base/check.h"

namespace nibble {
namespace {

int block_of(Fp4Format format) { return format == Fp4Format::nvfp4 ? nvfp4_block : mxfp4_block; }
const char* name_of(Fp4Format format) { return format == Fp4Format::nvfp4 ? "NVFP4" : "MXFP4"; }

Status check_global_scale(const ConstTensor& scale, Fp4Format format, std::int64_t rows) {
  if (format == Fp4Format::mxfp4) {
    if (scale.data == nullptr) return {};
    return invalid_argument("MXFP4 has no global scale; leave it out, or quantize to NVFP4");
  }
  if (scale.data == nullptr)
    return invalid_argument("NVFP4 needs a global scale, f32 [1] or [" + std::to_string(rows) + "]");
  const bool fits = scale.shape == Shape({1}) || scale.shape == Shape({rows});
  if (scale.dtype != DType::f32 || !fits) {
    return invalid_argument(
        "a global scale must be f32 [1], or [num_tokens], here [" + std::to_string(rows) + "], not " +
        std::string(dtype_name(scale.dtype)) + " " + scale.shape.to_string() +
        "; one for each expert ([num_experts]) says nothing of which tokens are whose: quantize an expert's "
        "tokens by themselves with its scale, or repeat it for each of them");
  }
  for (const float each : scale.as<float>()) NIBBLE_RETURN_IF_ERROR(check_nvfp4_global_scale(each));
  return {};
}

float scale_of_row(const ConstTensor& scale, std::int64_t row) {
  const auto all = scale.as<float>();
  return all[all.size() == 1 ? 0 : static_cast<std::size_t>(row)];
}

// Runs use(layout) with the type that the value names.
template <class Use>
auto with_layout(ScaleLayout layout, const Use& use) {
  switch (layout) {
    case ScaleLayout::linear: break;
    case ScaleLayout::s128x4: return use(Scales128x4{});
    case ScaleLayout::s8x4: return use(Scales8x4{});
  }
  return use(LinearScales{});
}

std::vector<std::uint8_t> laid_out(std::vector<std::uint8_t> linear, const ScaleShape& shape,
                                   ScaleLayout layout) {
  return with_layout(layout, [&]<class Layout>(Layout) {
    if constexpr (std::is_same_v<Layout, LinearScales>) {
      return std::move(linear);
    } else {
      std::vector<std::uint8_t> placed(static_cast<std::size_t>(scale_bytes<Layout>(shape)));
      convert_scales<Layout>(ScaleView<LinearScales>{linear.data(), shape}, placed);
      return placed;
    }
  });
}

Result<std::vector<std::uint8_t>> linear_scales(const Fp4Matrix& matrix, const ScaleShape& shape) {
  return with_layout(matrix.scale_layout, [&]<class Layout>(Layout) -> Result<std::vector<std::uint8_t>> {
    NIBBLE_ASSIGN(const ScaleView<Layout> view, view_scales<Layout>(matrix.scales, shape));
    std::vector<std::uint8_t> linear(static_cast<std::size_t>(scale_bytes<LinearScales>(shape)));
    convert_scales<LinearScales>(view, linear);
    return linear;
  });
}

template <class T>
void quantize_rows(std::span<const T> values, const Fp4Options& options, Fp4Matrix& matrix) {
  const auto cols = static_cast<std::size_t>(matrix.cols);
  const std::size_t blocks = cols / static_cast<std::size_t>(block_of(options.format));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const auto at = static_cast<std::size_t>(row);
    const std::span<const T> of_row = values.subspan(at * cols, cols);
    std::uint8_t* codes = matrix.codes.data() + at * cols / 2;
    std::uint8_t* scales = matrix.scales.data() + at * blocks;
    if (options.format == Fp4Format::nvfp4) {
      nvfp4_encode(of_row, scale_of_row(options.global_scale, row), codes, scales);
    } else {
      mxfp4_encode(of_row, options.mxfp4_scale, codes, scales);
    }
  }
}

}  // namespace

Result<Fp4Matrix> fp4_quantize(const ConstTensor& values, const Fp4Options& options) {
  const int block = block_of(options.format);
  const bool known = values.dtype == DType::bf16 || values.dtype == DType::f32;
  if (!known || values.shape.rank() != 2 || values.shape[1] % block != 0) {
    return invalid_argument(std::string(name_of(options.format)) +
                            " is made from bf16 or f32 [rows, cols] with cols in " + std::to_string(block) +
                            "s, not " + std::string(dtype_name(values.dtype)) + " " +
                            values.shape.to_string());
  }
  Fp4Matrix matrix{.codes = {},
                   .scales = {},
                   .scale_layout = options.scale_layout,
                   .format = options.format,
                   .rows = values.shape[0],
                   .cols = values.shape[1]};
  NIBBLE_RETURN_IF_ERROR(check_global_scale(options.global_scale, options.format, matrix.rows));
  matrix.codes.resize(static_cast<std::size_t>(values.count() / 2));
  matrix.scales.resize(static_cast<std::size_t>(values.count() / block));
  if (values.dtype == DType::bf16) {
    quantize_rows(values.as<Bf16>(), options, matrix);
  } else {
    quantize_rows(values.as<float>(), options, matrix);
  }
  matrix.scales =
      laid_out(std::move(matrix.scales), {matrix.rows, matrix.cols / block}, options.scale_layout);
  return matrix;
}

Result<std::vector<float>> fp4_dequantize(const Fp4Matrix& matrix, const ConstTensor& global_scale) {
  NIBBLE_RETURN_IF_ERROR(check_global_scale(global_scale, matrix.format, matrix.rows));
  const int block = block_of(matrix.format);
  if (matrix.rows < 0 || matrix.cols < 0 || matrix.cols % block != 0 ||
      static_cast<std::int64_t>(matrix.codes.size()) != matrix.rows * matrix.cols / 2) {
    return invalid_argument(std::string(name_of(matrix.format)) + " codes of [" +
                            std::to_string(matrix.rows) + ", " + std::to_string(matrix.cols) + "] take " +
                            std::to_string(matrix.rows * matrix.cols / 2) + " bytes, with columns in " +
                            std::to_string(block) + "s; there are " + std::to_string(matrix.codes.size()));
  }
  const ScaleShape shape{matrix.rows, matrix.cols / block};
  NIBBLE_ASSIGN(const std::vector<std::uint8_t> scales, linear_scales(matrix, shape));
  const auto cols = static_cast<std::size_t>(matrix.cols), blocks = static_cast<std::size_t>(shape.cols);
  std::vector<float> values(static_cast<std::size_t>(matrix.rows) * cols);
  for (std::size_t row = 0; row < static_cast<std::size_t>(matrix.rows); ++row) {
    const std::span<float> of_row(values.data() + row * cols, cols);
    const std::uint8_t* codes = matrix.codes.data() + row * cols / 2;
    if (matrix.format == Fp4Format::nvfp4) {
      nvfp4_decode(codes, scales.data() + row * blocks,
                   scale_of_row(global_scale, static_cast<std::int64_t>(row)), of_row);
    } else {
      mxfp4_decode(codes, scales.data() + row * blocks, of_row);
    }
  }
  return values;
}

}  // namespace nibble
