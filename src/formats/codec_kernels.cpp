#include "formats/codec_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "formats/fp8_block.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

float widened(Bf16 value) { return value.to_float(); }
float widened(float value) { return value; }

// The block at `values` as floats.
template <int size, class T>
std::array<float, size> block_of(const T* values) {
  std::array<float, size> wide;
  for (std::size_t i = 0; i < size; ++i) wide[i] = widened(values[i]);
  return wide;
}

template <class T>
void encode_mxfp4(const T* values, std::size_t blocks, Mxfp4Scale convention, std::uint8_t* codes,
                  std::uint8_t* scales) {
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto block = block_of<mxfp4_block>(values + b * mxfp4_block);
    scales[b] = mxfp4_encode_block(block.data(), convention, codes + b * mxfp4_block_bytes).bits;
  }
}

template <class T>
void encode_mxfp8(const T* values, std::size_t blocks, std::uint8_t* codes, std::uint8_t* scales) {
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto block = block_of<mxfp8_block>(values + b * mxfp8_block);
    scales[b] = mxfp8_encode_block(block.data(), codes + b * mxfp8_block).bits;
  }
}

template <class T>
void encode_nvfp4(const T* values, std::size_t blocks, float global_scale, std::uint8_t* codes,
                  std::uint8_t* scales) {
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto block = block_of<nvfp4_block>(values + b * nvfp4_block);
    scales[b] = nvfp4_encode_block(block.data(), global_scale, codes + b * nvfp4_block_bytes).bits;
  }
}

template <class T>
float largest_magnitude(const T* values, std::size_t count) {
  float amax = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(widened(values[i]));
    if (!std::isfinite(magnitude)) return std::numeric_limits<float>::infinity();
    amax = std::max(amax, magnitude);
  }
  return amax;
}

template <class T>
void encode_e4m3(const T* values, std::size_t count, float scale, std::uint8_t* codes) {
  for (std::size_t i = 0; i < count; ++i) codes[i] = E4m3::from_float(widened(values[i]) / scale).bits;
}

template <class T>
void raise_tile_amax(const T* row, std::size_t cols, float* amax) {
  for (std::size_t at = 0; at < cols; at += fp8_tile, ++amax)
    *amax = std::max(*amax, largest_magnitude(row + at, std::min<std::size_t>(fp8_tile, cols - at)));
}

template <class T>
void encode_e4m3_tiles(const T* row, std::size_t cols, const float* scales, std::uint8_t* codes) {
  for (std::size_t at = 0; at < cols; at += fp8_tile, ++scales) {
    const std::size_t count = std::min<std::size_t>(fp8_tile, cols - at);
    if (std::isnan(*scales)) {
      std::fill_n(codes + at, count, std::uint8_t{0});
    } else {
      encode_e4m3(row + at, count, *scales, codes + at);
    }
  }
}

void decode_mxfp4(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t blocks, float* values) {
  for (std::size_t b = 0; b < blocks; ++b)
    mxfp4_decode_block(codes + b * mxfp4_block_bytes, E8m0{scales[b]}, values + b * mxfp4_block);
}

void decode_mxfp8(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t blocks, float* values) {
  for (std::size_t b = 0; b < blocks; ++b)
    mxfp8_decode_block(codes + b * mxfp8_block, E8m0{scales[b]}, values + b * mxfp8_block);
}

void decode_nvfp4(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t blocks,
                  float global_scale, float* values) {
  for (std::size_t b = 0; b < blocks; ++b)
    nvfp4_decode_block(codes + b * nvfp4_block_bytes, E4m3{scales[b]}, global_scale,
                       values + b * nvfp4_block);
}

void decode_e4m3(const std::uint8_t* codes, std::size_t count, float scale, float* values) {
  for (std::size_t i = 0; i < count; ++i) values[i] = E4m3{codes[i]}.to_float() * scale;
}

template <class T>
constexpr EncodeKernels<T> scalar_encoders() {
  return {.mxfp4 = encode_mxfp4<T>,
          .mxfp8 = encode_mxfp8<T>,
          .nvfp4 = encode_nvfp4<T>,
          .amax = largest_magnitude<T>,
          .e4m3 = encode_e4m3<T>,
          .raise_tile_amax = raise_tile_amax<T>,
          .e4m3_tiles = encode_e4m3_tiles<T>};
}

}  // namespace

const CodecKernels scalar_codec_kernels{.name = "scalar",
                                        .supported = [] { return true; },
                                        .bf16 = scalar_encoders<Bf16>(),
                                        .f32 = scalar_encoders<float>(),
                                        .mxfp4_decode = decode_mxfp4,
                                        .mxfp8_decode = decode_mxfp8,
                                        .nvfp4_decode = decode_nvfp4,
                                        .e4m3_decode = decode_e4m3};

std::span<const CodecKernels> codec_kernels() {
  static const std::array kernels = {avx512_codec_kernels, avx2_codec_kernels, scalar_codec_kernels};
  return kernels;
}

const CodecKernels& best_codec_kernels() {
  static const CodecKernels& best = *std::find_if(codec_kernels().begin(), codec_kernels().end(),
                                                  [](const CodecKernels& each) { return each.supported(); });
  return best;
}

}  // namespace nibble
