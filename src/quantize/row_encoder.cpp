#include "quantize/row_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/fp8_block.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"
#include "quantize/scale_search.h"

namespace nibble {
namespace {

// Four sums that do not wait for one another, added in a fixed order.
EncodeError error_of(const float* values, const float* decoded, std::int64_t count) {
  constexpr std::int64_t lanes = 4;
  double squared[lanes] = {}, original[lanes] = {}, largest[lanes] = {};
  EncodeError error{.values = count};
  const auto take = [&](std::int64_t i, std::int64_t lane) {
    const double x = static_cast<double>(values[i]);
    const double difference = x - static_cast<double>(decoded[i]);
    squared[lane] += difference * difference;
    original[lane] += x * x;
    largest[lane] = std::max(largest[lane], std::fabs(difference));
  };
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) take(i + lane, lane);
  }
  for (; i < count; ++i) take(i, 0);
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    error.squared += squared[lane];
    error.original += original[lane];
    error.largest = std::max(error.largest, largest[lane]);
  }
  // Squares of finite floats stay finite in double.
  if (!std::isfinite(error.original))
    error.not_finite =
        std::count_if(values, values + count, [](float value) { return !std::isfinite(value); });
  return error;
}

void encode_row(const EncodeOptions& options, float global, std::span<const float> row, std::uint8_t* codes,
                std::uint8_t* scales) {
  switch (options.format) {
    case WeightFormat::mxfp4:
      if (options.search_scales) return search_mxfp4(row, options.mxfp4_scale, codes, scales);
      return mxfp4_encode(row, options.mxfp4_scale, codes, scales);
    case WeightFormat::nvfp4:
      if (options.search_scales) return search_nvfp4(row, global, codes, scales);
      return nvfp4_encode(row, global, codes, scales);
    default:
      if (options.search_scales) return search_mxfp8(row, codes, scales);
      return mxfp8_encode(row, codes, scales);
  }
}

void decode_row(WeightFormat format, float global, const std::uint8_t* codes, const std::uint8_t* scales,
                std::span<float> row) {
  switch (format) {
    case WeightFormat::mxfp4: return mxfp4_decode(codes, scales, row);
    case WeightFormat::nvfp4: return nvfp4_decode(codes, scales, global, row);
    default: return mxfp8_decode(codes, scales, row);
  }
}

void encode_band(const EncodeOptions& options, const float* values, std::int64_t rows, std::int64_t cols,
                 const EncodedRows& out, EncodeError* errors) {
  std::vector<float> scales(static_cast<std::size_t>(fp8_tiles(cols))),
      decoded(static_cast<std::size_t>(cols));
  const Fp8Band band{rows, cols};
  if (options.search_scales) {
    search_fp8_block(band, values, out.codes, scales.data());
  } else {
    fp8_block_encode(band, values, out.codes, scales.data());
  }
  std::memcpy(out.scales, scales.data(), scales.size() * sizeof(float));
  for (std::int64_t row = 0; row < rows; ++row) {
    fp8_block_decode({1, cols}, out.codes + row * cols, scales.data(), decoded.data());
    errors[row] = error_of(values + row * cols, decoded.data(), cols);
  }
}

}  // namespace

void EncodeError::add(const EncodeError& other) {
  squared += other.squared;
  original += other.original;
  largest = std::max(largest, other.largest);
  values += other.values;
  not_finite += other.not_finite;
}

double EncodeError::relative() const { return original > 0 ? std::sqrt(squared / original) : 0; }

void encode_rows(const EncodeOptions& options, float nvfp4_global_scale, const float* values,
                 std::int64_t rows, std::int64_t cols, const EncodedRows& out, EncodeError* errors) {
  const std::int64_t together = rows_together(options.format);
  if (together > 1) {
    for (std::int64_t row = 0; row < rows; row += together) {
      const std::int64_t count = std::min(together, rows - row);
      encode_band(options, values + row * cols, count, cols,
                  {out.codes + code_bytes(options.format, row, cols),
                   out.scales + scale_bytes_of(options.format, row, cols)},
                  errors + row);
    }
    return;
  }
  std::vector<float> decoded(static_cast<std::size_t>(cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::span<const float> of_row(values + row * cols, static_cast<std::size_t>(cols));
    std::uint8_t* codes = out.codes + code_bytes(options.format, row, cols);
    std::uint8_t* scales = out.scales + scale_bytes_of(options.format, row, cols);
    encode_row(options, nvfp4_global_scale, of_row, codes, scales);
    decode_row(options.format, nvfp4_global_scale, codes, scales, decoded);
    errors[row] = error_of(of_row.data(), decoded.data(), cols);
  }
}

}  // namespace nibble
