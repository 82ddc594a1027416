// The conversions of blocks of values, for each instruction set. Scalar code says what is right; the others
// give the same bits (a NaN only has to stay one), so choosing one never changes a result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/bf16.h"
#include "formats/mxfp4.h"

namespace nibble {

// From values as T: Bf16 or float.
template <class T>
struct EncodeKernels {
  // Consecutive blocks, as the formats' own headers say.
  void (*mxfp4)(const T* values, std::size_t blocks, Mxfp4Scale convention, std::uint8_t* codes,
                std::uint8_t* scales) = nullptr;
  void (*mxfp8)(const T* values, std::size_t blocks, std::uint8_t* codes, std::uint8_t* scales) = nullptr;
  void (*nvfp4)(const T* values, std::size_t blocks, float global_scale, std::uint8_t* codes,
                std::uint8_t* scales) = nullptr;
  // The largest magnitude; infinity where a value is a NaN or an infinity.
  float (*amax)(const T* values, std::size_t count) = nullptr;
  // e4m3(x / scale) of finite values; the scale is a normal number.
  void (*e4m3)(const T* values, std::size_t count, float scale, std::uint8_t* codes) = nullptr;
  // A row that crosses FP8 tiles, of which the last may be cut: each tile's amax is raised to this row's, and
  // each tile's part is encoded by its scale, to zeros where that is NaN.
  void (*raise_tile_amax)(const T* row, std::size_t cols, float* amax) = nullptr;
  void (*e4m3_tiles)(const T* row, std::size_t cols, const float* scales, std::uint8_t* codes) = nullptr;
};

struct CodecKernels {
  std::string_view name;
  bool (*supported)() = nullptr;
  EncodeKernels<Bf16> bf16;
  EncodeKernels<float> f32;
  void (*mxfp4_decode)(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t blocks,
                       float* values) = nullptr;
  void (*mxfp8_decode)(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t blocks,
                       float* values) = nullptr;
  void (*nvfp4_decode)(const std::uint8_t* codes, const std::uint8_t* scales, std::size_t blocks,
                       float global_scale, float* values) = nullptr;
  // code * scale
  void (*e4m3_decode)(const std::uint8_t* codes, std::size_t count, float scale, float* values) = nullptr;
};

// In order of preference, scalar last.
std::span<const CodecKernels> codec_kernels();
// The first that this machine supports.
const CodecKernels& best_codec_kernels();

extern const CodecKernels scalar_codec_kernels, avx2_codec_kernels, avx512_codec_kernels;

}  // namespace nibble
