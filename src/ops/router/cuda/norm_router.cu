// Norm, router and choice of experts for one row; more rows are norm_router_some.cu's.
//
// Each block has 16 experts and two of K's eight chunks: 32 blocks for the 128 experts of gpt-oss-120b. Of
// wide rows it has one chunk, as it must fit beside a block of the product ahead to come before its end. The
// norm each block makes itself, as that is sooner done than waiting for others. A warp multiplies a chunk.
// The chunks' sums go to memory, where the last block finds them as they come (absent.h), adds them in order
// and chooses.
//
// Bytes: a router of 737 KB for gpt-oss-120b, brought before the kernel ahead has ended, and 23 KB for a norm
// from the second-level cache. Latency is what counts: one trip to memory, the norm, a chain of 24 products,
// a trip there and back for the sums, the choice. So each block does all of its part once before the kernel
// ahead has ended, on whatever is in memory and storing nothing: code that a multiprocessor has to fetch
// takes two to three times as long.
#include <algorithm>
#include <string>
#include <type_traits>

#include "ops/cuda/absent.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/load.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/rms_norm/cuda/norm_row.cuh"
#include "ops/router/cuda/norm_router_cuda.h"
#include "ops/router/cuda/norm_router_some.h"
#include "ops/router/cuda/route_row.cuh"
#include "ops/router/cuda/route_sigmoid_row.cuh"

namespace nibble {
namespace {

constexpr int router_threads = norm_threads;
constexpr int part_experts = 16;
constexpr int part_step_bytes = part_experts * 16 * 2;  // of the router, for a k16 step
constexpr int most_passes = 2 * norm_passes;            // of a norm's columns
constexpr int most_columns = most_passes * norm_pass_columns;
// Of rows that take so many passes.
template <int passes>
constexpr bool wide = passes > norm_passes;
constexpr bool is_wide(const DenseShape& router) { return router.cols > norm_passes * norm_pass_columns; }
NIBBLE_HOST_DEVICE constexpr int part_chunks(bool of_wide) { return of_wide ? 1 : 2; }

// Which of its tile's four granules of 16 operand rows a part is, and which of K's steps it multiplies.
struct Part {
  int tile, granule;  // its experts: 8 x granule + 0..7 of the tile, and those 32 further on
  int chunk;          // the first of its chunks
  int step, steps;    // k16 steps

  __device__ Part(const DenseShape& shape, int index, int chunks) {
    const int parts_of_k = dense_k_chunks / chunks, experts = index / parts_of_k;
    tile = experts / 4;
    granule = experts % 4;
    chunk = index % parts_of_k * chunks;
    step = 4 * shape.chunk_begin(chunk);
    steps = 4 * shape.chunk_begin(chunk + chunks) - step;
  }
};

constexpr int parts_of(const DenseShape& router) {
  return router.tiles() * 4 * (dense_k_chunks / part_chunks(is_wide(router)));
}

// Shared memory beyond what the kernel declares.
struct Places {
  std::uint8_t* weights;  // [steps, part_step_bytes], of the router
  float* residual;        // [hidden]
  Bf16* norm_weights;     // [hidden]; of wide rows none
  Bf16* norm;             // [steps * 16], the part's columns
  float* logits;          // [experts]
  float* bias;            // [experts]; of a choice by sigmoids that which is added for the choice
  float* choices;         // [experts], SigmoidRow's

  __device__ Places(std::uint8_t* from, const DenseShape& router, int steps, bool of_wide) {
    weights = from;
    residual = reinterpret_cast<float*>(weights + steps * part_step_bytes);
    norm_weights = reinterpret_cast<Bf16*>(residual + router.cols);
    norm = norm_weights + (of_wide ? 0 : router.cols);
    logits = reinterpret_cast<float*>(norm + steps * 16);
    bias = logits + router.rows;
    choices = bias + router.rows;
  }
  static constexpr int bytes(const DenseShape& router, int steps) {
    return steps * (part_step_bytes + 16 * 2) + router.cols * (is_wide(router) ? 4 : 4 + 2) +
           router.rows * (4 + 4 + 4);
  }
};

__device__ __forceinline__ int column_of(int thread, int pass) {
  return thread * 8 + pass * norm_pass_columns;
}

// The norm's weights of a thread's columns, where registers hold them.
template <int passes>
struct HeldWeights {
  uint4 of_pass[passes] = {};

