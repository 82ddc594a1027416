// What the system says of this process's threads.
#pragma once

#include <sys/types.h>

#include <span>
#include <string_view>

namespace nibble {

// Whether it runs, may run, or waits for a disk; else it sleeps, is stopped, or is not there.
bool thread_works(pid_t thread);

// Whether some thread of one of these names (base/thread_name.h) does.
bool some_thread_works(std::span<const std::string_view> names);

}  // namespace nibble
