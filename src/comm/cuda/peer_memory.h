// Device memory that the GPUs of some ranks can write: only this memory, not everything that a device
// allocates, as cudaDeviceEnablePeerAccess would have it, after which cudaMalloc maps all it takes on every
// device (measured on four H200s: 27 ms a gigabyte instead of 0.7). Ranks may be of several processes of one
// host: then each passes the others handles of what its devices have, and all map it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/handle_exchange.h"

namespace nibble {

// The ranks of a group that are this process's: neighbours, from `first` on, with a device each. Each other
// process has as many.
struct PeerDevices {
  std::span<const int> here;
  int first = 0;
  HandleExchange* others = nullptr;  // null: all ranks are here

  int here_count() const { return static_cast<int>(here.size()); }
  int ranks() const { return here_count() * (others == nullptr ? 1 : others->place().count); }
  bool has(int rank) const { return rank >= first && rank < first + here_count(); }
};

// One window a rank, each at one address for all devices of this process.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  std::byte* window(int rank) const { return windows_[static_cast<std::size_t>(rank)]; }
  std::size_t bytes() const { return bytes_; }

 protected:
  std::vector<std::byte*> windows_;
  std::size_t bytes_ = 0;
};

// Refuses devices without access to each other, naming them. With several processes all call it at the same
// place of their start.
Result<std::unique_ptr<PeerMemory>> map_peer_memory(const PeerDevices& devices, std::size_t bytes);

}  // namespace nibble
