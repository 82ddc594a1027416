#include "formats/mxfp8.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "formats/codec_kernels.h"

namespace nibble {
namespace {

std::size_t blocks_in(std::size_t values) {
  NIBBLE_CHECK(values % mxfp8_block == 0);
  return values / mxfp8_block;
}

// amax is finite and above zero.
E8m0 block_scale(float amax) {
  int exponent = 0;
  const float fraction = std::frexp(amax, &exponent);  // amax = fraction * 2^exponent, fraction in [0.5, 1)
  // 448 * 2^e = 0.875 * 2^(e + 9).
  return E8m0::from_exponent(exponent - 9 + (fraction > 0.875f ? 1 : 0));
}

}  // namespace

E8m0 mxfp8_encode_block(const float* values, std::uint8_t* codes) {
  float amax = 0;
  bool finite = true;
  for (int i = 0; i < mxfp8_block; ++i) {
    finite = finite && std::isfinite(values[i]);
    amax = std::max(amax, std::fabs(values[i]));
  }
  if (!finite) {
    std::fill_n(codes, mxfp8_block, std::uint8_t{0});
    return {E8m0::nan_bits};
  }
  const E8m0 scale = amax == 0 ? E8m0{0} : block_scale(amax);
  for (int i = 0; i < mxfp8_block; ++i) {
    // In double the division is exact; what float32 then flushes is far below the smallest code.
    const double quotient = std::ldexp(static_cast<double>(values[i]), 127 - int{scale.bits});
    codes[i] = E4m3::from_float(static_cast<float>(quotient)).bits;
  }
  return scale;
}

void mxfp8_decode_block(const std::uint8_t* codes, E8m0 scale, float* values) {
  for (int i = 0; i < mxfp8_block; ++i) values[i] = E4m3{codes[i]}.to_float() * scale.to_float();
}

void mxfp8_encode(std::span<const Bf16> values, std::uint8_t* codes, std::uint8_t* scales) {
  best_codec_kernels().bf16.mxfp8(values.data(), blocks_in(values.size()), codes, scales);
}

void mxfp8_encode(std::span<const float> values, std::uint8_t* codes, std::uint8_t* scales) {
  best_codec_kernels().f32.mxfp8(values.data(), blocks_in(values.size()), codes, scales);
}

void mxfp8_decode(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> values) {
  best_codec_kernels().mxfp8_decode(codes, scales, blocks_in(values.size()), values.data());
}

}  // namespace nibble
