// Bytes: 4 x hidden x (2 + what delta or the experts take) and 2 x hidden for each output: 40 KB a row of
// gpt-oss with delta, 75 after four experts, 8,192 rows 71 and 132 us at 4,650 GB/s. A block stays and takes
// every so many-th group of 8 rows, one row after the other; while it works on one, bulk copies bring the
// next, so that a multiprocessor has some 50 KB on their way. The group's tile leaves as a whole: in pieces
// of 16 bytes, which is what a row has of its lines, 8,192 rows of it take 50 us where their bytes need 10.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/rms_norm/cuda/norm_row.cuh"
#include "ops/rms_norm/cuda/stream_rms_norm.h"

namespace nibble {
namespace {

constexpr int stages = 2;
constexpr int most_choices = 32;
constexpr int shared_for_rows = 192 * 1024;

// A row and what is added to it: [1 + terms, hidden], terms being delta or the experts' products.
int terms_of(const AddRmsNormCudaArgs& args) {
  return args.experts.products != nullptr ? args.experts.top_k : args.delta != nullptr ? 1 : 0;
}
std::size_t stage_bytes(const AddRmsNormCudaArgs& args) {
  return static_cast<std::size_t>(1 + terms_of(args)) * static_cast<std::size_t>(args.hidden) * sizeof(float);
}
std::size_t shared_bytes(const AddRmsNormCudaArgs& args) {
  return stages * stage_bytes(args) + DenseShape{0, args.hidden}.token_bytes(token_group);
}
// Blocks of a multiprocessor; registers allow three.
int blocks_at_once(const AddRmsNormCudaArgs& args) {
  return std::min(3, static_cast<int>(shared_for_rows / shared_bytes(args)));
}

struct NormShared {
  float of_warp[norm_warps];
  std::uint64_t brought[stages];
  std::int32_t ids[most_choices];
  float weights[most_choices];
};

// What is added at eight columns; terms: the first one's.
template <bool of_experts>
__device__ __forceinline__ Eight sum_of_terms(const float* terms, int count, int hidden,
                                              const NormShared& shared) {
  if constexpr (of_experts) {
    ExpertSum<Eight> sum;
#pragma unroll 4
    for (int i = 0; i < count; ++i)
      sum.add_product(shared.ids[i], shared.weights[i], eight_of_shared(terms + i * hidden));
    return sum.sum;
  }
  return count > 0 ? eight_of_shared(terms) : Eight{};
}

// By one thread: a row's floats to a stage.
__device__ __forceinline__ void fetch_row(const AddRmsNormCudaArgs& args, const float* terms, int count,
                                          int row, float* stage, std::uint64_t* brought) {
  const std::size_t hidden = static_cast<std::size_t>(args.hidden), at = static_cast<std::size_t>(row);
  const std::uint32_t bytes = static_cast<std::uint32_t>(hidden * sizeof(float));
  const std::uint32_t term_bytes = static_cast<std::uint32_t>(count) * bytes;
  ptx::mbarrier_arrive_expecting(brought, bytes + term_bytes);
  ptx::bulk_copy_to_shared(stage, args.residual + at * hidden, bytes, brought);
  if (count > 0) {
    ptx::bulk_copy_once_to_shared(stage + hidden, terms + at * static_cast<std::size_t>(count) * hidden,
                                  term_bytes, brought);
  }
}

template <bool of_experts>
__global__ void __launch_bounds__(norm_threads, 3)
    stream_rms_norm(const __grid_constant__ AddRmsNormCudaArgs args) {
  __shared__ NormShared shared;
  // [stages, 1 + count, hidden], then the tile of a group of tokens
  float* const ring = reinterpret_cast<float*>(ptx::dynamic_shared());
  const int thread = static_cast<int>(threadIdx.x), first = thread * 8, hidden = args.hidden;
  const float* const terms = of_experts ? args.experts.products : args.delta;
  const int count = of_experts ? args.experts.top_k : args.delta != nullptr ? 1 : 0;
  const int stage_floats = (1 + count) * hidden;
  const bool stores_residual = count > 0 || args.residual_out != args.residual;
  const int blocks = DenseShape{0, hidden}.blocks();
  const int past = max(blocks * dense_k, args.out == nullptr ? 0 : args.out_stride);
  const int tile_columns = args.out_tiles == nullptr ? 0 : blocks * dense_k;
  std::uint8_t* const tile = reinterpret_cast<std::uint8_t*>(ring + stages * stage_floats);
  const int first_row = static_cast<int>(blockIdx.x) * token_group;
  const auto next_row = [](int row) {
    const int next = row + 1;
    return next % token_group != 0 ? next : next + (static_cast<int>(gridDim.x) - 1) * token_group;
  };
  if (thread == 0) {
    for (std::uint64_t& brought : shared.brought) ptx::mbarrier_init(&brought, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (thread == 0) {
    int row = first_row;
    for (int i = 0; i < stages && row < args.rows; ++i, row = next_row(row))
      fetch_row(args, terms, count, row, ring + i * stage_floats, &shared.brought[i]);
  }
  // The choices of the row that comes next, by the first threads.
  std::int32_t next_id = 0;
  float next_weight = 0;
  const auto look_ahead = [&](int row) {
    if (!of_experts || thread >= count || row >= args.rows) return;
    next_id = __ldcg(args.experts.expert_ids + row * count + thread);
    next_weight = __ldcg(args.experts.expert_weights + row * count + thread);
  };
  look_ahead(first_row);
  int stage = 0;
  unsigned phase = 0;
#pragma unroll 1
  for (int row = first_row; row < args.rows; row = next_row(row)) {
    float* const x = ring + stage * stage_floats;
    const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(hidden);
    if constexpr (of_experts) {
      if (thread < count) {
        shared.ids[thread] = next_id;
        shared.weights[thread] = next_weight;
      }
      __syncthreads();  // the row's choices are there
      look_ahead(next_row(row));
    }
    ptx::mbarrier_wait(&shared.brought[stage], phase);
    float own = 0;
#pragma unroll 1
    for (int column = first; column < hidden; column += norm_pass_columns) {
      Eight eight = eight_of_shared(x + column);
      if (count > 0) eight = add(eight, sum_of_terms<of_experts>(x + hidden + column, count, hidden, shared));
      store_eight(x + column, eight);
      own = squares(own, eight);
    }
    own = sum_of_warp(own);
    if (thread % 32 == 0) shared.of_warp[thread / 32] = own;
    if (thread == 0 && row % token_group == 0) ptx::await_bulk_reads();
    __syncthreads();  // every warp's sum is there, and the last group's tile has been read
    const float scale = norm_scale(shared.of_warp, hidden, args.eps);
    if (stores_residual) {
#pragma unroll 1
      for (int column = thread * 4; column < hidden; column += norm_threads * 4) {
        *reinterpret_cast<float4*>(args.residual_out + at + column) =
            *reinterpret_cast<const float4*>(x + column);
      }
    }
#pragma unroll 1
    for (int column = first; column < past; column += norm_pass_columns) {
      uint4 words = make_uint4(0, 0, 0, 0);
      if (column < hidden)
        words =
            scaled(eight_of_shared(x + column), scale, *reinterpret_cast<const uint4*>(args.weight + column),
                   centre_of(args.weight_less_one));
      if (args.out != nullptr && column < args.out_stride) {
        *reinterpret_cast<uint4*>(
            args.out + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.out_stride) + column) =
            words;
      }
      if (column < tile_columns)
        *reinterpret_cast<uint4*>(tile + token_offset(blocks, row % token_group, column)) = words;
    }
    const bool ends_group = (row + 1) % token_group == 0 || row + 1 == args.rows;
    if (ends_group) {
      for (int absent = row % token_group + 1; absent < token_group; ++absent) {
        for (int column = first; column < tile_columns; column += norm_pass_columns)
          *reinterpret_cast<uint4*>(tile + token_offset(blocks, absent, column)) = make_uint4(0, 0, 0, 0);
      }
    }
    ptx::fence_shared_writes();
    __syncthreads();  // the row has been read, and the group's tile is written
    if (thread == 0) {
      const int later = next_row(next_row(row));
      if (later < args.rows) fetch_row(args, terms, count, later, x, &shared.brought[stage]);
      if (ends_group && tile_columns > 0) {
        ptx::bulk_copy_to_global(args.out_tiles + token_offset(blocks, row / token_group * token_group, 0),
                                 tile, static_cast<std::uint32_t>(blocks * token_block_bytes));
      }
    }
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  if (thread == 0) ptx::await_bulk_copies();
}

}  // namespace

bool streams_norm(const AddRmsNormCudaArgs& args, int processors) {
  return args.rows >= token_group * processors && terms_of(args) <= most_choices && blocks_at_once(args) > 0;
}

void launch_streamed_norm(const AddRmsNormCudaArgs& args, int processors, cudaStream_t stream) {
  const auto kernel = args.experts.products != nullptr ? stream_rms_norm<true> : stream_rms_norm<false>;
  const std::size_t bytes = shared_bytes(args);
  const int groups = (args.rows + token_group - 1) / token_group;
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(groups, processors * blocks_at_once(args)))),
                 .threads = norm_threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true},
                kernel, args);
}

}  // namespace nibble
