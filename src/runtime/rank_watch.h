// Looks at the threads of a CPU's ranks as the system sees them, and at the beats of their pools. A rank of
// which all threads sleep or are stopped while others wait for it does not work; one whose threads use their
// CPUs for long without a beat is in a loop that does not end. Of one that waits for another, that is seen.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "comm/peer_watch.h"
#include "comm/process_links.h"
#include "comm/rank.h"
#include "comm/world.h"

namespace nibble {

class RankWatch final : public PeerWatch {
 public:
  // The threads of a rank's pool beside the one that calls; before anybody watches. The pool lives as long as
  // anybody does.
  void add_workers(int rank, ThreadPool& pool);
  // Ranks of other processes are seen through these, which outlive it.
  void watch_through(const ProcessLinks& links) { links_ = &links; }
  // The calling thread is the rank's now.
  void take_seat(int rank);

  PeerSight look(int rank) const override;

  // Of the groups whose ranks are watched, where they say whom they wait for.
  World& world() { return world_; }

 private:
  struct Seat {
    std::atomic<pid_t> caller = 0;           // 0: nobody yet
    std::atomic<std::uint64_t> entries = 0;  // a beat each: another thread may sit here from then on
    const ThreadPool* pool = nullptr;
    std::vector<pid_t> workers;
  };
  std::array<Seat, most_ranks> seats_;
  const ProcessLinks* links_ = nullptr;
  World world_;
};

// The first rank where no other waits for it: all others may be done with a step, or there may be none.
// Whoever sees that a step does not come back asks again and again.
class FirstRankWatch {
 public:
  // `cpu`: that one of its threads may use without a beat.
  FirstRankWatch(const PeerWatch& watch, std::chrono::milliseconds cpu) : watch_(watch), cpu_(cpu) {}
  // Any thread may ask.
  bool computes_without_end(Stillness::Clock::time_point now);

 private:
  const PeerWatch& watch_;
  const std::chrono::milliseconds cpu_;
  std::mutex mutex_;
  std::optional<Stillness> stillness_;  // since the first of these questions
  Stillness::Clock::time_point asked_{};
};

}  // namespace nibble
