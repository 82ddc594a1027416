// On the emulation: the tables of slots that all warps of a block make, beside those that one warp makes.
#include "ops/moe/cuda/group_by_warps.cuh"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ops/cuda/emulation/emulation.h"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int warps = 8;

struct Tables {
  std::vector<int> experts, begin, passes, slots;
  bool operator==(const Tables&) const = default;
};

Tables tables_of(const ExpertGroups& groups) {
  Tables tables;
  const int active = *groups.active;
  for (int a = 0; a < active; ++a) tables.experts.push_back(groups.experts[a]);
  for (int a = 0; a <= active; ++a) {
    tables.begin.push_back(groups.begin[a]);
    tables.passes.push_back(groups.passes[a]);
  }
  for (int slot = 0; slot < groups.begin[active]; ++slot) tables.slots.push_back(groups.slots[slot]);
  return tables;
}

Tables group(const std::vector<std::int32_t>& ids, int experts, bool by_warps) {
  const int slots = static_cast<int>(ids.size());
  const int groups_bytes = expert_groups_bytes(slots, experts);
  Tables tables;
  emulation::run(
      {.blocks_x = 1,
       .threads = 32 * warps,
       .shared_bytes = static_cast<std::size_t>(groups_bytes + group_notes_bytes(slots, experts, warps))},
      [&] {
        std::uint8_t* const shared = ptx::dynamic_shared();
        const ExpertGroups groups = expert_groups_at(shared, slots, experts);
        const SlotChoices choices{
            ids.data(), {.first_expert = 0, .begin = 0, .end = experts, .turns = 1, .turn = 0}, experts};
        if (by_warps) {
          group_slots_by_warps<warps>(groups, group_notes_at(shared + groups_bytes, slots, warps), choices,
                                      slots);
        } else {
          group_slots(groups, choices, slots);
        }
        if (threadIdx.x == 0) tables = tables_of(groups);
      });
  return tables;
}

TEST(GroupByWarps, GivesTheTablesThatOneWarpMakes) {
  std::mt19937 random(1);
  for (const int experts : {1, 3, 32, 200, 256, 300, 512}) {
    for (const int slots : {1, 31, 32, 33, 64, 256, 257, 700}) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(slots));
      // Some are of no expert, and some experts have many.
      for (std::int32_t& id : ids) {
        const int few = random() % 2 == 0 ? std::min(experts, 3) : experts;
        id = static_cast<std::int32_t>(random() % static_cast<unsigned>(few + 1)) - 1;
      }
      EXPECT_EQ(group(ids, experts, true), group(ids, experts, false))
          << experts << " experts, " << slots << " slots";
    }
  }
}

TEST(GroupByWarps, TakesSlotsOfNoExpert) {
  const Tables none = group(std::vector<std::int32_t>(40, -1), 16, true);
  EXPECT_TRUE(none.experts.empty());
  EXPECT_EQ(none.begin, std::vector<int>{0});
  EXPECT_EQ(none.passes, std::vector<int>{0});
}

}  // namespace
}  // namespace nibble
