// The groups of one world, where its ranks are threads of a process. Their failures are one: the first in any
// of them ends the waits in all. And who waits for whom is seen across them. A rank that waits in one group
// sleeps; who waits for it in another must look at the rank that keeps it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group_memory.h"
#include "comm/rank.h"

namespace nibble {

class World {
 public:
  struct Wait {
    int group = 0;           // as add() numbered it
    int member = 0;          // of it, whom it is for
    std::uint64_t step = 0;  // that the member has not put its data down for
  };

  // A group of it, before anybody waits in any; its number.
  int add(std::shared_ptr<GroupMemory> memory, const Group& group);

  // Of the calling rank; one wait at a time.
  void wait_begins(int rank, const Wait& wait);
  void wait_ends(int rank);
  // Who keeps a rank from going on: whom it waits for, whom that one waits for, and so on; itself, where it
  // waits for nobody. Any thread may ask.
  int kept_by(int rank) const;

  Fault& fault() { return fault_; }

 private:
  struct Member {
    std::shared_ptr<GroupMemory> memory;
    Group group;
  };
  struct alignas(64) PackedWait {
    std::atomic<std::uint64_t> word = 0;  // 0: none
  };
  std::vector<Member> groups_;
  std::array<PackedWait, most_ranks> waits_;  // of each rank
  Fault fault_;
};

}  // namespace nibble
