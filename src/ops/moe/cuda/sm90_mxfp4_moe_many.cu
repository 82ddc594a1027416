// moe_mxfp4 for many tokens, on wgmma; the bits are those of the kernel for few tokens, whose order of
// additions (mxfp4_granules.h) it keeps.
//
//   group    slots by expert, each expert's padded to tiles of 128
//   gather   the tokens' activations into tiles that a bulk copy brings to shared memory as wgmma reads them
//   product  gate_up; its epilogue writes h as such tiles
//   product  down
//   combine  a token's experts (moe_steps.cuh)
//
// A product's block computes 128 rows x 128 tokens: 8 warps, a granule each, in two warpgroups of which one
// decodes while the other's products run. A k64 block of it is 2.1 MFLOP and takes 4.4 KB of weights and 16
// KB of activations from the second-level cache. Weights go straight to the registers where they are decoded,
// a block of K ahead; activations through a ring. The sums of a chunk and those of the chunks before it take
// 64 registers each, which is why a tile is no larger.
#include <cuda_bf16.h>

#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int tile_tokens = moe_many_tile;
constexpr int step_bytes = tile_tokens * 16 * 2;  // of activations, for a k16 step
constexpr int block_bytes = 4 * step_bytes;       // for a k64 block
constexpr int product_warps = 8;
constexpr int product_threads = product_warps * 32;
constexpr int stages = 4;
constexpr int group_threads = 1024;

// Where element `element` (0..63) of a k64 block lies for a token of the tile: steps, then wgmma's core
// matrices, K ordered as the granules order it.
__host__ __device__ constexpr int packed_offset(int token, int element) {
  const int t = element / 16, step = element % 16 / 4, half = element % 4 / 2, value = element % 2;
  return step * step_bytes + token / 8 * 256 + half * 128 + token % 8 * 16 + t * 4 + value * 2;
}

// The tables of the grouping and the tiles of both products, in workspace.many.
struct ManyPlaces {
  std::int32_t* tile_count;
  std::int32_t* tile_experts;  // [tiles]
  std::int32_t* slot_at;       // [tiles, 128], -1 where a tile is padded
  std::uint8_t* x;             // [tiles, k64 blocks of hidden, block_bytes]
  std::uint8_t* h;             // [tiles, k64 blocks of intermediate, block_bytes]
};
ManyPlaces places_in(std::uint8_t* memory, int tiles, int hidden_blocks) {
  auto* ints = reinterpret_cast<std::int32_t*>(memory);
  const std::size_t table_bytes = moe_many_table_bytes(tiles);
  std::uint8_t* x = memory + table_bytes;
  return {.tile_count = ints,
          .tile_experts = ints + 1,
          .slot_at = ints + 1 + tiles,
          .x = x,
          .h = x + static_cast<std::size_t>(tiles) * static_cast<std::size_t>(hidden_blocks) * block_bytes};
}

// One block. Slots of an expert land in order of arrival: which column a token gets moves no bit.
__global__ void __launch_bounds__(group_threads)
    moe_group_many(const std::int32_t* expert_ids, int slots, int experts, ManyPlaces places) {
  std::int32_t* const next = reinterpret_cast<std::int32_t*>(ptx::dynamic_shared());  // [experts]
  __shared__ std::int32_t tiles;
  const int thread = static_cast<int>(threadIdx.x);
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  for (int expert = thread; expert < experts; expert += group_threads) next[expert] = 0;
  __syncthreads();
  for (int slot = thread; slot < slots; slot += group_threads) {
    if (expert_ids[slot] >= 0) atomicAdd(&next[expert_ids[slot]], 1);
  }
  __syncthreads();
  if (thread == 0) {
    int tile = 0;
    for (int expert = 0; expert < experts; ++expert) {
      const int count = next[expert];
      next[expert] = tile * tile_tokens;
      for (int left = count; left > 0; left -= tile_tokens) places.tile_experts[tile++] = expert;
    }
    tiles = tile;
    *places.tile_count = tile;
  }
  __syncthreads();
  for (int at = thread; at < tiles * tile_tokens; at += group_threads) places.slot_at[at] = -1;
  __syncthreads();
  for (int slot = thread; slot < slots; slot += group_threads) {
    if (expert_ids[slot] >= 0) places.slot_at[atomicAdd(&next[expert_ids[slot]], 1)] = slot;
  }
}