  __device__ __forceinline__ explicit HeldWeights(const NormRouterCudaArgs& args) {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int column = column_of(static_cast<int>(threadIdx.x), pass);
      if (column < args.router.shape.cols)
        of_pass[pass] = *reinterpret_cast<const uint4*>(args.norm_weight + column);
    }
  }
  __device__ __forceinline__ uint4 at(int pass, const Bf16*) const { return of_pass[pass]; }
};
// And where shared memory does.
struct PlacedWeights {
  __device__ __forceinline__ explicit PlacedWeights(const NormRouterCudaArgs&) {}
  __device__ __forceinline__ uint4 at(int, const Bf16* placed) const {
    return *reinterpret_cast<const uint4*>(placed);
  }
};

// What no kernel writes: the part's weights, a k16 step's 512 bytes after the other's; the norm's weights of
// this thread's columns, but of wide rows; the bias of the experts whose sums it adds, or which warp 0
// chooses from.
template <int passes>
__device__ __forceinline__ void fetch_weights(const NormRouterCudaArgs& args, const Part& part,
                                              const Places& places) {
  const int thread = static_cast<int>(threadIdx.x);
  const DenseTiles& router = args.router;
  const std::uint8_t* const from = router.data +
                                   static_cast<std::size_t>(part.tile) * router.shape.tile_bytes() +
                                   part.granule * part_step_bytes;
  for (int i = thread; i < part.steps * (part_step_bytes / 16); i += router_threads) {
    const int step = i / (part_step_bytes / 16), piece = i % (part_step_bytes / 16);
    ptx::copy_to_shared(places.weights + i * 16,
                        from + static_cast<std::size_t>(part.step + step) * dense_step_bytes + piece * 16);
  }
  if constexpr (!wide<passes>) {
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      const int column = column_of(thread, pass);
      if (column < router.shape.cols)
        ptx::copy_to_shared(places.norm_weights + column, args.norm_weight + column);
    }
  }
  const float* const added = args.sigmoid ? args.sigmoid->bias : nullptr;
  for (int expert = thread; expert < router.shape.rows; expert += router_threads) {
    if (args.router_bias != nullptr) places.bias[expert] = args.router_bias[expert].to_float();
    if (added != nullptr) places.bias[expert] = added[expert];
  }
}

// The row's norm: its part's columns to shared memory; the thread's columns to memory, and the new residual,
// if `stores`. All that has been asked for is there afterwards, for the thread that asked.
template <int passes, class Weights>
__device__ __forceinline__ void norm_row(const NormRouterCudaArgs& args, const Part& part,
                                         const Places& places, const Weights& weights, bool stores,
                                         float (&of_warp)[norm_warps]) {
  const int thread = ptx::held(static_cast<int>(threadIdx.x));
  const int hidden = args.router.shape.cols, padded = args.router.shape.padded_cols();
  const int begin = part.step * 16, end = begin + part.steps * 16;
  Eight eight[passes] = {};  // the delta, then the new residual
  // One of both by way of shared memory: there are no registers for all.
#pragma unroll
  for (int pass = 0; pass < passes; ++pass) {
    const int column = column_of(thread, pass);
    if (column >= hidden) continue;
    ptx::copy_to_shared(places.residual + column, args.residual + column);
    ptx::copy_to_shared(places.residual + column + 4, args.residual + column + 4);
    eight[pass] = load_eight(args.delta + column);
  }
  ptx::await_copies_to_shared();
  float own = 0;
#pragma unroll
  for (int pass = 0; pass < passes; ++pass) {
    const int column = column_of(thread, pass);
    if (column >= hidden) continue;
    eight[pass] = add(eight_of_shared(places.residual + column), eight[pass]);
    own = squares(own, eight[pass]);
  }
  own = sum_of_warp(own);
  if (thread % 32 == 0) of_warp[thread / 32] = own;
  __syncthreads();  // every warp's sum is there
  const float scale = norm_scale(of_warp, hidden, args.eps);
#pragma unroll
  for (int pass = 0; pass < passes; ++pass) {
    const int column = column_of(thread, pass);
    if (column >= padded) continue;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (column < hidden) {
      words = scaled(eight[pass], scale, weights.at(pass, places.norm_weights + column),
                     centre_of(args.weight_less_one));
    }
    if (column >= begin && column < end) *reinterpret_cast<uint4*>(places.norm + column - begin) = words;
    if (!stores) continue;
    *reinterpret_cast<uint4*>(args.norm + column) = words;
    if (args.norm_tiles != nullptr)
      *reinterpret_cast<uint4*>(args.norm_tiles + token_offset(0, 0, column)) = words;
    if (column < hidden) store_eight(args.residual_out + column, eight[pass]);
  }
}

