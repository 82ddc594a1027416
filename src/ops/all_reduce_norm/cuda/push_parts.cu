// Sends a member's parts to all windows: four blocks a row, a thread four columns at a time.
#include <string>

#include "comm/cuda/peer_slots.cuh"
#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int blocks_a_row = 4, push_threads = 192;

__global__ void __launch_bounds__(push_threads)
    push_parts(const __grid_constant__ PeerGroup group, const float* parts) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.x) / blocks_a_row,
            block = static_cast<int>(blockIdx.x) % blocks_a_row;
  const int hidden = group.layout.hidden, members = group.layout.members;
  const std::uint32_t step = __ldcg(group.steps + row);
  const float* const of_row = parts + static_cast<std::size_t>(row) * static_cast<std::size_t>(hidden);
  for (int column = (block * push_threads + static_cast<int>(threadIdx.x)) * 4; column < hidden;
       column += blocks_a_row * push_threads * 4) {
    const float4 part = __ldcg(reinterpret_cast<const float4*>(of_row + column));
    for (int i = 1; i <= members; ++i)
      push_part(group, (group.member + i) % members, step, row, column, part);
  }
}

}  // namespace

void load_push_parts() {
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, push_parts));
}

Status push_parts_cuda(const PeerGroup& group, const float* parts, int rows, cudaStream_t stream) {
  if (rows < 0 || rows > group.layout.most_rows) {
    return invalid_argument("a push takes the " + std::to_string(group.layout.most_rows) +
                            " rows of one launch at most, not " + std::to_string(rows));
  }
  if (rows == 0) return {};
  const Launch launch{.blocks = dim3(static_cast<unsigned>(rows * blocks_a_row)),
                      .threads = push_threads,
                      .stream = stream,
                      .overlaps = true,
                      .share = share_of(rows)};
  launch_kernel(launch, push_parts, group, parts);
  return {};
}

}  // namespace nibble
