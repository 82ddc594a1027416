#include "app/stop_signals.h"

#include <pthread.h>

#include "base/thread_name.h"

namespace nibble {
namespace {

constexpr int end_of_thread = SIGUSR1;  // ours, sent to the thread alone

}  // namespace

StopSignals::StopSignals(std::initializer_list<int> numbers) {
  sigemptyset(&set_);
  for (const int number : numbers) sigaddset(&set_, number);
  sigaddset(&set_, end_of_thread);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

StopSignals::~StopSignals() {
  if (!thread_.joinable()) return;
  pthread_kill(thread_.native_handle(), end_of_thread);
  thread_.join();
}

void StopSignals::watch(std::function<void(int)> on_signal) {
  thread_ = std::thread([this, on_signal = std::move(on_signal)] {
    name_this_thread("signals");
    for (int count = 1;; ++count) {
      int number = 0;
      if (sigwait(&set_, &number) != 0 || number == end_of_thread) return;
      on_signal(count);
    }
  });
}

}  // namespace nibble