// A warp's chunk: sums of 16 experts, of which lane (g, t) gets experts g and g + 8 in sums 0 and 2. All
// eight columns of a product are the one row.
__device__ __forceinline__ void multiply_chunk(float (&sums)[4], const DenseShape& shape, const Part& part,
                                               int chunk, const std::uint8_t* weights, const Bf16* norm,
                                               int lane) {
  const int matrix = lane / 8, row = lane % 8;
  const int first = 4 * shape.chunk_begin(chunk) - part.step,
            past = 4 * shape.chunk_begin(chunk + 1) - part.step;
  // Groups of 8 operand rows lie 256 bytes apart, their halves of K 128.
  const std::uint8_t* a_row =
      weights + first * part_step_bytes + matrix % 2 * 256 + matrix / 2 * 128 + row * 16;
  const Bf16* b_row = norm + first * 16 + matrix * 8;
#pragma unroll 4
  for (int step = first; step < past; step += 2) {  // whole k64 blocks
    std::uint32_t a[2][4], b[4];
    ptx::load_matrices(a[0][0], a[0][1], a[0][2], a[0][3], a_row);
    ptx::load_matrices(a[1][0], a[1][1], a[1][2], a[1][3], a_row + part_step_bytes);
    ptx::load_matrices(b[0], b[1], b[2], b[3], b_row);
    ptx::mma_m16n8k16_bf16(sums, a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
    ptx::mma_m16n8k16_bf16(sums, a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
    a_row += 2 * part_step_bytes;
    b_row += 2 * 16;
  }
}

// The chunks' sums in order and the bias, a thread an expert. Without real ones it looks once.
__device__ __forceinline__ void add_sums(const NormRouterCudaArgs& args, const Places& places, int thread,
                                         bool real) {
  const int experts = args.router.shape.rows;
#pragma unroll 1
  for (int expert = thread; expert < experts; expert += router_threads) {
    const float* const sums = args.workspace.sums + expert;
    float of_chunk[dense_k_chunks];
    bool all_there = false;
    for (unsigned polls = 0; !all_there; ++polls) {
      if (polls == ptx::give_up_polls) ptx::give_up(args.workspace.stuck, Stuck::router_sums);
#pragma unroll
      for (int chunk = 0; chunk < dense_k_chunks; ++chunk)
        of_chunk[chunk] = ptx::load_relaxed(sums + chunk * experts);
      all_there = true;
#pragma unroll
      for (int chunk = 0; chunk < dense_k_chunks; ++chunk)
        all_there = all_there && !is_absent(of_chunk[chunk]);
      all_there = all_there || !real;
    }
    float total = of_chunk[0];
#pragma unroll
    for (int chunk = 1; chunk < dense_k_chunks; ++chunk) total = total + of_chunk[chunk];
    places.logits[expert] = args.router_bias == nullptr ? total : total + places.bias[expert];
  }
}

// 40 registers are enough for two passes and a softmax. A block of the expert layer, whose 18 warps have 96,
// finds no room beside one of these: a quarter of a multiprocessor's 65,536 does not hold five such warps and
// two of these, as it would with 80.
template <int passes, bool by_sigmoid>
__global__ void __launch_bounds__(router_threads, wide<passes> || by_sigmoid ? 3 : 6)
    norm_router(const __grid_constant__ NormRouterCudaArgs args) {
  __shared__ float of_warp[norm_warps];
  const DenseShape& shape = args.router.shape;
  const int block = static_cast<int>(blockIdx.x), last = static_cast<int>(gridDim.x) - 1;
  const int warp = ptx::warp_of_block();
  constexpr int chunks = part_chunks(wide<passes>);
  const Part fetched(shape, block, chunks);
  ptx::grid_launch_dependents();
  fetch_weights<passes>(args, fetched, Places(ptx::dynamic_shared(), shape, fetched.steps, wide<passes>));
  const std::conditional_t<wide<passes>, HeldWeights<passes>, PlacedWeights> norm_weights(args);
  // First to rehearse, then with what the kernel ahead has left; so both times must be the same code. What
  // some warps still read of the rehearsal others write again behind the next barrier or the one after.
#pragma unroll 1
  for (int rehearsal = 1; rehearsal >= 0; --rehearsal) {
    const bool real = rehearsal == 0;
    // Anew each time: there are no registers to keep what follows from these.
    const int thread = ptx::held(static_cast<int>(threadIdx.x)), lane = thread % 32;
    const Part part(shape, ptx::held(block), chunks);
    const Places places(ptx::dynamic_shared(), shape, part.steps, wide<passes>);
    if (real) ptx::grid_dependency_wait();
    // Asked for early, as it is far away.
    const std::int32_t rows = args.row_limit == nullptr ? 1 : __ldcg(args.row_limit);
    // The first blocks store a warp's columns each.
    norm_row<passes>(args, part, places, norm_weights, real && warp == block, of_warp);
    __syncthreads();  // weights and norm are there
    if (warp < chunks) {
      float of_chunk[4] = {0, 0, 0, 0};
      multiply_chunk(of_chunk, shape, part, part.chunk + warp, places.weights, places.norm, lane);
      const int expert = part.tile * dense_tile_rows + part.granule * 8 + lane / 4;
      float* const sums = args.workspace.sums + (part.chunk + warp) * shape.rows;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (real && lane % 4 == 0 && expert + half * 32 < shape.rows)
          ptx::store_relaxed(sums + expert + half * 32, but_absent(of_chunk[2 * half]));
      }
    }
    // The last block adds and chooses: it waits for blocks that have their places before it.
    if (block == last) {
      add_sums(args, places, thread, real);
      __syncthreads();  // each thread's logits are there
      if (warp == 0) {
        if (real && rows <= 0) {
          if (lane < args.top_k) args.expert_ids[lane] = no_expert;
        } else if constexpr (by_sigmoid) {
          SigmoidRule rule = *args.sigmoid;
          if (rule.bias != nullptr) rule.bias = places.bias;
          route_sigmoid_row(rule, {places.logits, places.choices, shape.rows, args.top_k}, args.expert_ids,
                            args.expert_weights, real);
        } else {
          route_row(places.logits, {shape.rows, args.top_k, args.of_all}, args.expert_ids,
                    args.expert_weights, real);
        }
      } else if (real) {  // the sums make place for the next launch's
        for (int i = thread - 32; i < dense_k_chunks * shape.rows; i += router_threads - 32)
          ptx::store_relaxed(args.workspace.sums + i, absent_word());
      }
    }
  }
}

// Of the part with the most steps.
std::size_t shared_bytes(const DenseShape& router) {
  int blocks = 0;
  const int chunks = part_chunks(is_wide(router));
  for (int chunk = 0; chunk < dense_k_chunks; chunk += chunks)
    blocks = std::max(blocks, router.chunk_begin(chunk + chunks) - router.chunk_begin(chunk));
  return static_cast<std::size_t>(Places::bytes(router, 4 * blocks));
}

}  // namespace

