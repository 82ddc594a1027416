// A progress bar on standard error, where that is a terminal; nothing anywhere else.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace nibble {

// One line, redrawn in place a few times a second and erased at the end. Quick work shows nothing.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(double done, double total);
  // Draws the name alone, at once: for work that cannot say how far it is.
  void announce();
  void erase();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(std::string_view line);

  std::string what_;
  bool enabled_ = false;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

// "what  [=====>     ]  45 %  12 s left" in at most `columns` columns; the bar goes first where room is
// short.
std::string progress_line(std::string_view what, double done, double total, double elapsed_seconds,
                          int columns);

}  // namespace nibble
