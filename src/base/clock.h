// Time as a dependency: what waits or measures takes a Clock, so that a test can hold the hands.
#pragma once

#include <atomic>
#include <chrono>

namespace nibble {

class Clock {
 public:
  using WallTime = std::chrono::sys_time<std::chrono::nanoseconds>;

  virtual ~Clock() = default;
  // Since an arbitrary start; never goes back.
  virtual std::chrono::nanoseconds now() const = 0;
  // The date, for people; it jumps when somebody sets it.
  virtual WallTime wall_time() const = 0;
};

class SystemClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  WallTime wall_time() const override { return std::chrono::system_clock::now(); }
};

// Stands still until it is moved; any thread may read it meanwhile.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(WallTime start = {}) : start_(start) {}
  std::chrono::nanoseconds now() const override { return std::chrono::nanoseconds(elapsed_.load()); }
  WallTime wall_time() const override { return start_ + now(); }
  void advance(std::chrono::nanoseconds by) { elapsed_ += by.count(); }

 private:
  WallTime start_;
  std::atomic<std::chrono::nanoseconds::rep> elapsed_{0};
};

}  // namespace nibble
