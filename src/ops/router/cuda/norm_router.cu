// Norm, router and choice of experts for one row; more rows are norm_router_some.cu's.
//
// Each block has 16 experts and two of K's eight chunks: 32 blocks for the 128 experts of gpt-oss-120b. The
// norm each block makes itself, as that is sooner done than waiting for others. A warp multiplies a chunk.
// The chunks' sums go to memory, where the last block finds them as they come (absent.h), adds them in order
// and chooses.
//
// Bytes: a router of 737 KB for gpt-oss-120b, brought before the kernel ahead has ended, and 23 KB for a norm
// from the second-level cache. Latency is what counts: one trip to memory, the norm, a chain of 24 products,
// a trip there and back for the sums, the choice. Multiprocessors without a part rehearse, as in
// add_rms_norm.cu.
#include <algorithm>
#include <string>

#include "ops/cuda/absent.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/load.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/rms_norm/cuda/norm_row.cuh"
#include "ops/router/cuda/norm_router_cuda.h"
#include "ops/router/cuda/norm_router_some.h"
#include "ops/router/cuda/route_row.cuh"

namespace nibble {
namespace {

constexpr int router_threads = norm_threads;
constexpr int part_experts = 16;
constexpr int part_chunks = 2;
constexpr int parts_of_k = dense_k_chunks / part_chunks;
constexpr int part_step_bytes = part_experts * 16 * 2;  // of the router, for a k16 step
constexpr int experts_at_once = 4;  // of a lane, whose chunks' sums are under way together
constexpr int passes_at_once = 2;   // of a norm, whose loads are under way together

// Which of its tile's four granules of 16 operand rows a part is, and which of K's steps it multiplies.
struct Part {
  int tile, granule;  // its experts: 8 x granule + 0..7 of the tile, and those 32 further on
  int chunk;          // the first of its chunks
  int step, steps;    // k16 steps

  __device__ Part(const DenseShape& shape, int index) {
    const int experts = index / parts_of_k;
    tile = experts / 4;
    granule = experts % 4;
    chunk = index % parts_of_k * part_chunks;
    step = 4 * shape.chunk_begin(chunk);
    steps = 4 * shape.chunk_begin(chunk + part_chunks) - step;
  }
};

NIBBLE_HOST_DEVICE constexpr int parts_of(const DenseShape& router) {
  return router.tiles() * 4 * parts_of_k;
}

struct RouterShared {
  float of_warp[norm_warps];
  // What a rehearsal chooses.
  std::int32_t nobodys_ids[32];
  float nobodys_weights[32];
};

// The part's weights, a k16 step's 512 bytes after the other's.
__device__ __forceinline__ void fetch_router(const DenseTiles& router, const Part& part,
                                             std::uint8_t* shared) {
  const std::uint8_t* const from = router.data +
                                   static_cast<std::size_t>(part.tile) * router.shape.tile_bytes() +
                                   part.granule * part_step_bytes;
  for (int i = static_cast<int>(threadIdx.x); i < part.steps * (part_step_bytes / 16); i += router_threads) {
    const int step = i / (part_step_bytes / 16), piece = i % (part_step_bytes / 16);
    ptx::copy_to_shared(shared + i * 16,
                        from + static_cast<std::size_t>(part.step + step) * dense_step_bytes + piece * 16);
  }
}

// The norm's weights of this thread's columns.
struct NormWeights {
  uint4 of_pass[passes_at_once] = {};

