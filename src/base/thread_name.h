// What `top -H`, a debugger and a crash report call a thread; a new thread has its parent's name otherwise.
// A process is called as its first thread is.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace nibble {

// At most 15 characters, which is what Linux keeps.
template <std::size_t bytes>
void name_this_thread(const char (&name)[bytes]) {
  static_assert(bytes <= 16);
  pthread_setname_np(pthread_self(), name);
}

}  // namespace nibble
