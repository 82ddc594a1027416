// What the server did lately, as one line in the log: every ten seconds in which anything happened.
#pragma once

#include <chrono>

#include "base/log.h"
#include "engine/engine_thread.h"

namespace nibble {

class Activity {
 public:
  static constexpr std::chrono::seconds period{10};

  explicit Activity(Log& log) : log_(log) {}

  // Once a period. `seconds` since the last time.
  void report(const EngineCounts& counts, double seconds);

 private:
  Log& log_;
  EngineCounts last_;
};

}  // namespace nibble
