// A block a row; few rows after experts are cluster_rms_norm.cu's, many stream_rms_norm.cu's. Bytes: 4 x
// hidden x (3 + what delta or the experts take) and 2 x hidden for each output, 60 KB a row of gpt-oss; for
// few rows only the latency counts: one trip to memory, for which all loads are under way at once (four
// experts' products without looking first which there are), and the row stays in shared memory, where each
// thread reads back what it wrote itself.
//
// A row's block runs on any multiprocessor, mostly not on the one of the layer before, and fetching code that
// a multiprocessor does not have takes three times as long as running it. So all of them have a block: those
// without a row rehearse, on whatever is in memory before the kernel ahead has ended, and store nothing.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/grid.cuh"
#include "ops/rms_norm/cuda/cluster_rms_norm.h"
#include "ops/rms_norm/cuda/norm_row.cuh"
#include "ops/rms_norm/cuda/stream_rms_norm.h"

namespace nibble {
namespace {

// What a row's experts add at norm_passes times eight columns, those from `column` on.
__device__ __forceinline__ void expert_sums(Eight (&sums)[norm_passes], const ExpertParts& experts, int row,
                                            int hidden, int column) {
  ExpertSum<Eight> of_pass[norm_passes];
#pragma unroll 1
  for (int first = 0; first < experts.top_k; first += choices_at_once) {
    Eight products[choices_at_once][norm_passes];
    std::int32_t ids[choices_at_once];
    float weights[choices_at_once];
#pragma unroll
    for (int i = 0; i < choices_at_once; ++i) {
      const int slot = row * experts.top_k + first + i;
      ids[i] = -1;
      if (first + i >= experts.top_k) continue;
      ids[i] = __ldcg(experts.expert_ids + slot);
      weights[i] = __ldcg(experts.expert_weights + slot);
      const float* const of_slot =
          experts.products + static_cast<std::size_t>(slot) * static_cast<std::size_t>(hidden);
#pragma unroll
      for (int pass = 0; pass < norm_passes; ++pass) {
        const int at = column + pass * norm_pass_columns;
        if (at < hidden) products[i][pass] = load_eight(of_slot + at);
      }
    }
#pragma unroll
    for (int i = 0; i < choices_at_once; ++i) {
#pragma unroll
      for (int pass = 0; pass < norm_passes; ++pass)
        of_pass[pass].add_product(ids[i], weights[i], products[i][pass]);
    }
  }
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) sums[pass] = of_pass[pass].sum;
}

// Without experts it takes half of the registers, and so two to three rows a multiprocessor.
template <bool of_experts>
__global__ void __launch_bounds__(norm_threads, of_experts ? 1 : 3)
    add_rms_norm_rows(const __grid_constant__ AddRmsNormCudaArgs args) {
  float* const x = reinterpret_cast<float*>(ptx::dynamic_shared());  // [hidden]
  __shared__ float of_warp[norm_warps];
  ptx::grid_launch_dependents();
  const bool real = static_cast<int>(blockIdx.x) < args.rows;  // or it rehearses
  const int row = real ? static_cast<int>(blockIdx.x) : 0, first = static_cast<int>(threadIdx.x) * 8;
  const int hidden = args.hidden;
  const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(hidden);
  const bool adds = of_experts || args.delta != nullptr;
  const bool stores_residual = adds || args.residual_out != args.residual;
  const int blocks = DenseShape{0, hidden}.blocks();
  const int past = max(blocks * dense_k, args.out == nullptr ? 0 : args.out_stride);
  uint4 weights[norm_passes] = {};  // of the first columns
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) {
    const int column = first + pass * norm_pass_columns;
    if (column < hidden) weights[pass] = *reinterpret_cast<const uint4*>(args.weight + column);
  }
  if (real) ptx::grid_dependency_wait();
  float own = 0;
#pragma unroll 1
  for (int column = first; column < hidden; column += norm_passes * norm_pass_columns) {
    Eight eight[norm_passes], more[norm_passes] = {};
#pragma unroll
    for (int pass = 0; pass < norm_passes; ++pass) {
      const int here = column + pass * norm_pass_columns;
      if (here >= hidden) continue;
      eight[pass] = load_eight(args.residual + at + here);
      if (args.delta != nullptr) more[pass] = load_eight(args.delta + at + here);
    }
    if constexpr (of_experts) expert_sums(more, args.experts, row, hidden, column);
#pragma unroll
    for (int pass = 0; pass < norm_passes; ++pass) {
      const int here = column + pass * norm_pass_columns;
      if (here >= hidden) continue;
      if (adds) eight[pass] = add(eight[pass], more[pass]);
      if (real && stores_residual) store_eight(args.residual_out + at + here, eight[pass]);
      store_eight(x + here, eight[pass]);
      own = squares(own, eight[pass]);
    }
  }
  own = sum_of_warp(own);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();  // every warp's sum is there
  const float scale = norm_scale(of_warp, hidden, args.eps);
  const auto put = [&](int column, const uint4& of_columns) {
    uint4 words = make_uint4(0, 0, 0, 0);
    if (column < hidden) {
      words = scaled(eight_of_shared(x + column), scale, of_columns, centre_of(args.weight_less_one));
    }
    if (!real) return;
    if (args.out != nullptr && column < args.out_stride) {
      *reinterpret_cast<uint4*>(
          args.out + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.out_stride) + column) =
          words;
    }
    if (args.out_tiles != nullptr && column < blocks * dense_k)
      *reinterpret_cast<uint4*>(args.out_tiles + token_offset(blocks, row, column)) = words;
  };
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) {
    const int column = first + pass * norm_pass_columns;
    if (column < past) put(column, weights[pass]);
  }
#pragma unroll 1
  for (int column = first + norm_passes * norm_pass_columns; column < past; column += norm_pass_columns)
    put(column,
        column < hidden ? *reinterpret_cast<const uint4*>(args.weight + column) : make_uint4(0, 0, 0, 0));
}

}  // namespace

Status add_rms_norm_cuda(const AddRmsNormCudaArgs& args, cudaStream_t stream) {
  // The shared memory that a block has without asking for more: 48 KB, of which what the kernel declares
  // takes 128 bytes, for the rest begins at a multiple of that.
  constexpr int most = 12256;
  if (args.hidden < 8 || args.hidden % 8 != 0 || args.hidden > most) {
    return invalid_argument("a norm takes a multiple of 8 columns up to " + std::to_string(most) + ", not " +
                            std::to_string(args.hidden));
  }
  if (args.out != nullptr && (args.out_stride < args.hidden || args.out_stride % 8 != 0)) {
    return invalid_argument("a norm of " + std::to_string(args.hidden) +
                            " columns needs a stride of as many, a multiple of 8, not " +
                            std::to_string(args.out_stride));
  }
  if (args.delta != nullptr && args.experts.products != nullptr)
    return invalid_argument("a residual takes in one block's output at a time");
  if (args.rows == 0) return {};
  if (clusters_norm(args)) {
    launch_cluster_norm(args, stream);
    return {};
  }
  const int processors = processors_of_device();
  if (streams_norm(args, processors)) {
    launch_streamed_norm(args, processors, stream);
    return {};
  }
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::max(args.rows, processors))),
                 .threads = norm_threads,
                 .shared_bytes = static_cast<std::size_t>(args.hidden) * sizeof(float),
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                args.experts.products != nullptr ? add_rms_norm_rows<true> : add_rms_norm_rows<false>, args);
  return {};
}

}  // namespace nibble