// A thread a token of the tile, a block a k64 block: 128 bytes in, 8 x 16 bytes out.
__global__ void __launch_bounds__(tile_tokens)
    moe_gather_many(const Bf16* x, int x_stride, int top_k, ManyPlaces places) {
  const int tile = static_cast<int>(blockIdx.y), block = static_cast<int>(blockIdx.x);
  const int token = static_cast<int>(threadIdx.x);
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (tile >= *places.tile_count) return;
  const int slot = places.slot_at[tile * tile_tokens + token];
  std::uint32_t words[4][8] = {};  // by lane of the row, then pairs in order
  if (slot >= 0) {
    const Bf16* row =
        x + static_cast<std::size_t>(slot / top_k) * static_cast<std::size_t>(x_stride) + block * granule_k;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 quad = *reinterpret_cast<const uint4*>(row + t * 16 + half * 8);
        words[t][4 * half] = quad.x, words[t][4 * half + 1] = quad.y;
        words[t][4 * half + 2] = quad.z, words[t][4 * half + 3] = quad.w;
      }
    }
  }
  std::uint8_t* out =
      places.x + (static_cast<std::size_t>(tile) * gridDim.x + static_cast<std::size_t>(block)) * block_bytes;
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    *reinterpret_cast<uint4*>(out + packed_offset(token, 2 * pair)) =
        make_uint4(words[0][pair], words[1][pair], words[2][pair], words[3][pair]);
  }
}

struct ManyParams {
  const std::uint8_t* weights;
  const Bf16* bias;  // [experts, rows]
  GranuleShape shape;
  float scale;  // 2^exponent_shift
  ManyPlaces places;
  const std::uint8_t* inputs;  // tiles of this product
  int second;                  // 0: gate_up into tiles of h; 1: down into `products`
  int h_blocks;                // k64 blocks of intermediate
  float* products;             // [slots, rows]
  float swiglu_limit;
};

// A lane's codes of its granule, k64 block after k64 block.
struct CodeStream {
  const std::uint8_t* granule;
  int blocks, lane;
  int index = 0;

  __device__ void load(uint4& words, std::uint32_t& even, std::uint32_t& odd) {
    if (index >= blocks) return;  // past the end
    const GranulePlace place = granule_place(index++);
    const std::uint8_t* scales = granule + place.scales + lane / 4 * 4 + lane % 4 / 2 * 2;
    words = *reinterpret_cast<const uint4*>(granule + place.codes + lane * 16);
    even = scales[0];
    odd = scales[1];
  }
};

// The operand registers of a k64 block.
__device__ __forceinline__ void decode_block(std::uint32_t (&a)[4][4], const uint4& words, std::uint32_t even,
                                             std::uint32_t odd) {
  const std::uint32_t multipliers[2] = {granule_multiplier(static_cast<std::uint8_t>(even)),
                                        granule_multiplier(static_cast<std::uint8_t>(odd))};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const PlacedPairs placed = half == 0 ? place_pairs(words.x, words.y) : place_pairs(words.z, words.w);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      a[2 * half + i / 4][i % 4] = ptx::multiply_bf16x2(placed.pair[i], multipliers[i % 2]);
  }
}

