// The time that a stranger's grammar may take to compile.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"
#include "grammar/grammar.h"

namespace nibble {

class CompileClock {
 public:
  explicit CompileClock(const CompileLimits& limits) : most_(limits.max_milliseconds) {}

  // Asked where work grows with what was sent.
  Status check() const {
    if (std::chrono::steady_clock::now() - begin_ <= most_) return {};
    return invalid_argument("the grammar took more than " + std::to_string(most_.count()) +
                            " ms to compile; give a simpler one");
  }

 private:
  std::chrono::milliseconds most_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace nibble
