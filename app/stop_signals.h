// Signals that ask the program to end, taken by a thread that does nothing else, so that what they lead to
// may do anything.
#pragma once

#include <csignal>
#include <functional>
#include <initializer_list>
#include <thread>

namespace nibble {

class StopSignals {
 public:
  // Blocks the signals: before other threads begin, which inherit that.
  explicit StopSignals(std::initializer_list<int> numbers);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // on_signal(1), then on_signal(2) and so on, on the thread.
  void watch(std::function<void(int count)> on_signal);

 private:
  sigset_t set_;
  std::thread thread_;
};

}  // namespace nibble