__device__ __forceinline__ void store_many(const ManyParams& params, int tile, int granule, int lane,
                                           const float (&totals)[64], std::uint32_t bias) {
  const float even_bias = __uint_as_float(bias << 16), odd_bias = __uint_as_float(bias & 0xffff0000u);
  const int g = lane / 4, row = granule * granule_rows + 2 * g, i = row / 2;
  std::uint8_t* const h_block =
      params.places.h + (static_cast<std::size_t>(tile) * static_cast<std::size_t>(params.h_blocks) +
                         static_cast<std::size_t>(i / granule_k)) *
                            block_bytes;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const int column = j / 2 * 8 + lane % 4 * 2 + j % 2;
    const int slot = params.places.slot_at[tile * tile_tokens + column];
    if (slot < 0) continue;
    const float even = __fmul_rn(totals[j / 2 * 4 + j % 2], params.scale) + even_bias;
    const float odd = __fmul_rn(totals[j / 2 * 4 + 2 + j % 2], params.scale) + odd_bias;
    if (params.second) {
      const std::size_t at = static_cast<std::size_t>(slot) * static_cast<std::size_t>(params.shape.rows);
      *reinterpret_cast<float2*>(params.products + at + static_cast<std::size_t>(row)) =
          make_float2(even, odd);
    } else {
      *reinterpret_cast<__nv_bfloat16*>(h_block + packed_offset(column, i % granule_k)) =
          __float2bfloat16_rn(swiglu_on_device(even, odd, params.swiglu_limit));
      // Past the last of h the weights are zero, but what they multiply must be a number.
      if (granule == params.shape.granules() - 1) {
        const int h_columns = params.shape.rows / 2;
        for (int pad = h_columns + g; pad < params.h_blocks * granule_k; pad += 8)
          *reinterpret_cast<Bf16*>(h_block + packed_offset(column, pad % granule_k)) = Bf16{};
      }
    }
  }
}

__global__ void __launch_bounds__(product_threads, 1)
    sm90_mxfp4_moe_many(const __grid_constant__ ManyParams params) {
  __shared__ std::uint64_t full[stages], empty[stages];
  std::uint8_t* const ring = ptx::dynamic_shared();  // [stages, block_bytes]
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(&full[stage], 1);
      ptx::mbarrier_init(&empty[stage], product_warps);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  __syncthreads();  // the barriers are ready
  const int tile = static_cast<int>(blockIdx.y);
  if (tile >= *params.places.tile_count) return;
  const int expert = params.places.tile_experts[tile], blocks = params.shape.blocks();
  // Past the last granule a warp repeats it, for its warpgroup's sake, and stores nothing.
  const int granule = static_cast<int>(blockIdx.x) * product_warps + warp;
  const int real_granule = min(granule, params.shape.granules() - 1);
  const std::uint8_t* inputs =
      params.inputs + static_cast<std::size_t>(tile) * static_cast<std::size_t>(blocks) * block_bytes;
  const auto fetch = [&](int block) {
    const int stage = block % stages;
    ptx::mbarrier_arrive_expecting(&full[stage], block_bytes);
    ptx::bulk_copy_to_shared(ring + stage * block_bytes,
                             inputs + static_cast<std::size_t>(block) * block_bytes, block_bytes,
                             &full[stage]);
  };
  if (threadIdx.x == 0) {
    for (int block = 0; block < min(stages, blocks); ++block) fetch(block);
  }
  CodeStream stream{.granule = params.weights + (static_cast<std::size_t>(expert) *
                                                     static_cast<std::size_t>(params.shape.granules()) +
                                                 static_cast<std::size_t>(real_granule)) *
                                                    static_cast<std::size_t>(params.shape.granule_bytes()),
                    .blocks = blocks,
                    .lane = lane};
  uint4 words = make_uint4(0, 0, 0, 0);
  std::uint32_t even = 0, odd = 0;
  stream.load(words, even, odd);
  const std::uint32_t bias = *reinterpret_cast<const std::uint32_t*>(
      params.bias + static_cast<std::size_t>(expert) * static_cast<std::size_t>(params.shape.rows) +
      static_cast<std::size_t>(real_granule * granule_rows + lane / 4 * 2));

  float totals[64];
  int block = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < granule_k_chunks; ++chunk) {
    float sums[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[i] = 0;
#pragma unroll 1
    for (const int end = params.shape.chunk_begin(chunk + 1); block < end; ++block) {
      std::uint32_t a[4][4];
      decode_block(a, words, even, odd);
      stream.load(words, even, odd);
      const int stage = block % stages;
      ptx::mbarrier_wait(&full[stage], static_cast<std::uint32_t>(block / stages) & 1);
      __syncwarp();
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::wgmma_m64n128k16_bf16(sums, a[step][0], a[step][1], a[step][2], a[step][3],
                                   ptx::wgmma_operand<256>(ring + stage * block_bytes + step * step_bytes),
                                   true);
      }
      ptx::wgmma_commit();
      // The block before is read by both warpgroups soon after this one has been queued here.
      if (threadIdx.x == 0 && block > 0 && block - 1 + stages < blocks) {
        const int left = block - 1;
        ptx::mbarrier_wait(&empty[left % stages], static_cast<std::uint32_t>(left / stages) & 1);
        fetch(left + stages);
      }
      __syncwarp();
      ptx::wgmma_wait(sums);
      if (lane == 0) ptx::mbarrier_arrive(&empty[stage]);
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) totals[i] = chunk == 0 ? sums[i] : totals[i] + sums[i];
  }
  if (granule < params.shape.granules()) store_many(params, tile, granule, lane, totals, bias);
}

}  // namespace

