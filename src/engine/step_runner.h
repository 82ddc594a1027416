// A thread that runs a worker's steps, so that whoever gives them may plan the next one meanwhile.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "base/status.h"
#include "runtime/worker.h"

namespace nibble {

class StepRunner {
 public:
  // `worker` outlives the runner, and is the runner's alone between begin() and wait().
  explicit StepRunner(Worker& worker) : worker_(worker), thread_([this] { serve(); }) {}
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;
  ~StepRunner();

  // `batch` and `results` are left alone until wait() returns.
  void begin(const Batch& batch, std::span<StepResult> results);
  // What Worker::run gave for the step that was begun.
  Status wait();

 private:
  void serve();

  Worker& worker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const Batch* batch_ = nullptr;    // guarded by mutex_; null: nothing to run
  std::span<StepResult> results_;   // guarded by mutex_
  std::optional<Status> finished_;  // guarded by mutex_
  bool stopping_ = false;           // guarded by mutex_
  std::thread thread_;              // last: it uses all of the above
};

}  // namespace nibble
