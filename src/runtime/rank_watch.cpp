#include "runtime/rank_watch.h"

#include <unistd.h>

#include <thread>
#include <vector>

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
  Seat& seat = seats_[static_cast<std::size_t>(rank)];
  seat.pool = &pool;
  seat.workers = std::move(threads);
}

void RankWatch::take_seat(int rank) {
  Seat& seat = seats_[static_cast<std::size_t>(rank)];
  seat.caller = ::gettid();
  ++seat.entries;
}

bool FirstRankWatch::computes_without_end(Stillness::Clock::time_point now) {
  // Between questions farther apart other steps came back.
  constexpr std::chrono::seconds apart{5};
  // It may sleep until a mask is found.
  constexpr std::chrono::hours asleep{24};
  const std::lock_guard lock(mutex_);
  if (!stillness_ || now - asked_ > apart) stillness_.emplace(&watch_, 0, StillnessLimits{asleep, cpu_});
  asked_ = now;
  return stillness_->is_too_long(now);
}

PeerSight RankWatch::look(int rank) const {
  rank = world_.kept_by(rank);
  if (links_ != nullptr && !links_->has(rank)) return links_->look(rank);
  const Seat& seat = seats_[static_cast<std::size_t>(rank)];
  const pid_t caller = seat.caller;
  if (caller == 0) return {.rank = rank, .cpu = {}};
  PeerSight sight{.rank = rank,
                  .works = false,
                  .beats = seat.entries + (seat.pool == nullptr ? 0 : seat.pool->beats()),
                  .cpu = {}};
  const auto add = [&](pid_t thread) {
    const ThreadState state = state_of_thread(thread);
    sight.works = sight.works || state.works;
    sight.cpu.push_back(state.cpu);
  };
  add(caller);
  for (const pid_t worker : seat.workers) add(worker);
  return sight;
}

}  // namespace nibble
