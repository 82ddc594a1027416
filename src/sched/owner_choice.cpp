#include "sched/owner_choice.h"

#include <algorithm>
#include <tuple>

namespace nibble {

void sort_owners(std::span<OwnerFacts> owners) {
  if (owners.empty()) return;
  std::sort(owners.begin(), owners.end(), [](const OwnerFacts& a, const OwnerFacts& b) {
    return std::tie(a.running, a.pages, a.index) < std::tie(b.running, b.pages, b.index);
  });
  const int fewest = owners[0].running;
  // Of equal prefixes the one of the less loaded owner, which stands first.
  OwnerFacts* best = nullptr;
  for (OwnerFacts& each : owners) {
    if (each.prefix == 0 || each.running >= fewest + most_ahead_for_prefix) continue;
    if (best == nullptr || each.prefix > best->prefix) best = &each;
  }
  if (best != nullptr) std::rotate(owners.data(), best, best + 1);
}

}  // namespace nibble
