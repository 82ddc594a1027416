// A progress bar on standard error, where that is a terminal; nothing anywhere else.
#pragma once

#include <unistd.h>

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>

namespace nibble {

// One line, redrawn in place a few times a second and erased at the end. Quick work shows nothing.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what, int fd = STDERR_FILENO);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `rest` stands behind the share in place of the time left, which else follows from the time so far.
  void update(double done, double total, std::string_view rest = {});
  // Draws the name alone, at once: for work that cannot say how far it is.
  void announce();
  void erase();
  // From any thread: whole lines to the same place, above the bar.
  void print_above(std::string_view lines);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(std::string line);

  const std::string what_;
  const int fd_;
  const bool enabled_;
  std::mutex mutex_;
  std::string line_;  // as drawn; empty: none is; guarded by mutex_
  const Clock::time_point start_;
  Clock::time_point last_;
};

// "what  [=====>     ]  45 %  12 s left" in at most `columns` columns; the bar goes first where room is
// short.
std::string progress_line(std::string_view what, double done, double total, double elapsed_seconds,
                          int columns, std::string_view rest = {});

}  // namespace nibble
