// What was entered before, kept in a file between sessions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace nibble {

class History {
 public:
  static constexpr std::size_t kMost = 1000;

  // Kept in memory only.
  History() = default;
  // Read from `file` if it is there, appended to it (mode 0600, its folder 0700) from then on.
  static Result<History> open(std::filesystem::path file);

  // $XDG_STATE_HOME/nibble/history, else ~/.local/state/nibble/history; empty when neither variable is set.
  static std::filesystem::path default_file();

  // Oldest first.
  const std::vector<std::string>& entries() const { return entries_; }
  // Blank entries and repetitions of the last one are not kept.
  Status add(std::string_view entry);

 private:
  std::filesystem::path file_;
  std::vector<std::string> entries_;
};

}  // namespace nibble
