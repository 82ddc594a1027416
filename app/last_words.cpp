#include "app/last_words.h"

#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace nibble {
namespace {

// Of the signal handler, until the process dies by itself: the farewell's second and what may delay it.
constexpr int patience_milliseconds = 3000;

int failure_signal() { return SIGRTMIN + 1; }

// On the thread that failed, so only what is safe in a signal handler.
void wait_for_the_others(int) {
  if (gettid() != getpid()) {
    kill(getpid(), failure_signal());
    poll(nullptr, 0, patience_milliseconds);
  }
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);
}

}  // namespace

LastWords::LastWords() : failures_({failure_signal()}) { std::signal(SIGABRT, wait_for_the_others); }

void LastWords::watch(std::function<void()> on_failure) {
  failures_.watch([on_failure = std::move(on_failure)](int failures) {
    if (failures == 1) on_failure();
  });
}

void LastWords::die() {
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

}  // namespace nibble
