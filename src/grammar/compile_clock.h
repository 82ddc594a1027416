// The time that a stranger's grammar may take to compile.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "base/status.h"
#include "base/thread_time.h"
#include "grammar/grammar.h"

namespace nibble {

// Counts the CPU time of the thread that made it, which asks it, so that a loaded machine refuses nothing
// that a calm one takes. The wall clock ends a wait that nobody would wait for.
class CompileClock {
 public:
  explicit CompileClock(const CompileLimits& limits) : limits_(limits) {}

  // Asked where work grows with what was sent.
  Status check() const {
    const CompileLimits left = rest();
    if (left.max_milliseconds > 0 && left.max_wall_milliseconds > 0) return {};
    const std::string most = left.max_milliseconds == 0
                                 ? std::to_string(limits_.max_milliseconds) + " ms of a CPU"
                                 : std::to_string(limits_.max_wall_milliseconds) + " ms by the wall clock";
    return invalid_argument("it takes more than " + most + " to compile; give a simpler one");
  }

  // The limits of what is compiled behind what has been compiled.
  CompileLimits rest() const {
    CompileLimits left = limits_;
    const auto cpu = static_cast<int>((thread_cpu_us() - begin_us_) * 1e-3);
    const auto wall = std::chrono::steady_clock::now() - begin_;
    left.max_milliseconds = std::max(0, limits_.max_milliseconds - cpu);
    left.max_wall_milliseconds = std::max(
        0, limits_.max_wall_milliseconds -
               static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(wall).count()));
    return left;
  }

 private:
  CompileLimits limits_;
  double begin_us_ = thread_cpu_us();
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace nibble
