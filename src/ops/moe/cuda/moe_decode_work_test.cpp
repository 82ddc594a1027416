// On the emulation: which units of work the warps of the kernel for few tokens find, and where they begin.
#include "ops/moe/cuda/moe_decode_work.cuh"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "ops/cuda/emulation/emulation.h"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int teams = 6;
using Product = DecodeProduct<Mxfp4GranuleLayout>;
using Walk = DecodeWalk<teams>;
using Unit = std::tuple<int, int, int>;  // expert, granule, pass

struct Case {
  std::vector<std::int32_t> ids;
  int experts, granules, blocks;
};

// A launch's units by how often a team takes them, and whether every walk that lanes began stands where the
// one that tables began does.
struct Found {
  std::map<Unit, int> units;
  bool same_beginnings = true;
};
Found walk_all(const Case& c) {
  const int slots = static_cast<int>(c.ids.size());
  const std::uint32_t of_block = static_cast<std::uint32_t>((1ull << 32) / static_cast<unsigned>(c.blocks));
  Product product{};
  product.granules = c.granules;
  // Blocks are threads of the operating system, so each has a place of its own.
  std::vector<std::vector<Unit>> units(static_cast<std::size_t>(c.blocks));
  std::vector<int> same(static_cast<std::size_t>(c.blocks), 1);
  emulation::run(
      {.blocks_x = static_cast<unsigned>(c.blocks),
       .threads = 32,
       .shared_bytes = static_cast<std::size_t>(expert_groups_bytes(slots, c.experts))},
      [&] {
        const int lane = static_cast<int>(threadIdx.x);
        const ExpertGroups groups = expert_groups_at(ptx::dynamic_shared(), slots, c.experts);
        const LaneGroups lanes = group_lanes(lane < slots ? c.ids[static_cast<std::size_t>(lane)] : -1);
        write_groups(groups, lanes);
        __syncwarp();
        for (int team = 0; team < teams; ++team) {
          Walk walk{}, by_tables{};
          const int expert = walk.enter(lanes, c.granules, of_block, team);
          by_tables.enter(groups, c.granules, of_block, team);
          const bool alike =
              walk.left == by_tables.left &&
              (walk.left == 0 || (expert == groups.experts[walk.active] && walk.active == by_tables.active &&
                                  walk.unit == by_tables.unit && walk.passes == by_tables.passes));
          if (!alike) same[blockIdx.x] = 0;
          while (walk.left > 0) {
            int pass;
            const int granule = walk.granule(pass);
            if (lane == 0) units[blockIdx.x].push_back({groups.experts[walk.active], granule, pass});
            walk.next(groups, product);
          }
        }
      });
  Found found;
  for (const std::vector<Unit>& block : units) {
    for (const Unit& unit : block) ++found.units[unit];
  }
  for (const int block : same) found.same_beginnings &= block != 0;
  return found;
}

TEST(MoeDecodeWork, WarpsThatLookAtTheirLanesTakeEveryPassOverEveryGranuleOnce) {
  std::mt19937 random(1);
  std::vector<Case> cases = {{{-1, -1}, 4, 3, 2}, {std::vector<std::int32_t>(32, 5), 8, 7, 5}};
  for (const int experts : {1, 3, 40}) {
    for (const int slots : {1, 4, 17, 32}) {
      for (const int blocks : {1, 7, 16}) {
        Case c{std::vector<std::int32_t>(static_cast<std::size_t>(slots)), experts, 11, blocks};
        for (std::int32_t& id : c.ids) id = static_cast<std::int32_t>(random() % (experts + 1)) - 1;
        cases.push_back(c);
      }
    }
  }
  for (const Case& c : cases) {
    std::map<int, int> slots;
    for (const std::int32_t id : c.ids) slots[id] += id >= 0;
    std::map<Unit, int> once;
    for (const auto& [expert, count] : slots) {
      for (int granule = 0; granule < c.granules; ++granule) {
        for (int pass = 0; pass * group_pass_tokens < count; ++pass) once[{expert, granule, pass}] = 1;
      }
    }
    const Found found = walk_all(c);
    EXPECT_EQ(found.units, once) << c.ids.size() << " slots, " << c.experts << " experts, " << c.blocks;
    EXPECT_TRUE(found.same_beginnings) << c.ids.size() << " slots, " << c.experts << " experts, " << c.blocks;
  }
}

TEST(MoeDecodeWork, ASlotsRowIsItsQuotient) {
  for (int slots_a_row = 1; slots_a_row <= 8; ++slots_a_row) {
    for (int slot = 0; slot < moe_cuda_max_slots; ++slot)
      ASSERT_EQ(row_of_slot(slot, of_slots_a_row(slots_a_row)), slot / slots_a_row) << slots_a_row;
  }
}

}  // namespace
}  // namespace nibble
