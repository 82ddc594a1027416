// What a process still says when one of its threads fails a check, as NIBBLE_CHECK and cuda_check do by
// std::abort(): the thread that called that waits where it is, and the others tell those whom they serve.
// Then the process dies of the same signal, as it does by itself if that takes too long.
#pragma once

#include <functional>

#include "app/stop_signals.h"

namespace nibble {

class LastWords {
 public:
  // Before other threads begin. A failure of the thread that makes it, the process's first, ends the process
  // at once, for it is the one that would speak.
  LastWords();

  // on_failure() comes on a thread of its own, and leads to die().
  void watch(std::function<void()> on_failure);

  [[noreturn]] static void die();

 private:
  StopSignals failures_;
};

}  // namespace nibble
