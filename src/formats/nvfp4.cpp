#include "formats/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/check.h"
#include "formats/codec_kernels.h"

namespace nibble {
namespace {

std::size_t blocks_in(std::size_t values) {
  NIBBLE_CHECK(values % nvfp4_block == 0);
  return values / nvfp4_block;
}

}  // namespace

float nvfp4_global_scale(float amax) {
  NIBBLE_CHECK(amax >= 0 && std::isfinite(amax));
  if (amax == 0) return 1;
  constexpr float largest = E4m3::max * E2m1::max;
  return std::min(largest / amax, std::numeric_limits<float>::max());
}

Status check_nvfp4_global_scale(float global_scale) {
  if (std::isnormal(global_scale) && global_scale > 0) return {};
  return invalid_argument("a global scale of " + std::to_string(global_scale) +
                          "; it must be finite and above zero, usually 448 * 6 / amax");
}

E4m3 nvfp4_encode_block(const float* values, float global_scale, std::uint8_t* codes) {
  float amax = 0;
  bool finite = true;
  for (int i = 0; i < nvfp4_block; ++i) {
    finite = finite && std::isfinite(values[i]);
    amax = std::max(amax, std::fabs(values[i]));
  }
  if (!finite) {
    std::fill_n(codes, nvfp4_block_bytes, std::uint8_t{0});
    return {0x7f};
  }
  const E4m3 scale = E4m3::from_float((global_scale * amax) / E2m1::max);
  // Infinite it would turn zeros into NaN.
  const float factor =
      scale.bits == 0 ? 0.0f : std::min(global_scale / scale.to_float(), std::numeric_limits<float>::max());
  for (std::size_t i = 0; i < nvfp4_block_bytes; ++i) {
    codes[i] = static_cast<std::uint8_t>(E2m1::from_float(values[2 * i] * factor).bits |
                                         E2m1::from_float(values[2 * i + 1] * factor).bits << 4);
  }
  return scale;
}

void nvfp4_decode_block(const std::uint8_t* codes, E4m3 scale, float global_scale, float* values) {
  const float factor = scale.to_float() / global_scale;
  for (std::size_t i = 0; i < nvfp4_block_bytes; ++i) {
    values[2 * i] = E2m1{static_cast<std::uint8_t>(codes[i] & 0xfu)}.to_float() * factor;
    values[2 * i + 1] = E2m1{static_cast<std::uint8_t>(codes[i] >> 4)}.to_float() * factor;
  }
}

void nvfp4_encode(std::span<const Bf16> values, float global_scale, std::uint8_t* codes,
                  std::uint8_t* scales) {
  best_codec_kernels().bf16.nvfp4(values.data(), blocks_in(values.size()), global_scale, codes, scales);
}

void nvfp4_encode(std::span<const float> values, float global_scale, std::uint8_t* codes,
                  std::uint8_t* scales) {
  best_codec_kernels().f32.nvfp4(values.data(), blocks_in(values.size()), global_scale, codes, scales);
}

void nvfp4_decode(const std::uint8_t* codes, const std::uint8_t* scales, float global_scale,
                  std::span<float> values) {
  best_codec_kernels().nvfp4_decode(codes, scales, blocks_in(values.size()), global_scale, values.data());
}

}  // namespace nibble
