// The slots (token, choice) of a launch grouped by expert, worked out by every block for itself in shared
// memory: for a few hundred slots that takes less than handing a table from kernel to kernel. Few slots lie
// in a warp's lanes, so that it knows their groups before the block has a table.
#pragma once

#include <cstdint>

#include "ops/moe/cuda/moe_taken.h"

namespace nibble {

// Experts in use; the slots of active expert a are slots[begin[a] .. begin[a + 1]), ascending, so
// that all blocks agree on them. They are taken in passes of group_pass_tokens. Lies in shared memory of
// expert_groups_bytes().
struct ExpertGroups {
  std::int32_t* counts;   // [experts], scratch of whoever fills the others
  std::int32_t* active;   // [1]
  std::int16_t* slots;    // [slots]
  std::int16_t* experts;  // [active]
  std::int16_t* begin;    // [active + 1]
  std::int16_t* passes;   // [active + 1]: of the active experts before
};

inline constexpr int group_pass_tokens = 8;

__host__ __device__ constexpr int expert_groups_active(int slots, int experts) {
  return slots < experts ? slots : experts;
}

__host__ __device__ constexpr int expert_groups_bytes(int slots, int experts) {
  const int active = expert_groups_active(slots, experts);
  return (4 * experts + 4 + 2 * slots + 2 * active + 4 * (active + 1) + 15) / 16 * 16;
}

__device__ inline ExpertGroups expert_groups_at(std::uint8_t* memory, int slots, int experts) {
  const int active = expert_groups_active(slots, experts);
  ExpertGroups groups;
  groups.counts = reinterpret_cast<std::int32_t*>(memory);
  groups.active = groups.counts + experts;
  groups.slots = reinterpret_cast<std::int16_t*>(groups.active + 1);
  groups.experts = groups.slots + slots;
  groups.begin = groups.experts + active;
  groups.passes = groups.begin + active + 1;
  return groups;
}

// Sums over the lanes up to this one.
__device__ inline int sum_of_lanes_up(int value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += left;
  }
  return value;
}

// An expert's slots and passes in one number, so that one sum adds both.
__device__ inline int slots_and_passes(int slots) {
  return slots | (slots + group_pass_tokens - 1) / group_pass_tokens << 16;
}

__device__ inline void write_group(const ExpertGroups& groups, int at, int expert, int before) {
  groups.experts[at] = static_cast<std::int16_t>(expert);
  groups.begin[at] = static_cast<std::int16_t>(before & 0xffff);
  groups.passes[at] = static_cast<std::int16_t>(before >> 16);
}
__device__ inline void write_end(const ExpertGroups& groups, int active, int all) {
  groups.begin[active] = static_cast<std::int16_t>(all & 0xffff);
  groups.passes[active] = static_cast<std::int16_t>(all >> 16);
  *groups.active = active;
}

// As many slots as a warp has lanes, lane l holding slot l: what a warp knows of them without memory or other
// warps.
struct LaneGroups {
  std::int32_t expert;     // of the lane's slot; below 0: none
  unsigned same, leaders;  // lanes with this expert; the first lane of every expert
  int passes, first_pass;  // of the expert that this lane is the first of; no passes if of none
  int all_passes;
};

__device__ inline LaneGroups group_lanes(std::int32_t expert) {
  constexpr unsigned all = 0xffffffffu;
  const unsigned before = (1u << threadIdx.x % 32) - 1;
  LaneGroups lanes;
  lanes.expert = expert;
  lanes.same = __match_any_sync(all, expert);
  const bool leads = expert >= 0 && (lanes.same & before) == 0;
  lanes.leaders = __ballot_sync(all, leads);
  lanes.passes = leads ? slots_and_passes(__popc(lanes.same)) >> 16 : 0;
  lanes.first_pass = __popc(lanes.leaders & before);
  lanes.all_passes = __popc(lanes.leaders);
  if (__ballot_sync(all, lanes.passes > 1) != 0) {
    const int sum = sum_of_lanes_up(lanes.passes);
    lanes.first_pass = sum - lanes.passes;
    lanes.all_passes = __shfl_sync(all, sum, 31);
  }
  return lanes;
}

