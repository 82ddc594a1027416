// Streams of the emulation: what is queued runs when it is waited for, no sooner, so that a host buffer that
// is filled again too early is read as a GPU would read it. An event that is waited for brings what was
// queued behind it too, or does not: a GPU may have come as far. Where faults may be ordered it does not, for
// steps are held to a time there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>

namespace nibble::emulation {

class Stream {
 public:
  Stream();
  ~Stream();
  void queue(std::function<void()> work);
  std::uint64_t queued();
  void wait();
  void wait_for(std::uint64_t count);

  int device = 0;  // of the thread that made it

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

// Until no stream has anything left, as whatever is on no stream does first.
void wait_for_all_streams();

}  // namespace nibble::emulation
