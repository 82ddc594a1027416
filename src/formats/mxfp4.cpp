#include "formats/mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "formats/codec_kernels.h"

namespace nibble {
namespace {

constexpr std::array<float, 16> make_e2m1_values() {
  std::array<float, 16> values{};
  for (std::uint8_t code = 0; code < 16; ++code) values[code] = E2m1{code}.to_float();
  return values;
}
constexpr std::array<float, 16> e2m1_values = make_e2m1_values();

// amax is finite and above zero.
E8m0 block_scale(float amax, Mxfp4Scale convention) {
  int exponent = 0;
  const float fraction = std::frexp(amax, &exponent);  // amax = fraction * 2^exponent, fraction in [0.5, 1)
  const int floor_log2 = exponent - 1;
  // 6 * 2^e = 0.75 * 2^(e + 3), so e = floor_log2 - 2 holds amax exactly when its fraction is at most 0.75.
  const bool up = convention == Mxfp4Scale::round_up && fraction > 0.75f;
  return E8m0::from_exponent(floor_log2 - 2 + (up ? 1 : 0));
}

std::size_t blocks_in(std::size_t values) {
  NIBBLE_CHECK(values % mxfp4_block == 0);
  return values / mxfp4_block;
}

}  // namespace

void mxfp4_decode_block(const std::uint8_t* codes, E8m0 scale, float* values) {
  const float factor = scale.to_float();
  for (std::size_t i = 0; i < mxfp4_block_bytes; ++i) {
    values[2 * i] = e2m1_values[codes[i] & 0xfu] * factor;
    values[2 * i + 1] = e2m1_values[codes[i] >> 4] * factor;
  }
}

E8m0 mxfp4_encode_block(const float* values, Mxfp4Scale convention, std::uint8_t* codes) {
  float amax = 0;
  bool finite = true;
  for (int i = 0; i < mxfp4_block; ++i) {
    finite = finite && std::isfinite(values[i]);
    amax = std::max(amax, std::fabs(values[i]));
  }
  if (!finite) {
    std::fill_n(codes, mxfp4_block_bytes, std::uint8_t{0});
    return {E8m0::nan_bits};
  }
  const E8m0 scale = amax == 0 ? E8m0{0} : block_scale(amax, convention);
  const int exponent = 127 - int{scale.bits};
  const auto encode = [&](float value) {
    // In double the division is exact; what float32 then flushes is far below the smallest code.
    return E2m1::from_float(static_cast<float>(std::ldexp(static_cast<double>(value), exponent))).bits;
  };
  for (std::size_t i = 0; i < mxfp4_block_bytes; ++i) {
    codes[i] = static_cast<std::uint8_t>(encode(values[2 * i]) | encode(values[2 * i + 1]) << 4);
  }
  return scale;
}

void mxfp4_encode(std::span<const Bf16> values, Mxfp4Scale convention, std::uint8_t* codes,
                  std::uint8_t* scales) {
  best_codec_kernels().bf16.mxfp4(values.data(), blocks_in(values.size()), convention, codes, scales);
}

void mxfp4_encode(std::span<const float> values, Mxfp4Scale convention, std::uint8_t* codes,
                  std::uint8_t* scales) {
  best_codec_kernels().f32.mxfp4(values.data(), blocks_in(values.size()), convention, codes, scales);
}

void mxfp4_decode(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> values) {
  best_codec_kernels().mxfp4_decode(codes, scales, blocks_in(values.size()), values.data());
}

Result<Mxfp4Checkpoint> mxfp4_checkpoint_matrix(const ConstTensor& blocks, const ConstTensor& scales) {
  if (blocks.dtype != DType::u8 || blocks.shape.rank() != 3 || blocks.shape[2] != mxfp4_block_bytes) {
    return invalid_argument("MXFP4 blocks must be u8 [rows, cols / 32, 16], not " +
                            std::string(dtype_name(blocks.dtype)) + " " + blocks.shape.to_string());
  }
  if (scales.dtype != DType::u8 || scales.shape != Shape({blocks.shape[0], blocks.shape[1]})) {
    return invalid_argument("MXFP4 scales for blocks " + blocks.shape.to_string() + " must be u8 " +
                            Shape({blocks.shape[0], blocks.shape[1]}).to_string() + ", not " +
                            std::string(dtype_name(scales.dtype)) + " " + scales.shape.to_string());
  }
  return Mxfp4Checkpoint{.blocks = blocks.as<std::uint8_t>().data(),
                         .scales = scales.as<std::uint8_t>().data(),
                         .rows = blocks.shape[0],
                         .cols = blocks.shape[1] * mxfp4_block};
}

void mxfp4_decode_row(const Mxfp4Checkpoint& matrix, std::int64_t row, std::span<float> values) {
  NIBBLE_CHECK(row >= 0 && row < matrix.rows);
  NIBBLE_CHECK(values.size() == static_cast<std::size_t>(matrix.cols));
  const std::int64_t blocks = matrix.cols / mxfp4_block;
  for (std::int64_t block = 0; block < blocks; ++block) {
    mxfp4_decode_block(matrix.blocks + (row * blocks + block) * mxfp4_block_bytes,
                       E8m0{matrix.scales[row * blocks + block]}, values.data() + block * mxfp4_block);
  }
}

}  // namespace nibble
