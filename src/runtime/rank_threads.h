// A thread a rank. The calling thread is rank 0; the others wait for it between steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "comm/peer_watch.h"

namespace nibble {

class RankThreads {
 public:
  struct Patience {
    // How long the others may stay away once rank 0 is done, from their last beat on where somebody watches;
    // longer than any wait of theirs.
    std::chrono::milliseconds deadline{};
    // One that does not get on is given up earlier; null: nobody watches.
    const PeerWatch* watch = nullptr;
    StillnessLimits stillness;
    // Where rank 0 has failed: it has waited for them already.
    std::chrono::milliseconds grace{200};
  };
  // body(rank) is a rank's step. What `patience` refers to outlives the threads.
  RankThreads(int ranks, const Patience& patience, std::function<Status(int)> body);
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  // Waits for ranks that are still away.
  ~RankThreads();

  // A step on every rank; the first rank's error where any has one. A rank that does not come back is named,
  // and nothing can be run after that.
  Status run();
  // How long rank 0 alone has not finished the step; 0: others have not either, or all have. Any thread may
  // ask.
  Stillness::Clock::duration first_is_away() const;

 private:
  void serve(int rank);

  // One that is not back when patience ends, or who keeps it; none where all are.
  std::optional<int> wait_for_all(std::unique_lock<std::mutex>& lock, bool all_is_well);

  const Patience patience_;
  const std::function<Status(int)> body_;
  mutable std::mutex mutex_;
  std::condition_variable begun_, done_;
  std::uint64_t step_ = 0;
  std::vector<std::uint64_t> finished_;       // [ranks]: the last step each has finished
  std::vector<Status> results_;               // [ranks]
  Stillness::Clock::time_point last_finish_;  // of a rank but 0
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nibble
