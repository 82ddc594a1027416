// Looks at the threads of a CPU's ranks as the system sees them. A rank of which some thread runs, may run or
// waits for a disk works. One of which all threads sleep or are stopped while others wait for it does not.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <vector>

#include "base/thread_pool.h"
#include "comm/peer_watch.h"
#include "comm/rank.h"

namespace nibble {

class RankWatch final : public PeerWatch {
 public:
  // The threads of a rank's pool beside the one that calls; before anybody watches.
  void add_workers(int rank, ThreadPool& pool);
  // The calling thread is the rank's now.
  void take_seat(int rank);

  bool works(int member) const override;

 private:
  struct Seat {
    std::atomic<pid_t> caller = 0;  // 0: nobody yet
    std::vector<pid_t> workers;
  };
  std::array<Seat, most_ranks> seats_;
};

}  // namespace nibble
