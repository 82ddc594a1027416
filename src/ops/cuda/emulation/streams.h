// Streams of the emulation: what is queued runs when it is waited for, no sooner, so that a host buffer that
// is filled again too early is read as a GPU would read it. An event that is waited for brings what was
// queued behind it too, or does not: a GPU may have come as far. Where faults may be ordered it does not, for
// steps are held to a time there; nor of several devices, for what is queued behind may wait for a device
// that no host thread runs.
//
// Devices are told apart by their streams and launches alone: each has its own, and a host thread that waits
// runs only what is queued on the device it has chosen. So ranks run beside each other where each has a host
// thread. Memory is the host's, seen by all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <random>

namespace nibble::emulation {

inline constexpr int most_devices = 8;
inline thread_local int current_device = 0;
// That a program finds: EMULATED_GPUS of them, or one. Tests of several set it.
inline int device_count = [] {
  const char* const asked = std::getenv("EMULATED_GPUS");
  return asked == nullptr ? 1 : std::clamp(std::atoi(asked), 1, most_devices);
}();
// Which of its host's the first one is, where other processes have others: EMULATED_FIRST_GPU; else -1.
inline const int first_device_here = [] {
  const char* const asked = std::getenv("EMULATED_FIRST_GPU");
  return asked == nullptr ? -1 : std::atoi(asked);
}();

class Stream {
 public:
  Stream();
  ~Stream();
  void queue(std::function<void()> work);
  std::uint64_t queued();
  void wait();
  void wait_for(std::uint64_t count);

  const int device = current_device;  // of the thread that made it

 private:
  void run_until(std::uint64_t count);

  std::recursive_mutex mutex_;
  std::deque<std::function<void()>> waiting_;
  std::uint64_t queued_ = 0, done_ = 0;
  std::minstd_rand random_;
};

// A place in a stream; nothing until it is recorded.
struct Event {
  Stream* stream = nullptr;
  std::uint64_t count = 0;
};

// Until no stream of the current device has anything left, as whatever is on no stream does first.
void wait_for_all_streams();

}  // namespace nibble::emulation
