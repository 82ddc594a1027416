// Windows of emulated devices: memory of the host that all of them see, those of other processes too.
#include <sys/mman.h>
#include <unistd.h>

#include "comm/cuda/peer_memory.h"
#include "ops/cuda/emulation/emulation.h"

namespace nibble {
namespace {

class HostWindows : public PeerMemory {
 public:
  ~HostWindows() override {
    for (std::byte* window : windows_) {
      if (window != nullptr) munmap(window, bytes_);
    }
  }

  Status map(const PeerDevices& devices, std::size_t bytes) {
    constexpr std::size_t page = 4096;
    bytes_ = (bytes + page - 1) / page * page;
    windows_.resize(static_cast<std::size_t>(devices.ranks()));
    std::vector<Descriptor> own;
    std::vector<int> files;
    for (int i = 0; i < devices.here_count(); ++i) {
      own.emplace_back(memfd_create("nibble-window", MFD_CLOEXEC));
      files.push_back(own.back().get());
      if (!own.back().is_open() || ftruncate(files.back(), static_cast<off_t>(bytes_)) != 0)
        emulation::stop("the host has no memory for emulated windows");
      map_at(devices.first + i, own.back());
    }
    if (devices.others == nullptr) return {};
    NIBBLE_ASSIGN(const auto others, devices.others->exchange(bytes_, files));
    for (int rank = 0; rank < devices.ranks(); ++rank) {
      const auto place = static_cast<std::size_t>(rank), each = devices.here.size();
      if (!devices.has(rank)) map_at(rank, others[place / each][place % each]);
    }
    return {};
  }

 private:
  void map_at(int rank, const Descriptor& file) {
    void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (at == MAP_FAILED) emulation::stop("the host has no memory for emulated windows");
    windows_[static_cast<std::size_t>(rank)] = static_cast<std::byte*>(at);
  }
};

}  // namespace

Result<std::unique_ptr<PeerMemory>> map_peer_memory(const PeerDevices& devices, std::size_t bytes) {
  auto windows = std::make_unique<HostWindows>();
  NIBBLE_RETURN_IF_ERROR(windows->map(devices, bytes));
  return Result<std::unique_ptr<PeerMemory>>(std::move(windows));
}

}  // namespace nibble
