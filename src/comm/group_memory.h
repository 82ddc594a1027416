// The memory that members of a group share on a CPU: for each a seat, where it says how far it has come, and
// two slots for data that take turns. It holds no pointers, so that threads of one process share it as well
// as processes forked from the one that made it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "comm/rank.h"

namespace nibble {

// How a sum travels; a choice of time alone, for the bits are the same.
enum class Algorithm : std::uint32_t { one_shot, two_shot };
const char* algorithm_name(Algorithm algorithm);

// What a member is doing in a step; all members must be doing the same.
struct Call {
  enum class Kind : std::uint32_t {
    all_reduce,
    all_reduce_norm,
    reduce_scatter,
    all_gather,
    vote,
    gather_columns,
    gather_rows,
    dispatch,
    combine,
  };
  static constexpr int kinds = 9;
  Kind kind = Kind::all_reduce;
  Algorithm algorithm = Algorithm::one_shot;
  std::uint64_t count = 0;  // of what is shared, as the kind counts it: rows, elements or bytes
  std::uint64_t width = 0;  // elements a row; 0: no rows

  bool operator==(const Call&) const = default;
};
const char* call_name(Call::Kind kind);

// What one member has found out about another, in numbers of the world.
struct FaultNote {
  enum class Kind : std::uint32_t {
    did_not_come,  // within waited_ms
    differs,       // makes another call
    lost,          // its process has gone
    failed,        // the one who says so, by itself
  };
  std::uint32_t rank = 0, peer = 0;
  Kind kind = Kind::did_not_come;
  std::uint64_t step = 0;
  Call call, peer_call;  // what each was doing; the peer's where they differ
  std::uint64_t waited_ms = 0;
};

// The first failure of a group; whoever finds it returns at once.
struct Fault {
  enum State : std::uint32_t { none, being_written, written };
  std::atomic<std::uint32_t> state = none;
  FaultNote note;
};
// Written down unless another was first; either way some failure stands there afterwards.
void note_fault(Fault& fault, const FaultNote& note);
// Ok where there is none.
Status status_of(const Fault& fault);

class GroupMemory {
 public:
  struct alignas(64) Seat {
    std::atomic<std::uint64_t> step = 0;  // the last that its member has put its data down for
    Call calls[2];                        // of that step and the one before, by the step's parity
  };

  // Slots of so many bytes a member.
  static Result<std::shared_ptr<GroupMemory>> make(int members, std::size_t slot_bytes);
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;
  ~GroupMemory();

  int members() const { return members_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  Fault& fault() { return *reinterpret_cast<Fault*>(memory_); }
  Seat& seat(int member) {
    return reinterpret_cast<Seat*>(memory_ + seats_begin)[static_cast<std::size_t>(member)];
  }
  std::byte* slot(int member, std::uint64_t step) {
    const std::size_t index = static_cast<std::size_t>(step % 2) * static_cast<std::size_t>(members_) +
                              static_cast<std::size_t>(member);
    return memory_ + slots_begin + index * slot_bytes_;
  }

 private:
  static constexpr std::size_t seats_begin = 256, slots_begin = 4096;
  static_assert(sizeof(Fault) <= seats_begin && seats_begin + most_ranks * sizeof(Seat) <= slots_begin);

  GroupMemory(std::byte* memory, std::size_t bytes, int members, std::size_t slot_bytes);

  std::byte* const memory_;
  const std::size_t bytes_;
  const int members_;
  const std::size_t slot_bytes_;
};

}  // namespace nibble
