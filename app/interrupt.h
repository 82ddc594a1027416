// Ctrl-C. A signal reaches the whole process, so the flag it sets is the one piece of process-wide state
// here.
#pragma once

namespace nibble {

// While one lives, Ctrl-C is remembered; pressed for the third time while nobody takes it, it ends the
// process with exit code 130 at once. Without one it ends the process as usual. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;
  // Whether Ctrl-C was pressed since the last take.
  bool take() const;
};

// Ctrl-C ends the process with exit code 130 while nothing yet asks for the flag (a model is being loaded).
void exit_on_interrupt();

inline constexpr int kInterruptedExitCode = 130;

}  // namespace nibble