// The tables of such slots, by one warp.
__device__ inline void write_groups(const ExpertGroups& groups, const LaneGroups& lanes) {
  constexpr unsigned all = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned before = (1u << lane) - 1;
  const int own = lanes.passes > 0 ? slots_and_passes(__popc(lanes.same)) : 0;
  const int sum = sum_of_lanes_up(own);
  const int begin = __shfl_sync(all, (sum - own) & 0xffff, __ffs(static_cast<int>(lanes.same)) - 1);
  if (lanes.expert >= 0) {
    groups.slots[begin + __popc(lanes.same & before)] = static_cast<std::int16_t>(lane);
  }
  if (lanes.passes > 0) write_group(groups, __popc(lanes.leaders & before), lanes.expert, sum - own);
  if (lane == 31) write_end(groups, __popc(lanes.leaders), sum);
}

// From the experts' counts: the table, and where each one's slots begin. By one warp.
__device__ inline void table_of_counts(const ExpertGroups& groups, int experts) {
  constexpr unsigned all = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int active = 0, before = 0;
  for (int first = 0; first < experts; first += 32) {
    const int expert = first + lane;
    const int count = expert < experts ? groups.counts[expert] : 0;
    const int own = slots_and_passes(count), sum = before + sum_of_lanes_up(own);
    const unsigned used = __ballot_sync(all, count > 0);
    if (count > 0) {
      write_group(groups, active + __popc(used & ((1u << lane) - 1)), expert, sum - own);
      groups.counts[expert] = (sum - own) & 0xffff;
    }
    active += __popc(used);
    before = __shfl_sync(all, sum, 31);
  }
  if (lane == 0) write_end(groups, active, before);
}

// The choices of slots.
struct SlotChoices {
  const std::int32_t* ids;  // null: made-up ones
  MoeTaken taken;
  int experts;

  // Among the layer's; -1: none that is taken.
  __device__ std::int32_t expert_of(int slot) const {
    return ids == nullptr ? min(slot, experts - 1) : taken.expert_of(slot, ids[slot]);
  }
};
// The same past the first-level cache, for who reads them before the kernel ahead has ended: what lies there
// may be an earlier layer's.
struct FreshSlotChoices : SlotChoices {
  __device__ std::int32_t expert_of(int slot) const { return taken.expert_of(slot, __ldcg(ids + slot)); }
};

// The slots into their experts' places, in order. By one warp, after table_of_counts.
template <class Choices>
__device__ inline void place_slots(const ExpertGroups& groups, const Choices& choices, int slots) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = 0; first < slots; first += 32) {
    const int slot = first + lane;
    const std::int32_t expert = slot < slots ? choices.expert_of(slot) : -1;
    const unsigned same = __match_any_sync(0xffffffffu, expert), earlier = same & ((1u << lane) - 1);
    const int begin = expert >= 0 ? groups.counts[expert] : 0;
    if (expert >= 0) groups.slots[begin + __popc(earlier)] = static_cast<std::int16_t>(slot);
    __syncwarp();  // all have read what one of them changes
    if (expert >= 0 && earlier == 0) groups.counts[expert] = begin + __popc(same);
    __syncwarp();
  }
}

// Any number of slots; called by all threads of the block (whole warps). The tables are complete for all when
// it returns.
template <class Choices>
__device__ inline void group_slots(const ExpertGroups& groups, const Choices& choices, int slots) {
  const int experts = choices.experts;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  std::int32_t* const counts = groups.counts;
  for (int expert = thread; expert < experts; expert += threads) counts[expert] = 0;
  __syncthreads();
  for (int slot = thread; slot < slots; slot += threads) {
    const std::int32_t expert = choices.expert_of(slot);
    if (expert >= 0) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  if (thread < 32) {
    table_of_counts(groups, experts);
    __syncwarp();
    place_slots(groups, choices, slots);
  }
  __syncthreads();
}

}  // namespace nibble
