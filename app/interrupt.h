// Ctrl-C. A signal reaches the whole process, so the flag it sets is the one piece of process-wide state
// here.
#pragma once

namespace nibble {

// While one lives, the first Ctrl-C is remembered and a second, unless the first was taken, ends the process
// with exit code 130 at once. Without one Ctrl-C ends the process as usual. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;
  // Whether Ctrl-C was pressed since the last take.
  bool take();
};

// Ctrl-C ends the process with exit code 130 while nothing yet asks for the flag (a model is being loaded).
void exit_on_interrupt();

inline constexpr int kInterruptedExitCode = 130;

}  // namespace nibble
