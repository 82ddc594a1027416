#include "app/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace nibble {
namespace {

constexpr char kControlC = '\x03';

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// What has to be put back at the end, by a fatal signal too; a handler can reach nothing but process-wide
// state.
termios g_found = {};
volatile std::sig_atomic_t g_changed = 0;

void restore_and_die(int signal) {
  if (g_changed) ::tcsetattr(STDIN_FILENO, TCSANOW, &g_found);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

int terminal_columns(int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

int terminal_rows(int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return 24;
  return size.ws_row;
}

bool moves_cursor(int fd) {
  return is_terminal(fd) && !environment("TERM").empty() && environment("TERM") != "dumb";
}

bool wants_color(int fd) { return moves_cursor(fd) && environment("NO_COLOR").empty(); }

StartTerminal::StartTerminal() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (is_terminal(fd)) fd_ = fd;
  }
}

bool StartTerminal::is_gone() const {
  pollfd look{.fd = fd_, .events = 0, .revents = 0};  // poll() passes over a negative one
  return poll(&look, 1, 0) > 0 && (look.revents & (POLLHUP | POLLERR)) != 0;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

StandardTerminal::StandardTerminal(const InterruptGuard& interrupts) : interrupts_(interrupts) {
  // A handler that does nothing still ends a waiting poll, which is all that a resize has to do.
  struct sigaction wake = {};
  wake.sa_handler = [](int) {};
  sigemptyset(&wake.sa_mask);
  ::sigaction(SIGWINCH, &wake, nullptr);
  struct sigaction die = {};
  die.sa_handler = restore_and_die;
  sigemptyset(&die.sa_mask);
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT}) ::sigaction(signal, &die, nullptr);
}

StandardTerminal::~StandardTerminal() {
  if (g_changed) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &g_found);
  g_changed = 0;
}

TerminalPort::Wake StandardTerminal::read(std::string& bytes, std::chrono::milliseconds timeout) {
  if (interrupts_.take()) {
    bytes += kControlC;
    return Wake::bytes;
  }
  pollfd wait = {STDIN_FILENO, POLLIN, 0};
  const int ready = ::poll(&wait, 1, static_cast<int>(timeout.count()));
  if (ready < 0) return errno == EINTR ? Wake::signal : Wake::closed;
  if (ready == 0) return Wake::timeout;
  char buffer[4096];
  const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
  if (got < 0 && errno == EINTR) return Wake::signal;
  if (got <= 0) return Wake::closed;
  bytes.append(buffer, static_cast<std::size_t>(got));
  return Wake::bytes;
}

void StandardTerminal::write(std::string_view bytes) { write_all(STDOUT_FILENO, bytes); }

int StandardTerminal::columns() { return terminal_columns(STDOUT_FILENO); }

int StandardTerminal::rows() { return terminal_rows(STDOUT_FILENO); }

void StandardTerminal::enter_raw_mode() {
  if (raw_ || (!g_changed && ::tcgetattr(STDIN_FILENO, &g_found) != 0)) return;
  g_changed = 1;
  termios raw = g_found;
  raw.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
  raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
  raw.c_cflag |= CS8;
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  // Output processing stays on: a newline still returns the carriage. TCSADRAIN keeps what was typed ahead.
  raw_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
}

void StandardTerminal::leave_raw_mode() {
  if (!raw_) return;
  // Ctrl-D typed ahead has to reach the next raw mode as a key; as the end of a line it would be lost on the
  // way.
  termios between = g_found;
  between.c_cc[VEOF] = _POSIX_VDISABLE;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &between);
  raw_ = false;
}

}  // namespace nibble
