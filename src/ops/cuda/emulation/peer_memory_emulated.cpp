// Windows of emulated devices: the host's memory, which all of them see.
#include <cstdlib>

#include "comm/cuda/peer_memory.h"
#include "ops/cuda/emulation/emulation.h"

namespace nibble {
namespace {

class HostWindows : public PeerMemory {
 public:
  HostWindows(std::size_t count, std::size_t bytes) {
    bytes_ = (bytes + 255) / 256 * 256;
    for (std::size_t i = 0; i < count; ++i) {
      windows_.push_back(static_cast<std::byte*>(std::aligned_alloc(256, bytes_)));
      if (windows_.back() == nullptr) emulation::stop("the host has no memory for emulated windows");
    }
  }
  ~HostWindows() override {
    for (std::byte* window : windows_) std::free(window);
  }
};

}  // namespace

Result<std::unique_ptr<PeerMemory>> map_peer_memory(std::span<const int> devices, std::size_t bytes) {
  return std::unique_ptr<PeerMemory>(std::make_unique<HostWindows>(devices.size(), bytes));
}

}  // namespace nibble