  __device__ __forceinline__ NormWeights(const Bf16* weights, int hidden) {
#pragma unroll
    for (int pass = 0; pass < passes_at_once; ++pass) {
      const int column = static_cast<int>(threadIdx.x) * 8 + pass * norm_pass_columns;
      if (column < hidden) of_pass[pass] = *reinterpret_cast<const uint4*>(weights + column);
    }
  }
};

// The row's norm: its part's columns to shared memory as operands, the first row of 8; all columns to memory,
// and the new residual, if `stores`.
__device__ __forceinline__ void norm_row(const NormRouterCudaArgs& args, const NormWeights& weights,
                                         const Part& part, std::uint8_t* operands, bool stores,
                                         RouterShared& shared) {
  const int hidden = args.router.shape.cols, padded = args.router.shape.padded_cols();
  const int first = static_cast<int>(threadIdx.x) * 8;
  const int begin = part.step * 16, end = begin + part.steps * 16;
  Eight eight[passes_at_once] = {}, delta[passes_at_once] = {};
#pragma unroll
  for (int pass = 0; pass < passes_at_once; ++pass) {
    const int column = first + pass * norm_pass_columns;
    if (column >= hidden) continue;
    eight[pass] = load_eight(args.residual + column);
    delta[pass] = load_eight(args.delta + column);
  }
  float own = 0;
#pragma unroll
  for (int pass = 0; pass < passes_at_once; ++pass) {
    if (first + pass * norm_pass_columns >= hidden) continue;
    eight[pass] = add(eight[pass], delta[pass]);
    own = squares(own, eight[pass]);
  }
  own = sum_of_warp(own);
  if (threadIdx.x % 32 == 0) shared.of_warp[threadIdx.x / 32] = own;
  __syncthreads();  // every warp's sum is there
  const float scale = norm_scale(shared.of_warp, hidden, args.eps);
#pragma unroll
  for (int pass = 0; pass < passes_at_once; ++pass) {
    const int column = first + pass * norm_pass_columns;
    if (column >= padded) continue;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (column < hidden) words = scaled(eight[pass], scale, weights.of_pass[pass]);
    if (column >= begin && column < end)
      *reinterpret_cast<uint4*>(operands + token_offset(0, 0, column - begin)) = words;
    if (!stores) continue;
    *reinterpret_cast<uint4*>(args.norm + column) = words;
    if (column < hidden) store_eight(args.residual_out + column, eight[pass]);
  }
}

// A warp's chunk: sums of 16 experts, of which lane (g, 0) gets experts g and g + 8 of the row in sums 0 and
// 2; the others are of no row.
__device__ __forceinline__ void multiply_chunk(float (&sums)[4], const DenseShape& shape, const Part& part,
                                               int chunk, const std::uint8_t* weights,
                                               const std::uint8_t* operands) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
  const int first = 4 * shape.chunk_begin(chunk) - part.step,
            past = 4 * shape.chunk_begin(chunk + 1) - part.step;
  // Groups of 8 operand rows lie 256 bytes apart, their halves of K 128.
  const std::uint8_t* a_row =
      weights + first * part_step_bytes + matrix % 2 * 256 + matrix / 2 * 128 + row * 16;
  const std::uint8_t* b_row = operands + first * token_step_bytes + matrix * 128 + row * 16;
#pragma unroll 4
  for (int step = first; step < past; step += 2) {  // whole k64 blocks
    std::uint32_t a[2][4], b[4];
    ptx::load_matrices(a[0][0], a[0][1], a[0][2], a[0][3], a_row);
    ptx::load_matrices(a[1][0], a[1][1], a[1][2], a[1][3], a_row + part_step_bytes);
    ptx::load_matrices(b[0], b[1], b[2], b[3], b_row);
    ptx::mma_m16n8k16_bf16(sums, a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
    ptx::mma_m16n8k16_bf16(sums, a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
    a_row += 2 * part_step_bytes;
    b_row += 2 * token_step_bytes;
  }
}

// By one warp: the chunks' sums in order and the bias, to `logits`. Without real ones it looks once.
__device__ __forceinline__ void add_sums(const NormRouterCudaArgs& args, bool real, float* logits) {
  const int experts = args.router.shape.rows, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int base = 0; base < experts; base += experts_at_once * 32) {
    const int first = base + lane;
    float of_chunk[experts_at_once][dense_k_chunks];
    Bf16 bias[experts_at_once] = {};
    const auto place = [&](int i, int chunk) {
      return args.workspace.sums + chunk * experts + min(first + 32 * i, experts - 1);
    };
#pragma unroll
    for (int i = 0; i < experts_at_once; ++i) {
      if (args.router_bias != nullptr) bias[i] = args.router_bias[min(first + 32 * i, experts - 1)];
    }
    bool all_there = false;
    for (unsigned polls = 0; !all_there; ++polls) {
      if (polls == absent_give_up) __trap();
#pragma unroll
      for (int i = 0; i < experts_at_once; ++i) {
#pragma unroll
        for (int chunk = 0; chunk < dense_k_chunks; ++chunk)
          of_chunk[i][chunk] = ptx::load_relaxed(place(i, chunk));
      }
      all_there = true;
#pragma unroll
      for (int i = 0; i < experts_at_once; ++i) {
#pragma unroll
        for (int chunk = 0; chunk < dense_k_chunks; ++chunk)
          all_there = all_there && !is_absent(of_chunk[i][chunk]);
      }
      all_there = all_there || !real;
    }
    __syncwarp();  // lanes share places past the last expert
#pragma unroll
    for (int i = 0; i < experts_at_once; ++i) {
      float total = of_chunk[i][0];
#pragma unroll
      for (int chunk = 0; chunk < dense_k_chunks; ++chunk) {
        if (chunk > 0) total = total + of_chunk[i][chunk];
        if (real) ptx::store_relaxed(place(i, chunk), absent_word());
      }
      if (args.router_bias != nullptr)
        total = total + __uint_as_float(static_cast<std::uint32_t>(bias[i].bits) << 16);
      if (first + 32 * i < experts) logits[first + 32 * i] = total;
    }
  }
  __syncwarp();  // each lane's logits are there
}

__global__ void __launch_bounds__(router_threads)
    norm_router(const __grid_constant__ NormRouterCudaArgs args) {
  __shared__ RouterShared shared;
  const DenseShape& shape = args.router.shape;
  const int parts = parts_of(shape), block = static_cast<int>(blockIdx.x);
  const bool real = block < parts;  // or it rehearses
  const Part part(shape, block % parts);
  // [steps, 512], then operands [steps, 256], then logits [experts]
  std::uint8_t* const weights = ptx::dynamic_shared();
  std::uint8_t* const operands = weights + part.steps * part_step_bytes;
  float* const logits = reinterpret_cast<float*>(operands + part.steps * token_step_bytes);
  ptx::grid_launch_dependents();
  if (real) fetch_router(args.router, part, weights);
  const NormWeights norm_weights(args.norm_weight, shape.cols);
  if (real) ptx::grid_dependency_wait();
  norm_row(args, norm_weights, part, operands, real && block == 0, shared);
  ptx::await_copies_to_shared();
  __syncthreads();  // weights and operands are there
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  if (warp < part_chunks) {
    float of_chunk[4] = {0, 0, 0, 0};
    multiply_chunk(of_chunk, shape, part, part.chunk + warp, weights, operands);
    const int expert = part.tile * dense_tile_rows + part.granule * 8 + lane / 4;
    float* const sums = args.workspace.sums + (part.chunk + warp) * shape.rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (real && lane % 4 == 0 && expert + half * 32 < shape.rows)
        ptx::store_relaxed(sums + expert + half * 32, but_absent(of_chunk[2 * half]));
    }
  }
  // The last block adds and chooses: it waits for blocks that have their places before it.
  if ((real && block != parts - 1) || warp > 0) return;
  add_sums(args, real, logits);
  if (real && args.row_limit != nullptr && *args.row_limit <= 0) {
    if (lane < args.top_k) args.expert_ids[lane] = no_expert;
    return;
  }
  route_row(logits, shape.rows, args.top_k, real ? args.expert_ids : shared.nobodys_ids,
            real ? args.expert_weights : shared.nobodys_weights);
}

// Of the part with the most steps.
std::size_t shared_bytes(const DenseShape& router) {
  int blocks = 0;
  for (int chunk = 0; chunk < dense_k_chunks; chunk += part_chunks)
    blocks = std::max(blocks, router.chunk_begin(chunk + part_chunks) - router.chunk_begin(chunk));
  return static_cast<std::size_t>(4 * blocks * (part_step_bytes + token_step_bytes) + router.rows * 4);
}

}  // namespace

