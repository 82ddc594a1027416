// Re-lays 4-bit matrices from the checkpoint's rows into granules: a thread for each lane of each k64 block,
// 16 bytes in two pieces in, 16 bytes out, and the scales of a block by one warp.
// Bytes: codes and scales read and written once; 13.2 MB an expert of gpt-oss each way in MXFP4.
#pragma once

#include <algorithm>
#include <string>

#include "base/status.h"
#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/granules.h"

namespace nibble {

inline constexpr int repack_threads = 256;

// What a launch re-lays: codes [experts, rows, cols / 2], scales [experts, rows, cols / scale_group]. halves:
// the first half of an expert's rows become its even ones, the second half its odd ones.
template <class Layout>
struct GranuleRepack {
  const std::uint8_t* codes;
  const typename Layout::Stored* scales;
  int experts;
  GranuleShapeOf<Layout> shape;
  bool halves;
  typename Layout::ScalePacking packing;
  std::uint8_t* out;  // [experts, shape.bytes()]

  // Where row `row` of an expert lies among all rows.
  __device__ __forceinline__ std::size_t from_row(std::size_t expert, std::size_t row) const {
    return expert * shape.rows + (halves ? row / 2 + row % 2 * (shape.rows / 2) : row);
  }
};

// A lane's codes in a row, of zero past the end of K. Calls see(scale) if one of them is not a zero.
template <class Layout, class See>
__device__ __forceinline__ void load_codes_of_row(const GranuleRepack<Layout>& repack, std::size_t row,
                                                  int col, std::uint8_t (&codes)[8], const See& see) {
  uint2 bytes = make_uint2(Layout::Pairs::zeros, Layout::Pairs::zeros);
  if (col < repack.shape.cols) {
    const int groups = repack.shape.cols / Layout::scale_group;
    const auto scale = repack.scales[row * groups + col / Layout::scale_group];
    const CodeChange change = repack.packing.change(scale);
    const std::uint32_t keep = change.keep * 0x01010101u, flip = change.flip * 0x01010101u;
    bytes = *reinterpret_cast<const uint2*>(repack.codes + (row * repack.shape.cols + col) / 2);
    if (!Layout::Pairs::are_zeros(bytes.x) || !Layout::Pairs::are_zeros(bytes.y)) see(scale);
    bytes = make_uint2((bytes.x & keep) ^ flip, (bytes.y & keep) ^ flip);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = static_cast<std::uint8_t>(bytes.x >> (8 * i));
    codes[4 + i] = static_cast<std::uint8_t>(bytes.y >> (8 * i));
  }
}

// A warp a k64 block of a granule. Calls see(scale) for each scale over codes that are not all zero.
template <class Layout, class See>
__device__ __forceinline__ void repack_blocks(const GranuleRepack<Layout>& repack, const See& see) {
  using Stored = typename Layout::Stored;
  constexpr int scales = granule_scales<Layout>, pair_scales = 2 * scales;
  const GranuleShapeOf<Layout>& shape = repack.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, groups = shape.cols / Layout::scale_group;
  const int g = lane / 4, t = lane % 4;
  const std::size_t per_expert = static_cast<std::size_t>(shape.granules()) * shape.blocks();
  const std::size_t warps = static_cast<std::size_t>(gridDim.x) * (repack_threads / 32);
  for (std::size_t at = static_cast<std::size_t>(blockIdx.x) * (repack_threads / 32) + threadIdx.x / 32;
       at < per_expert * repack.experts; at += warps) {
    const std::size_t expert = at / per_expert, in_expert = at - expert * per_expert;
    const std::size_t granule = in_expert / shape.blocks();
    const int block = static_cast<int>(in_expert - granule * shape.blocks());
    const std::size_t first_row = granule * granule_rows, row = first_row + 2 * g;
    const int col = block * granule_k + t * 16;
    std::uint8_t even[8], odd[8];
    load_codes_of_row(repack, repack.from_row(expert, row), col, even, see);
    load_codes_of_row(repack, repack.from_row(expert, row + 1), col, odd, see);
    const LaneCodes codes = pack_lane<typename Layout::Pairs>(even, odd);
    std::uint8_t* base = repack.out + expert * shape.bytes() + granule * shape.granule_bytes();
    const GranulePlace place = granule_place<Layout>(block);
    *reinterpret_cast<uint4*>(base + place.codes + lane * 16) =
        make_uint4(codes.word[0], codes.word[1], codes.word[2], codes.word[3]);
#pragma unroll
    for (int i = lane; i < granule_rows * scales; i += 32) {  // the block's scales as they lie
      const int group = scales * block + i % pair_scales / 2;
      const std::size_t of_row = repack.from_row(expert, first_row + i / pair_scales * 2 + i % 2);
      const Stored scale = group < groups ? repack.scales[of_row * groups + group] : Stored{0};
      reinterpret_cast<Stored*>(base + place.scales)[i] = repack.packing.stored(scale);
    }
  }
}

// By whole warps: two maxima of the launch's scales.
__device__ __forceinline__ void raise_maxima(std::uint32_t* first, std::uint32_t of_first,
                                             std::uint32_t* second, std::uint32_t of_second) {
  of_first = __reduce_max_sync(0xffffffffu, of_first);
  of_second = __reduce_max_sync(0xffffffffu, of_second);
  if (threadIdx.x % 32 == 0) {
    atomicMax(first, of_first);
    atomicMax(second, of_second);
  }
}

template <class Layout>
Status check_granule_shape(const GranuleShapeOf<Layout>& shape, const char* format) {
  if (shape.legal()) return {};
  return invalid_argument("an " + std::string(format) + " matrix of " + std::to_string(shape.rows) + " x " +
                          std::to_string(shape.cols) +
                          " has no granules; rows must be a multiple of 16 and columns of " +
                          std::to_string(Layout::scale_group));
}

template <class Layout>
Launch repack_launch(const GranuleRepack<Layout>& repack, cudaStream_t stream) {
  const long long warps =
      static_cast<long long>(repack.shape.granules()) * repack.shape.blocks() * repack.experts;
  const long long wanted = (warps + repack_threads / 32 - 1) / (repack_threads / 32);
  return {.blocks = dim3(static_cast<unsigned>(std::clamp(wanted, 1LL, 65536LL))),
          .threads = repack_threads,
          .stream = stream};
}

}  // namespace nibble