bool norm_router_takes(const DenseShape& router, int rows) {
  constexpr std::size_t most_shared = 112 * 1024;  // two blocks of a multiprocessor have room
  return rows <= norm_router_max_rows && router.cols <= most_columns && router.cols % 8 == 0 &&
         shared_bytes(router) <= most_shared && (rows <= 1 || norm_router_some_takes(router));
}

Status norm_router_cuda(const NormRouterCudaArgs& args, cudaStream_t stream) {
  const DenseShape& shape = args.router.shape;
  if (!norm_router_takes(shape, args.rows)) {
    return invalid_argument("norm and router in one take up to " + std::to_string(norm_router_max_rows) +
                            " rows and a router of which a block has room for its part, not " +
                            std::to_string(args.rows) + " rows of " + std::to_string(shape.cols) +
                            " columns");
  }
  if (args.top_k < 1 || args.top_k > 32 || args.top_k > shape.rows) {
    return invalid_argument("a top-k from 1 to 32 and at most the number of experts is supported, not " +
                            std::to_string(args.top_k) + " of " + std::to_string(shape.rows));
  }
  if (args.sigmoid) {
    NIBBLE_RETURN_IF_ERROR(check_sigmoid_rule(*args.sigmoid, shape.rows, args.top_k));
    if (args.router_bias != nullptr)
      return invalid_argument("a choice by sigmoids has no bias of the logits beside its own");
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
  const bool of_wide = is_wide(shape);
  const auto kernel = args.sigmoid
                          ? (of_wide ? norm_router<most_passes, true> : norm_router<norm_passes, true>)
                      : of_wide ? norm_router<most_passes, false>
                                : norm_router<norm_passes, false>;
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(parts_of(shape))),
                 .threads = router_threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                kernel, args);
  return {};
}

}  // namespace nibble
