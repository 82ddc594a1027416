#include "formats/fp8_block.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "formats/codec_kernels.h"

namespace nibble {
namespace {

// Runs work(first, count, tile) over the pieces of a row of the band that lie in one tile.
template <class Work>
void for_tiles(std::int64_t cols, const Work& work) {
  for (std::int64_t tile = 0; tile < fp8_tiles(cols); ++tile) {
    const std::int64_t first = tile * fp8_tile;
    work(first, static_cast<std::size_t>(std::min<std::int64_t>(fp8_tile, cols - first)), tile);
  }
}

template <class T>
void encode(const Fp8Band& band, const EncodeKernels<T>& kernels, const T* values, std::uint8_t* codes,
            float* scales) {
  NIBBLE_CHECK(band.rows >= 1 && band.rows <= fp8_tile);
  for_tiles(band.cols, [&](std::int64_t first, std::size_t count, std::int64_t tile) {
    float amax = 0;
    for (std::int64_t row = 0; row < band.rows; ++row)
      amax = std::max(amax, kernels.amax(values + row * band.cols + first, count));
    scales[tile] = fp8_tile_scale(amax);
    for (std::int64_t row = 0; row < band.rows; ++row) {
      std::uint8_t* out = codes + row * band.cols + first;
      if (std::isnan(scales[tile])) {
        std::fill_n(out, count, std::uint8_t{0});
      } else {
        kernels.e4m3(values + row * band.cols + first, count, scales[tile], out);
      }
    }
  });
}

}  // namespace

float fp8_tile_scale(float amax) {
  if (amax == 0) return 1;
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  return std::max(amax / E4m3::max, std::numeric_limits<float>::min());
}

void fp8_block_encode(const Fp8Band& band, const Bf16* values, std::uint8_t* codes, float* scales) {
  encode(band, best_codec_kernels().bf16, values, codes, scales);
}

void fp8_block_encode(const Fp8Band& band, const float* values, std::uint8_t* codes, float* scales) {
  encode(band, best_codec_kernels().f32, values, codes, scales);
}

void fp8_block_decode(const Fp8Band& band, const std::uint8_t* codes, const float* scales, float* values) {
  const CodecKernels& kernels = best_codec_kernels();
  for_tiles(band.cols, [&](std::int64_t first, std::size_t count, std::int64_t tile) {
    for (std::int64_t row = 0; row < band.rows; ++row) {
      const std::int64_t at = row * band.cols + first;
      kernels.e4m3_decode(codes + at, count, scales[tile], values + at);
    }
  });
}

}  // namespace nibble