void clear_norm_router_workspace(const NormRouterCudaWorkspace& workspace, int experts, cudaStream_t stream) {
  static_assert(absent_bits == 0xffffffffu, "every byte of it is the same");
  cuda_check(cudaMemsetAsync(workspace.sums, 0xff, norm_router_sums(experts) * sizeof(float), stream));
}

bool norm_router_takes(const DenseShape& router, int rows) {
  constexpr std::size_t most_shared = 112 * 1024;  // two blocks of a multiprocessor have room
  return rows <= norm_router_max_rows && router.cols <= passes_at_once * norm_pass_columns &&
         router.cols % 8 == 0 && shared_bytes(router) <= most_shared &&
         (rows <= 1 || norm_router_some_takes(router));
}

Status norm_router_cuda(const NormRouterCudaArgs& args, cudaStream_t stream) {
  const DenseShape& shape = args.router.shape;
  if (!norm_router_takes(shape, args.rows)) {
    return invalid_argument("norm and router in one take up to " + std::to_string(norm_router_max_rows) +
                            " rows of at most " + std::to_string(passes_at_once * norm_pass_columns) +
                            " columns, not " + std::to_string(args.rows) + " of " +
                            std::to_string(shape.cols));
  }
  if (args.top_k < 1 || args.top_k > 32 || args.top_k > shape.rows) {
    return invalid_argument("a top-k from 1 to 32 and at most the number of experts is supported, not " +
                            std::to_string(args.top_k) + " of " + std::to_string(shape.rows));
  }
  if (args.norm_stride < shape.padded_cols() || args.norm_stride % 8 != 0) {
    return invalid_argument("a norm of " + std::to_string(shape.cols) + " columns needs a stride of " +
                            std::to_string(shape.padded_cols()) + ", not " +
                            std::to_string(args.norm_stride));
  }
  if (args.residual_out == args.residual)
    return invalid_argument(
        "the blocks of a norm with its router read the residual that one of them would overwrite");
  if (args.rows == 0) return {};
  if (args.rows > 1) {
    launch_norm_router_some(args, stream);
    return {};
  }
  const std::size_t bytes = shared_bytes(shape);
  cuda_check(cudaFuncSetAttribute(norm_router, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::max(parts_of(shape), processors_of_device()))),
                 .threads = router_threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true},
                norm_router, args);
  return {};
}

}  // namespace nibble
