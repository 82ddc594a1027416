// What the system says of this process's threads.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string_view>

namespace nibble {

struct ThreadState {
  bool works = false;                // it runs, may run, or waits for a disk; else it sleeps, is stopped, or
                                     // is not there
  std::chrono::milliseconds cpu{0};  // that it has used since it began
};
ThreadState state_of_thread(pid_t thread);

// Whether some thread of one of these names (base/thread_name.h) does.
bool some_thread_works(std::span<const std::string_view> names);

}  // namespace nibble
