// What a group of GPUs needs for its collectives: windows, steps and the places where faults are written
// down. Taken once, at the start; groups never share one.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/cuda/on_device.h"
#include "comm/cuda/peer_group.h"
#include "comm/cuda/peer_memory.h"
#include "tensor/device_buffer.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

class PeerWorkspace {
 public:
  struct Shape {
    int most_rows = 0;  // of one launch; a call of more goes in several
    int hidden = 0;     // a multiple of 8
    std::chrono::milliseconds deadline{2000};
  };

  // devices[i] is that of the group's member i.
  static Result<std::unique_ptr<PeerWorkspace>> make(const Group& group, std::span<const int> devices,
                                                     const Shape& shape);
  ~PeerWorkspace();

  const PeerGroup& member(int index) const { return members_[static_cast<std::size_t>(index)].group; }
  // Ok, or who waited for whom; every collective of that member since then has given garbage.
  Status failure(int index) const;
  // As after make. Nothing of the group may be queued or running on any device.
  void arm();

 private:
  struct Member {
    int device = 0;
    DeviceBuffer words;  // steps, then whether it has given up
    PinnedBuffer fault;
    PeerGroup group;
  };

  PeerWorkspace() = default;

  Group group_;
  Shape shape_;
  std::unique_ptr<PeerMemory> windows_;
  std::vector<Member> members_;
};

}  // namespace nibble
