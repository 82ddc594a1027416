// What the control groups of Linux (a container, a systemd unit) let this process take: CPU time and memory,
// of version 1 and 2, over all groups that it lies in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace nibble {

struct ContainerLimits {
  // A limit is the least of all groups from the process's own to the root; 0: none has one. `from` is the
  // file that says so.
  double cpu_quota = 0;  // CPUs' worth of time
  std::string cpu_quota_from;
  int cpuset = 0;  // CPUs
  std::string cpuset_from;
  std::int64_t memory = 0;  // bytes
  std::string memory_from;
  // What is left of memory beside what the groups' processes hold, without files' pages that can be dropped.
  std::int64_t memory_free = 0;

  bool operator==(const ContainerLimits&) const = default;
};

// `root`: where proc and sys lie; a test's folder. What cannot be read limits nothing.
ContainerLimits container_limits(const std::filesystem::path& root = "/");

// Threads that `cpus` CPUs and the limits leave, at least 1. A quota is rounded down: threads that spin
// beyond it use it up early, and all of them then stand still until the next period.
int usable_threads(int cpus, const ContainerLimits& limits);

}  // namespace nibble
