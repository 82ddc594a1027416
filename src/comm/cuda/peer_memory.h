// Device memory that the other GPUs of this process can write: only this memory, not everything that a device
// allocates, as cudaDeviceEnablePeerAccess would have it, after which cudaMalloc maps all it takes on every
// device (measured on four H200s: 27 ms a gigabyte instead of 0.7).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace nibble {

// One window a device, each at one address for all of them.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  std::byte* window(int index) const { return windows_[static_cast<std::size_t>(index)]; }
  std::size_t bytes() const { return bytes_; }

 protected:
  std::vector<std::byte*> windows_;
  std::size_t bytes_ = 0;
};

// Refuses devices without access to each other, naming them.
Result<std::unique_ptr<PeerMemory>> map_peer_memory(std::span<const int> devices, std::size_t bytes);

}  // namespace nibble
