// linear for many tokens, with the bits of the path for few (dense_tiles.h has the order of additions).
//
// A block computes 128 rows x 128 tokens: a warpgroup each of two tiles of 64 rows, a warp that fetches. A
// k64 block of it is 2.1 MFLOP, 256 cycles of the tensor cores, and 32 KB from the second-level cache; its
// operands are read from shared memory at 96 of 128 bytes a cycle. The sums of a chunk and those of the
// chunks before it take 64 registers each, which is why a tile is no larger. Bound: 790 TFLOP/s; q, k and v
// of 8,192 tokens are 242 GFLOP, 306 us.
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int block_tiles = 2;  // of 64 rows, a warpgroup each
constexpr int block_tokens = 128;
constexpr int block_groups = block_tokens / token_group;
constexpr int product_warps = block_tiles * 4;
constexpr int many_threads = product_warps * 32 + 32;
constexpr int stages = 6;
constexpr int tokens_at = block_tiles * dense_block_bytes;  // in a stage
constexpr int stage_bytes = tokens_at + block_groups * token_block_bytes;
static_assert(block_groups + block_tiles <= 32, "a lane fetches each part of a stage");

template <class Output>
struct ManyParams {
  const std::uint8_t* weights;
  const std::uint8_t* x;
  DenseShape shape;
  int tokens;
  Output output;
};

// The fetching warp: a lane each group of 8 tokens and each tile of weights.
template <class Output>
__device__ __forceinline__ void fetch_blocks(const ManyParams<Output>& params, std::uint8_t* ring,
                                             std::uint64_t* full, std::uint64_t* empty, int first_tile,
                                             int first_group) {
  const int lane = static_cast<int>(threadIdx.x) % 32, blocks = params.shape.blocks();
  const int groups = min(block_groups, (params.tokens + token_group - 1) / token_group - first_group);
  const int tiles = min(block_tiles, params.shape.tiles() - first_tile);
  const bool weights = lane >= block_groups;
  const int part = weights ? lane - block_groups : lane;
  const bool mine = part < (weights ? tiles : groups);
  const std::uint32_t bytes = weights ? dense_block_bytes : token_block_bytes;
  const std::uint8_t* from =
      weights ? params.weights + static_cast<std::size_t>(first_tile + part) * params.shape.tile_bytes()
              : params.x + static_cast<std::size_t>(first_group + part) * static_cast<std::size_t>(blocks) *
                               token_block_bytes;
  std::uint8_t* to = ring + (weights ? part * dense_block_bytes : tokens_at + part * token_block_bytes);
  for (int block = 0; block < blocks; ++block) {
    const int stage = block % stages;
    if (block >= stages) {
      ptx::mbarrier_wait(&empty[stage], static_cast<std::uint32_t>(block / stages - 1) & 1);
    }
    if (lane == 0) {
      ptx::mbarrier_arrive_expecting(
          &full[stage], static_cast<std::uint32_t>(tiles * dense_block_bytes + groups * token_block_bytes));
    }
    __syncwarp();  // bytes are announced before any come
    if (mine) {
      ptx::bulk_copy_to_shared(to + stage * stage_bytes, from + static_cast<std::size_t>(block) * bytes,
                               bytes, &full[stage]);
    }
  }
}

template <class Output>
__global__ void __launch_bounds__(many_threads, 1)
    sm90_bf16_linear_many(const __grid_constant__ ManyParams<Output> params) {
  __shared__ std::uint64_t full[stages], empty[stages];
  std::uint8_t* const ring = ptx::dynamic_shared();
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(&full[stage], 1);
      ptx::mbarrier_init(&empty[stage], product_warps);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int first_tile = static_cast<int>(blockIdx.x) * block_tiles;
  const int first_token = static_cast<int>(blockIdx.y) * block_tokens;
  if (warp == product_warps) {
    fetch_blocks(params, ring, full, empty, first_tile, first_token / token_group);
    return;
  }
  const int part = warp / 4;
  float totals[64];
  int block = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < dense_k_chunks; ++chunk) {
    const int begin = block, end = params.shape.chunk_begin(chunk + 1);
    float sums[64];
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll 1
    for (; block < end; ++block) {
      const int stage = block % stages;
      ptx::mbarrier_wait(&full[stage], static_cast<std::uint32_t>(block / stages) & 1);
      __syncwarp();
      const std::uint8_t* const weights = ring + stage * stage_bytes + part * dense_block_bytes;
      const std::uint8_t* const tokens = ring + stage * stage_bytes + tokens_at;
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::wgmma_bf16(sums, ptx::wgmma_operand<256>(weights + step * dense_step_bytes),
                        ptx::wgmma_operand<token_block_bytes>(tokens + step * token_step_bytes), true);
      }
      ptx::wgmma_commit();
      // The stage before this one is left as soon as its products are done, while these are under way.
      ptx::wgmma_wait_but_last();
      if (block > begin && lane == 0) ptx::mbarrier_arrive(&empty[(block - 1) % stages]);
      __syncwarp();
    }
    ptx::wgmma_wait(sums);
    if (end > begin && lane == 0) ptx::mbarrier_arrive(&empty[(end - 1) % stages]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 64; ++i) totals[i] = chunk == 0 ? sums[i] : totals[i] + sums[i];
  }
  if (first_tile + part < params.shape.tiles())
    put_out<block_tokens>(params.output, first_tile + part, first_token, params.tokens, totals);
}

}  // namespace

template <class Output>
void run_many(const DenseRun& run, const Output& output, cudaStream_t stream) {
  constexpr int shared_bytes = stages * stage_bytes;
  const auto kernel = sm90_bf16_linear_many<Output>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  const int tiles = run.weight.shape.tiles();
  launch_kernel({.blocks = dim3(static_cast<unsigned>((tiles + block_tiles - 1) / block_tiles),
                                static_cast<unsigned>((run.x.tokens + block_tokens - 1) / block_tokens)),
                 .threads = many_threads,
                 .shared_bytes = shared_bytes,
                 .stream = stream,
                 .overlaps = true},
                kernel,
                ManyParams<Output>{.weights = run.weight.data,
                                   .x = run.x.data,
                                   .shape = run.weight.shape,
                                   .tokens = run.x.tokens,
                                   .output = output});
}

template void run_many(const DenseRun&, const RowsOutput&, cudaStream_t);
template void run_many(const DenseRun&, const QkvOutput&, cudaStream_t);

}  // namespace nibble
