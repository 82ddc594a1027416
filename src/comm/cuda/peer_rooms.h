// The rooms of all ranks of a group (comm/cuda/peer_room.h), taken once, at the start. Ranks of other
// processes have theirs there; here they are mapped.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/cuda/peer_memory.h"
#include "comm/cuda/peer_room.h"
#include "tensor/device_buffer.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

class PeerRooms {
 public:
  // `bytes` of each room are the ranks', zeros at first, and begin at content(). first_rank: of those of a
  // group, among all; by that number a failure names them.
  static Result<std::unique_ptr<PeerRooms>> make(const PeerDevices& devices, std::size_t bytes,
                                                 std::chrono::milliseconds deadline, int first_rank = 0);
  // From now on the first wait of a rank that ends in either ends its waits in both, and is the only one that
  // is written down. `all` are rooms of all ranks of this process, and last as long as kernels use these.
  void end_waits_with(const PeerRooms& all);
  // All of this process: devices[i] is rank i's.
  static Result<std::unique_ptr<PeerRooms>> make(std::span<const int> devices, std::size_t bytes,
                                                 std::chrono::milliseconds deadline, int first_rank = 0) {
    return make(PeerDevices{.here = devices}, bytes, deadline, first_rank);
  }
  ~PeerRooms();

  // Of ranks of this process, and so is what follows.
  const PeerRoom& of(int rank) const { return ranks_[static_cast<std::size_t>(rank - first_here_)].room; }
  std::byte* content(int rank) const { return of(rank).rooms[rank] + peer_room_words; }
  // Ok, or who waited for whom; what that rank computed since is garbage. Any thread may ask.
  Status failure(int rank) const;
  // Whom it waited for in vain, among all; none: nobody.
  std::optional<int> missed_by(int rank) const;

 private:
  struct Rank {
    int device = 0;
    DeviceBuffer words;  // meetings, then whether it has given up
    PinnedBuffer fault;
    PeerRoom room;
  };

  PeerRooms() = default;

  std::chrono::milliseconds deadline_{};
  int first_rank_ = 0;  // of the group's, among all
  int first_here_ = 0;  // of this process's, in the group
  std::unique_ptr<PeerMemory> memory_;
  std::vector<Rank> ranks_;  // of this process
};

}  // namespace nibble
