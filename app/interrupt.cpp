#include "app/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace nibble {
namespace {

volatile std::sig_atomic_t g_interrupts = 0;  // not yet taken

void remember(int) {
  const std::sig_atomic_t before = g_interrupts;
  if (before >= 2) ::_exit(kInterruptedExitCode);
  g_interrupts = before + 1;
}

void leave(int) { ::_exit(kInterruptedExitCode); }

void on_interrupt(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a waiting read shall return and see the flag.
  ::sigaction(SIGINT, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  g_interrupts = 0;
  on_interrupt(remember);
}

InterruptGuard::~InterruptGuard() { on_interrupt(leave); }

bool InterruptGuard::interrupted() const { return g_interrupts != 0; }

bool InterruptGuard::take() const {
  const bool was = g_interrupts != 0;
  g_interrupts = 0;
  return was;
}

void exit_on_interrupt() { on_interrupt(leave); }

}  // namespace nibble
