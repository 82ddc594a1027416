// Whether a member that others wait for still works, as far as its machine can tell. A member may be slow for
// good reasons for longer than clients should wait for one that hangs.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace nibble {

struct PeerSight {
  int rank = -1;                               // who was seen; -1: whom one looked at
  bool works = true;                           // some thread of it runs, may run or waits for a disk
  std::uint64_t beats = 0;                     // pieces of work that it has done
  std::vector<std::chrono::milliseconds> cpu;  // that each of its threads has used, in one order always
};

class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  // At this moment; any thread may ask. `rank` is of the world. Of one that waits for another, whom it waits
  // for is seen. One of which nothing is known yet works and has no threads.
  virtual PeerSight look(int rank) const = 0;
};

struct StillnessLimits {
  std::chrono::milliseconds idle{2000};  // without a thread that works
  std::chrono::milliseconds cpu{1000};   // that one thread uses without a beat of any
};

// A wait for one member: how long nobody has seen it get on. Asked again and again, it looks every so often.
// One that does nothing is measured by the clock. Time without a look does not count: then the whole process
// may have been stopped. One that computes is measured by CPU time, since a busy machine may keep it from its
// CPUs: by the most that one of its threads has used since the last beat of any. Where another keeps it from
// going on, that one is measured, from when it is first seen.
class Stillness {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds between_looks{50};

  // Null: nobody watches, and nothing ever stands still.
  Stillness(const PeerWatch* watch, int rank, const StillnessLimits& limits)
      : watch_(watch), rank_(rank), limits_(limits), whom_(rank) {}

  bool is_too_long(Clock::time_point now) {
    if (watch_ == nullptr || now < last_look_ + between_looks) return false;
    PeerSight sight = watch_->look(rank_);
    if (const int whom = sight.rank < 0 ? rank_ : sight.rank; whom != whom_) {
      whom_ = whom;
      still_ = {};
      last_look_ = last_beat_seen_ = now;
      last_beat_ = std::move(sight);
      return false;
    }
    still_ = sight.works ? Clock::duration{0}
                         : still_ + std::min<Clock::duration>(now - last_look_, 2 * between_looks);
    last_look_ = now;
    if (sight.cpu.size() == last_beat_.cpu.size() && sight.beats == last_beat_.beats)
      return still_ >= limits_.idle || most_cpu_between(last_beat_, sight) >= limits_.cpu;
    if (sight.cpu.size() == last_beat_.cpu.size()) last_beat_seen_ = now;
    last_beat_ = std::move(sight);
    return still_ >= limits_.idle;
  }
  // When it was last seen to have got on; before that, when the wait began.
  Clock::time_point last_beat_seen() const { return last_beat_seen_; }
  // Who was seen last: the member, or who keeps it.
  int whom() const { return whom_; }

 private:
  static std::chrono::milliseconds most_cpu_between(const PeerSight& before, const PeerSight& now) {
    std::chrono::milliseconds most{0};
    for (std::size_t i = 0; i < now.cpu.size(); ++i) most = std::max(most, now.cpu[i] - before.cpu[i]);
    return most;
  }

  const PeerWatch* const watch_;
  const int rank_;
  const StillnessLimits limits_;
  int whom_;
  Clock::duration still_{0};
  Clock::time_point last_look_ = Clock::now();
  Clock::time_point last_beat_seen_ = last_look_;
  PeerSight last_beat_;  // the first look since then
};

}  // namespace nibble
