// A member's end of a group, on a CPU. Every collective is made of one operation: each member puts some bytes
// down and sees those of all others.
//
// Order. All members make the same calls in the same order; a member that makes another call is found out and
// named. There is no barrier: each member has two slots, used in turn. Step n + 2 overwrites step n. A member
// writes it only after it has read every member's step n + 1. Who has written step n + 1 is done with step n.
// The step's release store and acquire load are the only synchronisation.
//
// Every wait has a deadline. When one passes, when a member is seen to stand still, or when members' calls
// differ, the first who notices writes down who waited for whom, in what and when; from then on every call of
// every member returns that, and of every other group of its world.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "comm/group_memory.h"
#include "comm/peer_watch.h"
#include "comm/process_links.h"
#include "comm/rank.h"
#include "comm/world.h"

namespace nibble {

class Communicator {
 public:
  struct Options {
    std::chrono::milliseconds deadline{2000};  // where there is a watch, from the member's last beat on
    std::chrono::milliseconds first_deadline{10000};  // of the first step, when members may still be loading
    // A member that does not get on is given up ahead of the deadline. The watch outlives the
    // group.
    const PeerWatch* watch = nullptr;
    StillnessLimits stillness;
    // Where members also are members of other groups; it outlives them all. Null: there is this group alone.
    World* world = nullptr;
    // Where members are in other processes; it outlives them all, and there is a world. Null: all are here.
    ProcessLinks* links = nullptr;
  };

  // What everybody put down in a step; valid until this member's next call.
  class Shares {
   public:
    Shares(GroupMemory& memory, std::uint64_t step) : memory_(&memory), step_(step) {}
    template <class T>
    const T* of(int member) const {
      return reinterpret_cast<const T*>(memory_->slot(member, step_));
    }

   private:
    GroupMemory* memory_;
    std::uint64_t step_;
  };

  // One object a member and group, used by one thread at a time. `in_world` is the group's number there.
  Communicator(std::shared_ptr<GroupMemory> memory, Group group, int member, const Options& options,
               int in_world);

  int size() const { return group_.size(); }
  int member() const { return member_; }
  const Group& group() const { return group_; }
  std::size_t slot_bytes() const { return memory_->slot_bytes(); }
  std::uint64_t steps() const { return step_; }

  // Puts `mine` down, at most slot_bytes() and as many of each member, and waits for all others.
  Result<Shares> share(const Call& call, std::span<const std::byte> mine);
  // The same, where write(slot) puts down what is not in one piece, and says how many bytes that are.
  template <class Write>
  Result<Shares> share_with(const Call& call, const Write& write) {
    NIBBLE_RETURN_IF_ERROR(failure());
    return publish(call, write(memory_->slot(member_, step_ + 1)));
  }

  // Steps of each kind that this member has taken part in.
  using Counts = std::array<std::uint64_t, Call::kinds>;
  const Counts& counts() const { return counts_; }

  // The group's failure, or ok. Another thread may ask.
  Status failure() const;

 private:
  // So many bytes in this member's slot of the next step, to everybody.
  Result<Shares> publish(const Call& call, std::size_t bytes);
  Status wait_for(int peer, const Call& call);
  Status wait_long_for(int peer, const Call& call);
  Fault& fault() const { return options_.world != nullptr ? options_.world->fault() : memory_->fault(); }
  int rank_of(int member) const { return group_.members[static_cast<std::size_t>(member)]; }
  // Of this member, in this step.
  Status fail(FaultNote note);

  std::shared_ptr<GroupMemory> memory_;
  const Group group_;
  const int member_;
  const Options options_;
  const int in_world_;
  std::uint64_t step_ = 0;
  Counts counts_{};
};

// A group's members, with slots of so many bytes each.
Result<std::vector<Communicator>> communicators_of(const Group& group, std::size_t slot_bytes,
                                                   const Communicator::Options& options);

// Ok where all members hold the same digest of `what` (a version, a plan, a choice of algorithm); otherwise
// names the members that differ from the first.
Status vote(Communicator& communicator, std::string_view what, std::uint64_t digest);

}  // namespace nibble
