#include "quantize/scale_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "formats/codec_kernels.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

// Magnitudes up to any size to the nearest of E2M1's, saturating; what E2m1::from_float gives, without
// branches, so that compilers compute lanes at once.
inline float nearest_e2m1(float magnitude) {
  const float capped = magnitude < E2m1::max ? magnitude : E2m1::max;
  const float step = capped < 2.0f ? 0.5f : capped < 4.0f ? 1.0f : 2.0f;
  const float inverse = capped < 2.0f ? 2.0f : capped < 4.0f ? 1.0f : 0.5f;
  constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  return ((capped * inverse + rounder) - rounder) * step;
}

// The squared error of a block of E2M1 codes: each magnitude times `factor` is rounded, and stands for
// `scale` times what came out.
template <int block>
double e2m1_error(const float* magnitudes, float factor, float scale) {
  constexpr int lanes = 8;
  float sums[lanes] = {};
  for (int i = 0; i < block; i += lanes) {
    for (int lane = 0; lane < lanes; ++lane) {
      const float x = magnitudes[i + lane];
      const float difference = x - nearest_e2m1(x * factor) * scale;
      sums[lane] += difference * difference;
    }
  }
  double total = 0;
  for (const float sum : sums) total += static_cast<double>(sum);
  return total;
}

template <int block>
void encode_e2m1(const float* values, float factor, std::uint8_t* codes) {
  for (int i = 0; i < block; i += 2) {
    codes[i / 2] = static_cast<std::uint8_t>(E2m1::from_float(values[i] * factor).bits |
                                             E2m1::from_float(values[i + 1] * factor).bits << 4);
  }
}

// The candidate with the least error, `first` preferred. error(candidate) may be infinite.
template <class Error>
int best_of(int first, int least, int most, const Error& error) {
  int best = first;
  double best_error = error(first);
  for (int candidate = least; candidate <= most; ++candidate) {
    if (candidate == first) continue;
    const double found = error(candidate);
    if (found < best_error) {
      best = candidate;
      best_error = found;
    }
  }
  return best;
}

// The error of `count` E4M3 codes under a scale, as encoded and decoded.
double e4m3_error(const float* values, std::size_t count, float scale) {
  constexpr std::size_t most = fp8_tile;
  std::array<std::uint8_t, most> codes;
  std::array<float, most> decoded;
  const CodecKernels& kernels = best_codec_kernels();
  kernels.f32.e4m3(values, count, scale, codes.data());
  kernels.e4m3_decode(codes.data(), count, scale, decoded.data());
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(values[i]) - static_cast<double>(decoded[i]);
    sum += difference * difference;
  }
  return sum;
}

}  // namespace

void search_mxfp4(std::span<const float> values, Mxfp4Scale convention, std::uint8_t* codes,
                  std::uint8_t* scales) {
  mxfp4_encode(values, convention, codes, scales);
  for (std::size_t b = 0; b < values.size() / mxfp4_block; ++b) {
    const int plain = scales[b];
    if (plain == E8m0::nan_bits) continue;
    const float* block = values.data() + b * mxfp4_block;
    float magnitudes[mxfp4_block];
    for (int i = 0; i < mxfp4_block; ++i) magnitudes[i] = std::fabs(block[i]);
    // 2^(127 - byte) is a normal number for every candidate.
    const auto inverse = [](int byte) { return std::ldexp(1.0f, 127 - byte); };
    const int chosen = best_of(plain, std::max(plain - 1, 0), std::min(plain + 1, 253), [&](int byte) {
      return e2m1_error<mxfp4_block>(magnitudes, inverse(byte),
                                     E8m0{static_cast<std::uint8_t>(byte)}.to_float());
    });
    if (chosen == plain) continue;
    scales[b] = static_cast<std::uint8_t>(chosen);
    encode_e2m1<mxfp4_block>(block, inverse(chosen), codes + b * mxfp4_block_bytes);
  }
}

void search_nvfp4(std::span<const float> values, float global_scale, std::uint8_t* codes,
                  std::uint8_t* scales) {
  constexpr int nan_code = 0x7f;
  nvfp4_encode(values, global_scale, codes, scales);
  for (std::size_t b = 0; b < values.size() / nvfp4_block; ++b) {
    const int plain = scales[b];
    if (plain == nan_code) continue;
    const float* block = values.data() + b * nvfp4_block;
    float magnitudes[nvfp4_block];
    for (int i = 0; i < nvfp4_block; ++i) magnitudes[i] = std::fabs(block[i]);
    const auto factor = [&](int code) {
      const float scale = E4m3{static_cast<std::uint8_t>(code)}.to_float();
      return scale == 0 ? 0.0f : std::min(global_scale / scale, std::numeric_limits<float>::max());
    };
    const int chosen =
        best_of(plain, std::max(plain - 4, 0), std::min(plain + 6, nan_code - 1), [&](int code) {
          return e2m1_error<nvfp4_block>(magnitudes, factor(code),
                                         E4m3{static_cast<std::uint8_t>(code)}.to_float() / global_scale);
        });
    if (chosen == plain) continue;
    scales[b] = static_cast<std::uint8_t>(chosen);
    encode_e2m1<nvfp4_block>(block, factor(chosen), codes + b * nvfp4_block_bytes);
  }
}

void search_mxfp8(std::span<const float> values, std::uint8_t* codes, std::uint8_t* scales) {
  mxfp8_encode(values, codes, scales);
  for (std::size_t b = 0; b < values.size() / mxfp8_block; ++b) {
    const int plain = scales[b];
    // Scale byte 0 has nothing below it, and 2^-127 is no divisor for the lanes.
    if (plain == E8m0::nan_bits || plain < 2) continue;
    const float* block = values.data() + b * mxfp8_block;
    const auto scale = [](int byte) { return E8m0{static_cast<std::uint8_t>(byte)}.to_float(); };
    const int chosen = best_of(plain, plain - 1, plain,
                               [&](int byte) { return e4m3_error(block, mxfp8_block, scale(byte)); });
    if (chosen == plain) continue;
    scales[b] = static_cast<std::uint8_t>(chosen);
    best_codec_kernels().f32.e4m3(block, mxfp8_block, scale(chosen), codes + b * mxfp8_block);
  }
}

void search_fp8_block(const Fp8Band& band, const float* values, std::uint8_t* codes, float* scales) {
  constexpr std::array<int, 8> sixteenths = {16, 14, 15, 18, 20, 22, 24, 28};
  fp8_block_encode(band, values, codes, scales);
  for (std::int64_t tile = 0; tile < fp8_tiles(band.cols); ++tile) {
    const float plain = scales[tile];
    if (std::isnan(plain)) continue;
    const std::int64_t first = tile * fp8_tile;
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(fp8_tile, band.cols - first));
    const auto scale = [&](int candidate) {
      const float wanted = plain * static_cast<float>(sixteenths[static_cast<std::size_t>(candidate)]) / 16;
      return std::max(wanted, std::numeric_limits<float>::min());
    };
    const int chosen = best_of(0, 0, static_cast<int>(sixteenths.size()) - 1, [&](int candidate) {
      double sum = 0;
      for (std::int64_t row = 0; row < band.rows; ++row)
        sum += e4m3_error(values + row * band.cols + first, count, scale(candidate));
      return sum;
    });
    if (chosen == 0) continue;
    scales[tile] = scale(chosen);
    for (std::int64_t row = 0; row < band.rows; ++row) {
      const std::int64_t at = row * band.cols + first;
      best_codec_kernels().f32.e4m3(values + at, count, scales[tile], codes + at);
    }
  }
}

}  // namespace nibble
