#include "runtime/rank_watch.h"

#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/thread_state.h"

namespace nibble {

void RankWatch::add_workers(int rank, ThreadPool& pool) {
  const auto size = static_cast<std::size_t>(pool.size());
  std::vector<pid_t> threads(size);
  std::atomic<int> began = 0;
  // Nobody is done before all have begun, so each thread has one piece.
  pool.parallel_for(pool.size(), [&](int begin, int end) {
    NIBBLE_CHECK(end == begin + 1, "a piece each");
    threads[static_cast<std::size_t>(begin)] = ::gettid();
    ++began;
    while (began < pool.size()) std::this_thread::yield();
  });
  std::erase(threads, ::gettid());
  seats_[static_cast<std::size_t>(rank)].workers = std::move(threads);
}

void RankWatch::take_seat(int rank) { seats_[static_cast<std::size_t>(rank)].caller = ::gettid(); }

bool RankWatch::works(int member) const {
  const Seat& seat = seats_[static_cast<std::size_t>(member)];
  if (const pid_t caller = seat.caller; caller == 0 || thread_works(caller)) return true;
  return std::any_of(seat.workers.begin(), seat.workers.end(), thread_works);
}

}  // namespace nibble
