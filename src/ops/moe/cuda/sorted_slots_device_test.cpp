// On a GPU: slots sorted by their experts.
#include <algorithm>
#include <random>

#include "ops/cuda/device_test_util.h"
#include "ops/moe/cuda/sorted_slots.h"

namespace nibble {
namespace {

class SortedSlotsOnTheGpu : public OnTheGpu {};

struct Sorted {
  static constexpr int most_rows = 24;
  std::vector<std::int32_t> counts, begins, slots;
  std::vector<block_products::RowGroup> groups;

  Sorted(const std::vector<std::int32_t>& ids, const MoeTaken& taken, int experts)
      : counts(static_cast<std::size_t>(experts)), begins(counts.size()), slots(ids.size()) {
    const int all = static_cast<int>(ids.size());
    DeviceBuffer device_ids = on_device(ids), room = device_bytes(sorted_slot_bytes(all, experts), 0xff);
    DeviceBuffer room_of_groups = device_bytes(sizeof(block_products::RowGroup) * (ids.size() + 1), 0xff);
    groups.resize(ids.size() + 1);
    const SortedSlots to(room.as<std::uint8_t>(), experts);
    sort_slots_cuda({device_ids.as<std::int32_t>(), taken, all, experts}, to,
                    {.most_rows = most_rows,
                     .groups = room_of_groups.as<block_products::RowGroup>() + 1,
                     .count = room_of_groups.as<std::int32_t>()},
                    nullptr);
    room_of_groups.copy_to(std::span(groups));
    const std::int32_t count = groups[0].expert;
    groups.erase(groups.begin());
    groups.resize(static_cast<std::size_t>(count));
    std::vector<std::int32_t> words(room.size() / 4);
    room.copy_to(std::span(words));
    const auto at = [&](const std::int32_t* place) {
      return words.begin() + (place - room.as<std::int32_t>());
    };
    std::copy_n(at(to.counts), experts, counts.begin());
    std::copy_n(at(to.begins), experts, begins.begin());
    std::copy_n(at(to.slots), all, slots.begin());
  }
};

TEST_F(SortedSlotsOnTheGpu, EveryTakenSlotHasAPlaceAmongItsExpertsAndInOneGroup) {
  std::mt19937 random(41);
  for (const int experts : {1, 33, 128, sorted_slots_most_experts}) {
    for (const int slots : {1, 31, 4096, 9001, small_cases ? 9002 : 131072}) {
      const int first = 7;  // of the layer's, among more
      std::vector<std::int32_t> ids;
      for (int slot = 0; slot < slots; ++slot)
        ids.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(experts + 20)) - 1);
      const MoeTaken taken{first, first, first + experts, 1, 0};
      const Sorted sorted(ids, taken, experts);
      int begin = 0;
      std::size_t group = 0;
      for (int expert = 0; expert < experts; ++expert) {
        std::vector<std::int32_t> own;
        for (int slot = 0; slot < slots; ++slot) {
          if (ids[static_cast<std::size_t>(slot)] == first + expert) own.push_back(slot);
        }
        const std::size_t at = static_cast<std::size_t>(expert);
        ASSERT_EQ(sorted.counts[at], std::ssize(own))
            << expert << " of " << experts << ", " << slots << " slots";
        ASSERT_EQ(sorted.begins[at], begin);
        std::vector<std::int32_t> found(sorted.slots.begin() + begin,
                                        sorted.slots.begin() + begin + std::ssize(own));
        std::sort(found.begin(), found.end());
        ASSERT_EQ(found, own) << expert << " of " << experts << ", " << slots << " slots";
        for (int at_row = 0; at_row < static_cast<int>(own.size()); at_row += Sorted::most_rows, ++group) {
          ASSERT_LT(group, sorted.groups.size());
          EXPECT_EQ(sorted.groups[group].expert, expert);
          EXPECT_EQ(sorted.groups[group].first, begin + at_row);
          EXPECT_EQ(sorted.groups[group].count,
                    std::min<int>(Sorted::most_rows, static_cast<int>(own.size()) - at_row));
        }
        begin += static_cast<int>(own.size());
      }
      EXPECT_EQ(group, sorted.groups.size());
    }
  }
}

}  // namespace
}  // namespace nibble
