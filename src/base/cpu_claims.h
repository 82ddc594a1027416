// Which CPUs the processes of nibble have pinned threads to, so that two of them on one host do not pin to
// the same ones. A claim is a name of a Unix socket without a file, "@nibble-cpu-7": the kernel gives it to
// one process at a time, and takes it back when that process ends, however it ends. Processes in containers
// with a network of their own do not see each other's.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

class CpuClaims {
 public:
  CpuClaims() = default;
  CpuClaims(CpuClaims&& other) noexcept
      : cpus_(std::exchange(other.cpus_, {})), sockets_(std::exchange(other.sockets_, {})) {}
  CpuClaims& operator=(CpuClaims&& other) noexcept {
    std::swap(cpus_, other.cpus_);
    std::swap(sockets_, other.sockets_);
    return *this;
  }
  ~CpuClaims();

  // The first `count` of `cpus` that nobody has; none where there are fewer, or no sockets.
  static CpuClaims take(std::span<const int> cpus, std::size_t count);

  const std::vector<int>& cpus() const { return cpus_; }

 private:
  std::vector<int> cpus_, sockets_;
};

// The CPUs that are claimed, by this process or another, as the kernel's list of Unix sockets tells;
// ascending.
std::vector<int> claimed_cpus(const char* list = "/proc/net/unix");

}  // namespace nibble
