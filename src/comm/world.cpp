#include "comm/world.h"

#include "base/check.h"

namespace nibble {
namespace {

// A wait is read while its rank replaces it, so it is one word: the step, the group, the member and one more.
constexpr int bits = 4;
constexpr std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
static_assert(most_ranks <= mask);

std::uint64_t packed(const World::Wait& wait) {
  return wait.step << (2 * bits) | static_cast<std::uint64_t>(wait.group) << bits |
         static_cast<std::uint64_t>(wait.member + 1);
}

World::Wait unpacked(std::uint64_t word) {
  return {.group = static_cast<int>(word >> bits & mask),
          .member = static_cast<int>(word & mask) - 1,
          .step = word >> (2 * bits)};
}

}  // namespace

int World::add(std::shared_ptr<GroupMemory> memory, const Group& group) {
  NIBBLE_CHECK(groups_.size() < mask && memory->members() == group.size());
  for (const int rank : group.members) NIBBLE_CHECK(rank >= 0 && rank < most_ranks);
  groups_.push_back({std::move(memory), group});
  return static_cast<int>(groups_.size()) - 1;
}

void World::wait_begins(int rank, const Wait& wait) {
  waits_[static_cast<std::size_t>(rank)].word.store(packed(wait), std::memory_order_release);
}
void World::wait_ends(int rank) {
  waits_[static_cast<std::size_t>(rank)].word.store(0, std::memory_order_release);
}

int World::kept_by(int rank) const {
  // Ranks that keep each other, which calls in different orders make them do, are one as good as the other.
  for (int hops = 0; hops < most_ranks; ++hops) {
    const std::uint64_t word = waits_[static_cast<std::size_t>(rank)].word.load(std::memory_order_acquire);
    if (word == 0) return rank;
    const Wait wait = unpacked(word);
    const Member& in = groups_[static_cast<std::size_t>(wait.group)];
    // The one it waits for has come, and it may have been stopped before it saw that.
    if (in.memory->seat(wait.member).step.load(std::memory_order_acquire) >= wait.step) return rank;
    rank = in.group.members[static_cast<std::size_t>(wait.member)];
  }
  return rank;
}

}  // namespace nibble
