// The slots (token, choice) of a launch for many tokens in order of their experts.
//
// A launch in front sorts them, so that a block need not look for an expert's slots among all choices. For
// the kernel in granules that pays only for many slots: with 4,096 the launch takes as long as it saves, and
// the next one begins later.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/linear/cuda/row_group.h"
#include "ops/moe/cuda/moe_taken.h"

namespace nibble {

inline constexpr int sorted_slots_most_experts = 640;
inline constexpr int sorting_blocks = 8;  // a cluster

// From so many slots on a launch in front of the kernel in granules pays.
constexpr bool sorts_slots(int slots) { return slots >= 16384; }

// In device memory.
struct SortedSlots {
  std::int32_t* counts = nullptr;  // [experts]: slots of each; null: they are not sorted
  std::int32_t* begins = nullptr;  // [experts]: where an expert's begin
  std::int32_t* found = nullptr;   // [sorting_blocks, experts], of those who sort
  std::int32_t* slots = nullptr;   // the first expert's, then the next one's

  SortedSlots() = default;
  // In memory of sorted_slot_bytes().
  SortedSlots(std::uint8_t* memory, int experts)
      : counts(reinterpret_cast<std::int32_t*>(memory)),
        begins(counts + experts),
        found(begins + experts),
        slots(found + sorting_blocks * experts) {}
};
constexpr std::size_t sorted_slot_bytes(int slots, int experts) {
  return (4 * (static_cast<std::size_t>(slots) + (2 + sorting_blocks) * static_cast<std::size_t>(experts)) +
          255) /
         256 * 256;
}

// Runs of at most so many of an expert's sorted slots.
struct SlotGroups {
  int most_rows = 0;  // 0: none are wanted
  block_products::RowGroup* groups = nullptr;
  std::int32_t* count = nullptr;
};

struct SlotSort {
  const std::int32_t* expert_ids;  // [slots]
  MoeTaken taken;
  int slots, experts;
};
// Queues it. Every slot that an expert takes has a place; which of an expert's slots comes first may differ
// from launch to launch, and moves no bit of a product.
void sort_slots_cuda(const SlotSort& sort, const SortedSlots& to, const SlotGroups& groups,
                     cudaStream_t stream);

}  // namespace nibble
