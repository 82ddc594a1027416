// A block counts a row. Bytes: 4 a logit.
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/sample/cuda/target_ranks_cuda.h"

namespace nibble {
namespace {

constexpr int rank_threads = 512;

__global__ void __launch_bounds__(rank_threads)
    count_likelier(const __grid_constant__ TargetRanksCudaArgs args) {
  __shared__ int likelier;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int target = args.targets[row];
  if (target < 0) return;
  if (thread == 0) likelier = 0;
  __syncthreads();  // the count begins
  const float* const logits =
      args.logits + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.stride);
  const float bound = logits[target];
  int own = 0;
#pragma unroll 8
  for (int id = thread; id < args.vocabulary; id += rank_threads) own += logits[id] > bound ? 1 : 0;
  atomicAdd(&likelier, own);
  __syncthreads();  // all threads' are counted
  if (thread == 0) args.ranks[row] = 1 + likelier;
}

}  // namespace

void target_ranks_cuda(const TargetRanksCudaArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(args.rows)),
                 .threads = rank_threads,
                 .stream = stream,
                 .overlaps = true},
                count_likelier, args);
}

}  // namespace nibble
