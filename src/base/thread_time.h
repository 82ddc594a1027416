// What a thread has had of a CPU: time that others on the machine do not stretch.
#pragma once

#include <time.h>

namespace nibble {

// Of the calling thread, in microseconds.
inline double thread_cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

}  // namespace nibble
