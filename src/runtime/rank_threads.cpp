#include "runtime/rank_threads.h"

#include <algorithm>
#include <string>

namespace nibble {

RankThreads::RankThreads(int ranks, std::chrono::milliseconds patience, std::function<Status(int)> body)
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
  const auto all_back = [&] {
    return std::all_of(finished_.begin(), finished_.end(), [&](std::uint64_t each) { return each == step_; });
  };
  if (!done_.wait_for(lock, patience_, all_back)) {
    const auto away =
        std::find_if(finished_.begin(), finished_.end(), [&](std::uint64_t each) { return each != step_; });
    return internal_error("rank " + std::to_string(away - finished_.begin()) +
                          " did not finish its step within " + std::to_string(patience_.count()) +
                          " ms of rank 0" + (own.ok() ? std::string() : ": " + std::string(own.message())));
  }
  for (const Status& result : results_) NIBBLE_RETURN_IF_ERROR(result);
  return {};
}

void RankThreads::serve(int rank) {
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
    done_.notify_one();
  }
}

}  // namespace nibble