Status moe_mxfp4_many_cuda(const MoeCudaWeights& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_moe_shapes(weights, args));
  if (args.tokens == 0) return {};
  const int experts = weights.gate_up.experts, slots = args.tokens * args.top_k;
  const int tiles = moe_many_tiles(slots, experts);
  const int x_blocks = weights.gate_up.shape.blocks(), h_blocks = weights.down.shape.blocks();
  const ManyPlaces places = places_in(args.workspace.many, tiles, x_blocks);
  launch_kernel({.blocks = dim3(1),
                 .threads = group_threads,
                 .shared_bytes = static_cast<std::size_t>(experts) * sizeof(std::int32_t),
                 .stream = stream,
                 .overlaps = true},
                moe_group_many, args.expert_ids, slots, experts, places);
  launch_kernel({.blocks = dim3(static_cast<unsigned>(x_blocks), static_cast<unsigned>(tiles)),
                 .threads = tile_tokens,
                 .stream = stream,
                 .overlaps = true},
                moe_gather_many, args.x, args.x_stride, args.top_k, places);
  constexpr int ring_bytes = stages * block_bytes;
  cuda_check(
      cudaFuncSetAttribute(sm90_mxfp4_moe_many, cudaFuncAttributeMaxDynamicSharedMemorySize, ring_bytes));
  for (const int second : {0, 1}) {
    const Mxfp4Granules& matrix = second ? weights.down : weights.gate_up;
    const int row_tiles = (matrix.shape.granules() + product_warps - 1) / product_warps;
    launch_kernel({.blocks = dim3(static_cast<unsigned>(row_tiles), static_cast<unsigned>(tiles)),
                   .threads = product_threads,
                   .shared_bytes = ring_bytes,
                   .stream = stream,
                   .overlaps = true},
                  sm90_mxfp4_moe_many,
                  ManyParams{.weights = matrix.data,
                             .bias = second ? weights.down_bias : weights.gate_up_bias,
                             .shape = matrix.shape,
                             .scale = __builtin_ldexpf(1.0f, matrix.exponent_shift),
                             .places = places,
                             .inputs = second ? places.h : places.x,
                             .second = second,
                             .h_blocks = h_blocks,
                             .products = args.workspace.products,
                             .swiglu_limit = weights.swiglu_limit});
  }
  if (args.out != nullptr) launch_moe_combine(args, weights.down.shape.rows, stream);
  return {};
}

}  // namespace nibble
