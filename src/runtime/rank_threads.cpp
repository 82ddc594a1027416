#include "runtime/rank_threads.h"

#include <algorithm>
#include <string>

#include "base/thread_name.h"

namespace nibble {

RankThreads::RankThreads(int ranks, const Patience& patience, std::function<Status(int)> body)
    : patience_(patience),
      body_(std::move(body)),
      finished_(static_cast<std::size_t>(ranks)),
      results_(static_cast<std::size_t>(ranks)) {
  for (int rank = 1; rank < ranks; ++rank) threads_.emplace_back([this, rank] { serve(rank); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status RankThreads::run() {
  {
    const std::lock_guard lock(mutex_);
    ++step_;
  }
  begun_.notify_all();
  const Status own = body_(0);
  std::unique_lock lock(mutex_);
  results_[0] = own;
  finished_[0] = step_;
  if (const auto begin = Stillness::Clock::now();
      const std::optional<int> away = wait_for_all(lock, own.ok())) {
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(Stillness::Clock::now() - begin);
    return internal_error("rank " + std::to_string(*away) + " did not finish its step within " +
                          std::to_string(waited.count()) + " ms of rank 0" +
                          (own.ok() ? std::string() : ": " + std::string(own.message())));
  }
  for (const Status& result : results_) NIBBLE_RETURN_IF_ERROR(result);
  return {};
}

Stillness::Clock::duration RankThreads::first_is_away() const {
  const std::lock_guard lock(mutex_);
  const auto others = std::span(finished_).subspan(1);
  if (others.empty() || finished_[0] == step_ ||
      std::any_of(others.begin(), others.end(), [&](std::uint64_t finished) { return finished != step_; }))
    return {};
  return Stillness::Clock::now() - last_finish_;
}

std::optional<int> RankThreads::wait_for_all(std::unique_lock<std::mutex>& lock, bool all_is_well) {
  const auto begin = Stillness::Clock::now();
  for (int rank = 1; rank < static_cast<int>(finished_.size()); ++rank) {
    const auto is_back = [&] { return finished_[static_cast<std::size_t>(rank)] == step_; };
    Stillness stillness(patience_.watch, rank, patience_.stillness);
    while (!is_back()) {
      const auto now = Stillness::Clock::now();
      if (stillness.is_too_long(now) || now - stillness.last_beat_seen() >= patience_.deadline ||
          (!all_is_well && now - begin >= patience_.grace))
        return stillness.whom();
      done_.wait_until(
          lock, now + std::min<Stillness::Clock::duration>(patience_.deadline, Stillness::between_looks),
          is_back);
    }
  }
  return {};
}

void RankThreads::serve(int rank) {
  name_this_thread("engine-rank");
  std::unique_lock lock(mutex_);
  for (std::uint64_t done = 0;;) {
    begun_.wait(lock, [&] { return stopping_ || step_ > done; });
    if (step_ == done) return;
    done = step_;
    lock.unlock();
    Status result = body_(rank);
    lock.lock();
    results_[static_cast<std::size_t>(rank)] = std::move(result);
    finished_[static_cast<std::size_t>(rank)] = done;
    last_finish_ = Stillness::Clock::now();
    done_.notify_one();
  }
}

}  // namespace nibble
