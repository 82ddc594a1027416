// Re-lays MXFP4 matrices from the checkpoint's rows into granules: a thread for each lane of each k64 block,
// 16 bytes in two pieces in, 16 bytes out, and the scales of a block by one warp.
// Bytes: 17/32 a weight read and written once; 13.2 MB an expert of gpt-oss each way.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {
namespace {

constexpr int repack_threads = 256;

__device__ void load_codes_of_row(const std::uint8_t* blocks, const std::uint8_t* scales, std::size_t row,
                                  int groups, int group, int half, std::uint8_t (&codes)[8]) {
  const bool present = group < groups && scales[row * groups + group] != E8m0::nan_bits;
  uint2 bytes = make_uint2(0, 0);
  if (present) {
    bytes = *reinterpret_cast<const uint2*>(blocks + (row * groups + group) * mxfp4_block_bytes + half * 8);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = static_cast<std::uint8_t>(bytes.x >> (8 * i));
    codes[4 + i] = static_cast<std::uint8_t>(bytes.y >> (8 * i));
  }
}

// A warp a k64 block of a granule.
__global__ void __launch_bounds__(repack_threads)
    mxfp4_repack(const std::uint8_t* blocks, const std::uint8_t* scales, int experts, GranuleShape shape,
                 int exponent_shift, std::uint8_t* out, std::uint32_t* largest_scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32, groups = shape.cols / mxfp4_block;
  const int g = lane / 4, t = lane % 4;
  const std::size_t per_expert = static_cast<std::size_t>(shape.granules()) * shape.blocks();
  const std::size_t warps = static_cast<std::size_t>(gridDim.x) * (repack_threads / 32);
  std::uint32_t largest = 0;
  for (std::size_t at = static_cast<std::size_t>(blockIdx.x) * (repack_threads / 32) + threadIdx.x / 32;
       at < per_expert * experts; at += warps) {
    const std::size_t expert = at / per_expert, in_expert = at - expert * per_expert;
    const std::size_t granule = in_expert / shape.blocks();
    const int block = static_cast<int>(in_expert - granule * shape.blocks());
    const std::size_t row = expert * shape.rows + granule * granule_rows + 2 * g;
    std::uint8_t even[8], odd[8];
    load_codes_of_row(blocks, scales, row, groups, 2 * block + t / 2, t % 2, even);
    load_codes_of_row(blocks, scales, row + 1, groups, 2 * block + t / 2, t % 2, odd);
    const LaneCodes codes = pack_lane(even, odd);
    std::uint8_t* base = out + expert * shape.bytes() + granule * shape.granule_bytes();
    const GranulePlace place = granule_place(block);
    *reinterpret_cast<uint4*>(base + place.codes + lane * 16) =
        make_uint4(codes.word[0], codes.word[1], codes.word[2], codes.word[3]);
    // Byte `lane` of the block's scales: row pair lane / 4, block of 32 by bit 1, row of the pair by bit 0.
    const int group = 2 * block + t / 2;
    const std::uint8_t scale = group < groups ? scales[(row + t % 2) * groups + group] : 0;
    base[place.scales + lane] = granule_scale_byte(scale, exponent_shift);
    if (scale != E8m0::nan_bits) largest = max(largest, static_cast<std::uint32_t>(scale));
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (lane == 0) atomicMax(largest_scale, largest);
}

}  // namespace

Status repack_mxfp4_cuda(const std::uint8_t* blocks, const std::uint8_t* scales, int experts,
                         GranuleShape shape, int exponent_shift, std::uint8_t* out,
                         std::uint32_t* largest_scale, cudaStream_t stream) {
  if (shape.rows % granule_rows != 0 || shape.cols % mxfp4_block != 0) {
    return invalid_argument("an MXFP4 matrix of " + std::to_string(shape.rows) + " x " +
                            std::to_string(shape.cols) +
                            " has no granules; rows must be a multiple of 16 and columns of 32");
  }
  const long long warps = static_cast<long long>(shape.granules()) * shape.blocks() * experts;
  const long long wanted = (warps + repack_threads / 32 - 1) / (repack_threads / 32);
  const unsigned grid = static_cast<unsigned>(std::clamp(wanted, 1LL, 65536LL));
  launch_kernel({.blocks = dim3(grid), .threads = repack_threads, .stream = stream}, mxfp4_repack, blocks,
                scales, experts, shape, exponent_shift, out, largest_scale);
  return {};
}

}  // namespace nibble
