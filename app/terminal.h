// The terminal as a device: what is one, how wide it is, and raw mode that cannot be left behind.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "app/interrupt.h"

namespace nibble {

bool is_terminal(int fd);
// Columns of the terminal at `fd`; 80 where that cannot be known.
int terminal_columns(int fd);
// Its rows; 24 where that cannot be known.
int terminal_rows(int fd);
// A terminal that moves its cursor when told to: TERM is set and not "dumb".
bool moves_cursor(int fd);
// moves_cursor, and no NO_COLOR in the environment.
bool wants_color(int fd);

// The terminal that the program was started from, if it was: on standard input, output or error.
class StartTerminal {
 public:
  StartTerminal();
  // Its window was closed, or its connection.
  bool is_gone() const;

 private:
  int fd_ = -1;
};

// Writes all of it, through short writes and interrupted calls; false when the other end is gone.
bool write_all(int fd, std::string_view bytes);

// The terminal as a line editor needs it. Tests supply one in memory.
class TerminalPort {
 public:
  enum class Wake { bytes, timeout, signal, closed };

  virtual ~TerminalPort() = default;
  // Waits for input and appends it. `signal`: the wait was interrupted (the window may have another size).
  // A negative timeout waits for ever.
  virtual Wake read(std::string& bytes, std::chrono::milliseconds timeout) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual int columns() = 0;
  virtual int rows() = 0;
  // Keys as they are pressed, without echo, and back; calls need not be paired.
  virtual void enter_raw_mode() = 0;
  virtual void leave_raw_mode() = 0;
};

// Standard input and output; one at a time. Puts the terminal's modes back when destroyed and before a signal
// ends the process, and wakes from reads when the window is resized. Outside of raw mode Ctrl-C is a signal:
// one that nobody took by the next read is read as the key it was.
class StandardTerminal : public TerminalPort {
 public:
  explicit StandardTerminal(const InterruptGuard& interrupts);
  ~StandardTerminal() override;
  StandardTerminal(const StandardTerminal&) = delete;
  StandardTerminal& operator=(const StandardTerminal&) = delete;

  Wake read(std::string& bytes, std::chrono::milliseconds timeout) override;
  void write(std::string_view bytes) override;
  int columns() override;
  int rows() override;
  void enter_raw_mode() override;
  void leave_raw_mode() override;

 private:
  const InterruptGuard& interrupts_;
  bool raw_ = false;
};

}  // namespace nibble
