// Groups the slots of a launch by expert, as group_slots does, by all warps of a block at once. From some
// tens of slots on that is sooner. It takes more registers, which the kernel's loop must be able to spare.
#pragma once

#include <cstdint>

#include "ops/moe/cuda/expert_groups.cuh"
#include "ops/ptx/async_copy.cuh"

namespace nibble {

// What the warps of a block have found, each of slots of its own, until it is one table. Lies in shared
// memory of group_notes_bytes().
struct GroupNotes {
  struct Choice {
    std::int16_t expert, earlier;  // earlier: slots of the same expert and warp
  };
  std::int32_t* sums;     // [warps]: of experts' slots and passes
  std::int32_t* active;   // [warps]: experts in use
  Choice* choices;        // [slots]
  std::uint16_t* counts;  // [warps, experts]: slots of the warp, then of the warps before
};

__host__ __device__ constexpr int group_notes_bytes(int slots, int experts, int warps) {
  return 8 * warps + 4 * slots + 2 * warps * experts;
}
__device__ inline GroupNotes group_notes_at(std::uint8_t* memory, int slots, int warps) {
  GroupNotes notes;
  notes.sums = reinterpret_cast<std::int32_t*>(memory);
  notes.active = notes.sums + warps;
  notes.choices = reinterpret_cast<GroupNotes::Choice*>(notes.active + warps);
  notes.counts = reinterpret_cast<std::uint16_t*>(notes.choices + slots);
  return notes;
}

// A warp's slots from `begin` to `end`: which expert each chose, and how many of them did so before it.
// counts: the warp's.
template <class Choices>
__device__ inline void note_slots(const GroupNotes& notes, std::uint16_t* counts, const Choices& choices,
                                  int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own = begin + lane < end ? choices.expert_of(begin + lane) : -1;  // on its way meanwhile
  for (int expert = lane; expert < choices.experts; expert += 32) counts[expert] = 0;
  for (int first = begin; first < end; first += 32) {
    const int slot = first + lane;
    const int expert = first == begin ? own : slot < end ? choices.expert_of(slot) : -1;
    const unsigned same = __match_any_sync(0xffffffffu, expert), earlier = same & ((1u << lane) - 1);
    __syncwarp();  // the counts are those of the slots before
    const int before = (expert >= 0 ? counts[expert] : 0) + __popc(earlier);
    if (slot < end)
      notes.choices[slot] = {static_cast<std::int16_t>(expert), static_cast<std::int16_t>(before)};
    __syncwarp();  // all have read what one of them changes
    if (expert >= 0 && earlier == 0) counts[expert] = static_cast<std::uint16_t>(before + __popc(same));
  }
}

// Any number of slots, by all threads of the block, at most 32 warps. The tables are complete for all when it
// returns, and the notes may be overwritten, by bulk copies too.
template <int warps, class Choices>
__device__ inline void group_slots_by_warps(const ExpertGroups& groups, const GroupNotes& notes,
                                            const Choices& choices, int slots) {
  static_assert(warps <= 32);
  constexpr unsigned all = 0xffffffffu;
  constexpr int threads = 32 * warps;
  const int experts = choices.experts;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  // Each warp has slots that follow one another, so that a slot comes behind those of the warps before.
  const int of_warp = (slots + threads - 1) / threads * 32;
  const int begin = min(warp * of_warp, slots), end = min(begin + of_warp, slots);
  note_slots(notes, notes.counts + warp * experts, choices, begin, end);
  __syncthreads();

  // Each thread has experts that follow one another.
  const int of_thread = (experts + threads - 1) / threads;
  const int first = min(thread * of_thread, experts), last = min(first + of_thread, experts);
  int sum = 0, active = 0;  // of the thread's experts
  for (int expert = first; expert < last; ++expert) {
    int counts[warps], count = 0;
#pragma unroll
    for (int of = 0; of < warps; ++of) counts[of] = notes.counts[of * experts + expert];
#pragma unroll
    for (int of = 0; of < warps; ++of) {
      notes.counts[of * experts + expert] = static_cast<std::uint16_t>(count);
      count += counts[of];
    }
    groups.counts[expert] = count;
    sum += slots_and_passes(count);
    active += count > 0;
  }
  const int sum_up = sum_of_lanes_up(sum), active_up = sum_of_lanes_up(active);
  if (lane == 31) {
    notes.sums[warp] = sum_up;
    notes.active[warp] = active_up;
  }
  __syncthreads();
  const auto of_warps_before = [&](const std::int32_t* of_warps) {
    return static_cast<int>(__reduce_add_sync(all, static_cast<unsigned>(lane < warp ? of_warps[lane] : 0)));
  };
  int before = of_warps_before(notes.sums) + sum_up - sum;
  int at = of_warps_before(notes.active) + active_up - active;
  for (int expert = first; expert < last; ++expert) {
    const int count = groups.counts[expert];
    if (count == 0) continue;
    write_group(groups, at++, expert, before);
    groups.counts[expert] = before & 0xffff;
    before += slots_and_passes(count);
  }
  if (thread == threads - 1) write_end(groups, at, before);
  __syncthreads();

  for (int slot = begin + lane; slot < end; slot += 32) {
    const auto [expert, earlier] = notes.choices[slot];
    if (expert < 0) continue;
    const int place = groups.counts[expert] + notes.counts[warp * experts + expert] + earlier;
    groups.slots[place] = static_cast<std::int16_t>(slot);
  }
  ptx::fence_shared_writes();
  __syncthreads();
}

}  // namespace nibble
