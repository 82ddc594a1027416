#include "app/progress.h"

#include <algorithm>
#include <cmath>

#include "app/display_text.h"
#include "app/terminal.h"

namespace nibble {
namespace {

constexpr std::chrono::milliseconds kPatience{400};  // work shorter than this shows no bar
constexpr std::chrono::milliseconds kInterval{100};
constexpr int kBarColumns = 24;
constexpr std::string_view kErase = "\r\x1b[K";

std::string time_left(double done, double total, double elapsed) {
  if (done <= 0 || elapsed < 1) return "";
  const auto seconds = static_cast<long>(std::ceil(elapsed * (total - done) / done));
  if (seconds < 120) return "  " + std::to_string(seconds) + " s left";
  return "  " + std::to_string((seconds + 59) / 60) + " min left";
}

}  // namespace

std::string progress_line(std::string_view what, double done, double total, double elapsed_seconds,
                          int columns, std::string_view given_rest) {
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0;
  std::string percent = std::to_string(static_cast<int>(share * 100));
  percent = "  " + std::string(percent.size() < 3 ? 3 - percent.size() : 0, ' ') + percent + " %";
  const std::string rest =
      percent + (given_rest.empty() ? time_left(done, total, elapsed_seconds) : std::string(given_rest));
  std::string line(what);
  if (text_columns(what) + 2 + kBarColumns + 2 + static_cast<int>(rest.size()) < columns) {
    const int filled = static_cast<int>(share * kBarColumns);
    line += "  [" + std::string(static_cast<std::size_t>(filled), '=') +
            std::string(static_cast<std::size_t>(kBarColumns - filled), ' ') + "]";
  }
  if (text_columns(line) + static_cast<int>(rest.size()) < columns) return line + rest;
  if (text_columns(line) + static_cast<int>(percent.size()) < columns) return line + percent;
  return percent.substr(2);
}

ProgressBar::ProgressBar(std::string what, int fd)
    : what_(std::move(what)), fd_(fd), enabled_(moves_cursor(fd)), start_(Clock::now()) {}

ProgressBar::~ProgressBar() { erase(); }

void ProgressBar::update(double done, double total, std::string_view rest) {
  const auto now = Clock::now();
  if (!enabled_ || now - start_ < kPatience || now - last_ < kInterval) return;
  last_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  draw(progress_line(what_, done, total, elapsed, terminal_columns(fd_), rest));
}

void ProgressBar::announce() {
  if (enabled_) draw(what_);
}

void ProgressBar::erase() {
  const std::lock_guard lock(mutex_);
  if (!line_.empty()) write_all(fd_, kErase);
  line_.clear();
}

void ProgressBar::print_above(std::string_view lines) {
  const std::lock_guard lock(mutex_);
  write_all(fd_, line_.empty() ? std::string(lines) : std::string(kErase).append(lines) + line_);
}

void ProgressBar::draw(std::string line) {
  const std::lock_guard lock(mutex_);
  line_ = std::move(line);
  write_all(fd_, std::string(kErase) + line_);
}

}  // namespace nibble
