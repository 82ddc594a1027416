// Whether a member that others wait for still works, as far as its machine can tell. A member may be slow for
// good reasons for longer than clients should wait for one that hangs.
#pragma once

#include <algorithm>
#include <chrono>

namespace nibble {

class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  // At this moment; any thread may ask.
  virtual bool works(int member) const = 0;
};

// A wait for one member: how long nobody has seen it work. Asked again and again, it looks every so often.
// Time in which nobody looked does not count: then the whole process may have been stopped.
class Stillness {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds between_looks{50};

  // Null: nobody watches, and nothing ever stands still.
  Stillness(const PeerWatch* watch, int member, std::chrono::milliseconds limit)
      : watch_(watch), member_(member), limit_(limit) {}

  bool is_too_long(Clock::time_point now) {
    if (watch_ == nullptr || now < last_look_ + between_looks) return false;
    still_ = watch_->works(member_) ? Clock::duration{0}
                                    : still_ + std::min<Clock::duration>(now - last_look_, 2 * between_looks);
    last_look_ = now;
    return still_ >= limit_;
  }

 private:
  const PeerWatch* const watch_;
  const int member_;
  const std::chrono::milliseconds limit_;
  Clock::duration still_{0};
  Clock::time_point last_look_ = Clock::now();
};

}  // namespace nibble
