// The slots (token, choice) of a launch grouped by expert, worked out by every block for itself in shared
// memory: for a few hundred slots that takes less than handing a table from kernel to kernel.
#pragma once

#include <cstdint>

namespace nibble {

// Experts in use; the slots of active expert a, ascending, are slots[begin[a] .. begin[a + 1]).
// Lies in shared memory of expert_groups_bytes().
struct ExpertGroups {
  std::int32_t* ids;      // [slots rounded up to 4], -1 past the end
  std::int16_t* slots;    // [slots]
  std::int16_t* experts;  // [active]
  std::int16_t* begin;    // [active + 1]
  std::int32_t* totals;   // [32 + 2]: by warp, then the running sums of (experts in use << 16 | slots)
};

__host__ __device__ constexpr int expert_groups_active(int slots, int experts) {
  return slots < experts ? slots : experts;
}

__host__ __device__ constexpr int expert_groups_bytes(int slots, int experts) {
  const int active = expert_groups_active(slots, experts);
  const int bytes = (slots + 3) / 4 * 16 + 2 * slots + 2 * active + 2 * (active + 1) + 4 * 34 + 16;
  return (bytes + 15) / 16 * 16;
}

__device__ inline ExpertGroups expert_groups_at(std::uint8_t* memory, int slots, int experts) {
  const int active = expert_groups_active(slots, experts);
  ExpertGroups groups;
  groups.ids = reinterpret_cast<std::int32_t*>(memory);
  groups.totals = groups.ids + (slots + 3) / 4 * 4;
  groups.slots = reinterpret_cast<std::int16_t*>(groups.totals + 34);
  groups.experts = groups.slots + slots;
  groups.begin = groups.experts + active;
  return groups;
}

// For as many slots as a warp has lanes; by that warp.
__device__ inline int group_few_slots(const ExpertGroups& groups, const std::int32_t* expert_ids, int slots) {
  constexpr unsigned all = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t expert = lane < slots ? expert_ids[lane] : -1;
  const unsigned same = __match_any_sync(all, expert), before = (1u << lane) - 1;
  const int first = __ffs(static_cast<int>(same)) - 1;  // the lane that speaks for its expert
  const bool leads = expert >= 0 && first == lane;
  const unsigned leaders = __ballot_sync(all, leads);
  const int count = leads ? __popc(same) : 0;
  int sum = count;
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(all, sum, step);
    if (lane >= step) sum += left;
  }
  const int begin = __shfl_sync(all, sum - count, first);
  if (expert >= 0) groups.slots[begin + __popc(same & before)] = static_cast<std::int16_t>(lane);
  const int active = __popc(leaders);
  if (leads) {
    groups.experts[__popc(leaders & before)] = static_cast<std::int16_t>(expert);
    groups.begin[__popc(leaders & before)] = static_cast<std::int16_t>(begin);
  }
  if (lane == 31) groups.begin[active] = static_cast<std::int16_t>(sum);
  return active;
}

// Called by all threads of the block (whole warps); returns the number of active experts to each. The tables
// are complete for all when it returns.
__device__ inline int group_slots(const ExpertGroups& groups, const std::int32_t* expert_ids, int slots,
                                  int experts) {
  if (slots <= 32) {
    if (threadIdx.x < 32) {
      const int active = group_few_slots(groups, expert_ids, slots);
      if (threadIdx.x == 0) groups.totals[0] = active;
    }
    __syncthreads();
    return groups.totals[0];
  }
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32, lane = thread % 32, warps = threads / 32;
  for (int s = thread; s < (slots + 3) / 4 * 4; s += threads) groups.ids[s] = s < slots ? expert_ids[s] : -1;
  if (thread == 0) groups.totals[32] = 0;
  __syncthreads();
  const int4* quads = reinterpret_cast<const int4*>(groups.ids);
  const int quad_count = (slots + 3) / 4;
  for (int first = 0; first < experts; first += threads) {
    const int expert = first + thread < experts ? first + thread : -2;
    int count = 0;
    for (int q = 0; q < quad_count; ++q) {
      const int4 ids = quads[q];
      count += (ids.x == expert) + (ids.y == expert) + (ids.z == expert) + (ids.w == expert);
    }
    // Sums before this expert: (experts in use << 16 | slots), inside the warp, then over the warps.
    const int own = count > 0 ? (1 << 16) + count : 0;
    int sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += left;
    }
    if (lane == 31) groups.totals[warp] = sum;
    __syncthreads();
    int before = groups.totals[32] + sum - own;
    for (int w = 0; w < warp; ++w) before += groups.totals[w];
    if (thread == 0) {
      int all = groups.totals[32];
      for (int w = 0; w < warps; ++w) all += groups.totals[w];
      groups.totals[33] = all;
    }
    if (count > 0) {
      groups.experts[before >> 16] = static_cast<std::int16_t>(expert);
      int at = before & 0xffff;
      groups.begin[before >> 16] = static_cast<std::int16_t>(at);
      for (int s = 0; s < slots; ++s) {
        if (groups.ids[s] == expert) groups.slots[at++] = static_cast<std::int16_t>(s);
      }
    }
    __syncthreads();
    if (thread == 0) groups.totals[32] = groups.totals[33];
    __syncthreads();
  }
  const int all = groups.totals[32];
  if (thread == 0) groups.begin[all >> 16] = static_cast<std::int16_t>(all & 0xffff);
  __syncthreads();
  return all >> 16;
}

}  // namespace nibble
