// Slots sorted by their experts (sorted_slots.h): a cluster's warps count their runs of slots, learn how many
// of each expert lie before, and place them.
#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/moe_many_gather.cuh"
#include "ops/moe/cuda/sorted_slots.h"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace slot_sort {

using namespace moe_many;

constexpr int warps = 16, threads = 32 * warps, at_once = 16;

// A warp's run of the slots: counted, then placed, in the same order.
struct Run {
  const SlotSort& of;
  int begin, end;

  __device__ Run(const SlotSort& sort, int rank, int warp) : of(sort) {
    const int all_warps = sorting_blocks * warps;
    const int length = ((sort.slots + all_warps - 1) / all_warps + 31) / 32 * 32;
    begin = (rank * warps + warp) * length;
    end = min(begin + length, sort.slots);
  }
  // Calls visit(slot, expert) with 32 consecutive slots at a time; expert -1: none takes it.
  template <class Visit>
  __device__ __forceinline__ void each(int lane, const Visit& visit) const {
    for (int first = begin + lane; first - lane < end; first += 32 * at_once) {
      std::int32_t experts[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int slot = first + 32 * i;
        experts[i] = slot < end ? of.taken.expert_of(slot, of.expert_ids[slot]) : -1;
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) visit(first + 32 * i, experts[i]);
    }
  }
};

// By one cluster; each of its warps has a run of the slots.
__global__ void __launch_bounds__(threads) sort_slots(SlotSort sort, SortedSlots to, SlotGroups groups) {
  __shared__ std::int32_t counts[warps][sorted_slots_most_experts];  // of a run, then of the runs before it
  __shared__ std::int32_t all[sorted_slots_most_experts], begins[sorted_slots_most_experts];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int rank = ptx::cluster_rank(), experts = sort.experts;
  const Run run(sort, rank, warp);
  for (int expert = lane; expert < experts; expert += 32) counts[warp][expert] = 0;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  __syncwarp();
  run.each(lane, [&](int, std::int32_t expert) {
    if (expert >= 0) atomicAdd(&counts[warp][expert], 1);
  });
  __syncthreads();  // all runs are counted
  for (int expert = thread; expert < experts; expert += threads) {
    int before = 0;
    for (int w = 0; w < warps; ++w) {
      const int of_run = counts[w][expert];
      counts[w][expert] = before;
      before += of_run;
    }
    to.found[rank * experts + expert] = before;
  }
  ptx::cluster_barrier();  // what every block has found is there
  for (int expert = thread; expert < experts; expert += threads) {
    int before = 0, sum = 0;
    for (int block = 0; block < sorting_blocks; ++block) {
      const int of_block = __ldcg(to.found + block * experts + expert);
      if (block < rank) before += of_block;
      sum += of_block;
    }
    all[expert] = sum;
    begins[expert] = before;
    if (rank == 0) to.counts[expert] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    int before = 0, groups_before = 0;
    const int most_rows = groups.most_rows;
    for (int first = 0; first < experts; first += 32) {
      const int expert = first + lane, own = expert < experts ? all[expert] : 0;
      const int up = before + sum_up_to_lane(own, lane), begin = up - own;
      if (expert < experts) begins[expert] += begin;
      if (rank == 0 && expert < experts) to.begins[expert] = begin;
      if (rank == 0 && most_rows > 0) {
        const int own_groups = (own + most_rows - 1) / most_rows;
        const int groups_up = groups_before + sum_up_to_lane(own_groups, lane);
        for (int i = 0; i < own_groups; ++i) {
          groups.groups[groups_up - own_groups + i] = {expert, begin + i * most_rows,
                                                       min(most_rows, own - i * most_rows), 0};
        }
        groups_before = __shfl_sync(all_lanes, groups_up, 31);
      }
      before = __shfl_sync(all_lanes, up, 31);
    }
    if (rank == 0 && lane == 0 && most_rows > 0) *groups.count = groups_before;
  }
  __syncthreads();  // where the block's slots of each expert begin
  run.each(lane, [&](int slot, std::int32_t expert) {
    if (expert >= 0) to.slots[begins[expert] + atomicAdd(&counts[warp][expert], 1)] = slot;
  });
}

}  // namespace slot_sort

void sort_slots_cuda(const SlotSort& sort, const SortedSlots& to, const SlotGroups& groups,
                     cudaStream_t stream) {
  launch_kernel({.blocks = dim3(sorting_blocks),
                 .threads = slot_sort::threads,
                 .stream = stream,
                 .overlaps = true,
                 .cluster = sorting_blocks},
                slot_sort::sort_slots, sort, to, groups);
}

}  // namespace nibble
