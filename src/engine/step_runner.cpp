#include "engine/step_runner.h"

#include <utility>

#include "base/check.h"

namespace nibble {

StepRunner::~StepRunner() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepRunner::begin(const Batch& batch, std::span<StepResult> results) {
  {
    const std::lock_guard lock(mutex_);
    NIBBLE_CHECK(batch_ == nullptr, "one step runs at a time");
    batch_ = &batch;
    results_ = results;
  }
  changed_.notify_all();
}

Status StepRunner::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return finished_.has_value(); });
  batch_ = nullptr;
  return *std::exchange(finished_, std::nullopt);
}

void StepRunner::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || (batch_ != nullptr && !finished_); });
    if (stopping_) return;
    const Batch& batch = *batch_;
    const std::span<StepResult> results = results_;
    lock.unlock();
    Status status = worker_.run(batch, results);
    lock.lock();
    finished_ = std::move(status);
    changed_.notify_all();
  }
}

}  // namespace nibble
