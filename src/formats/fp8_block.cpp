#include "formats/fp8_block.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "formats/codec_kernels.h"

namespace nibble {
namespace {

// Runs work(position, count, tile) over the pieces of rows that lie in one tile, along the rows: memory is
// read forward.
template <class Work>
void for_pieces(const Fp8Band& band, const Work& work) {
  for (std::int64_t row = 0; row < band.rows; ++row) {
    for (std::int64_t first = 0; first < band.cols; first += fp8_tile) {
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(fp8_tile, band.cols - first));
      work(row * band.cols + first, count, first / fp8_tile);
    }
  }
}

template <class T>
void encode(const Fp8Band& band, const EncodeKernels<T>& kernels, const T* values, std::uint8_t* codes,
            float* scales) {
  NIBBLE_CHECK(band.rows >= 1 && band.rows <= fp8_tile);
  const auto cols = static_cast<std::size_t>(band.cols);
  std::fill_n(scales, fp8_tiles(band.cols), 0.0f);  // amax for now
  for (std::int64_t row = 0; row < band.rows; ++row)
    kernels.raise_tile_amax(values + row * band.cols, cols, scales);
  for (std::int64_t tile = 0; tile < fp8_tiles(band.cols); ++tile)
    scales[tile] = fp8_tile_scale(scales[tile]);
  for (std::int64_t row = 0; row < band.rows; ++row)
    kernels.e4m3_tiles(values + row * band.cols, cols, scales, codes + row * band.cols);
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
  for_pieces(band, [&](std::int64_t at, std::size_t count, std::int64_t tile) {
    kernels.e4m3_decode(codes + at, count, scales[tile], values + at);
  });
}

}  // namespace nibble
