#include "app/history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "app/terminal.h"

namespace nibble {
namespace {

// An entry is a line of the file; its own line breaks are written as \n, a backslash as two.
std::string escaped(std::string_view entry) {
  std::string line;
  for (const char c : entry) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\\') {
      line += "\\\\";
    } else {
      line += c;
    }
  }
  return line;
}

std::string unescaped(std::string_view line) {
  std::string entry;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) {
      ++i;
      entry += line[i] == 'n' ? '\n' : line[i];
    } else {
      entry += line[i];
    }
  }
  return entry;
}

Status cannot(const char* verb, const std::filesystem::path& file, int error) {
  return io_error(std::string("cannot ") + verb + " the history file " + file.string() + ": " +
                  std::strerror(error));
}

// Replaces the file's content, never leaving half of it.
Status rewrite(const std::filesystem::path& file, const std::string& content) {
  const std::filesystem::path fresh = file.string() + ".new";
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return cannot("write", file, errno);
  const bool written = write_all(fd, content);
  const int error = errno;
  ::close(fd);
  if (!written) return cannot("write", file, error);
  if (::rename(fresh.c_str(), file.c_str()) != 0) return cannot("write", file, errno);
  return {};
}

}  // namespace

std::filesystem::path History::default_file() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state) {
    return std::filesystem::path(state) / "nibble/history";
  }
  if (const char* home = std::getenv("HOME"); home && *home) {
    return std::filesystem::path(home) / ".local/state/nibble/history";
  }
  return {};
}

Result<History> History::open(std::filesystem::path file) {
  History history;
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) return cannot("make the folder of", file, error.value());
  ::chmod(file.parent_path().c_str(), 0700);
  std::ifstream in(file);
  std::size_t lines = 0;
  for (std::string line; std::getline(in, line); ++lines) history.entries_.push_back(unescaped(line));
  if (history.entries_.size() > kMost) {
    history.entries_.erase(history.entries_.begin(), history.entries_.end() - kMost);
  }
  history.file_ = std::move(file);
  if (lines > 2 * kMost) {
    std::string content;
    for (const std::string& entry : history.entries_) content += escaped(entry) + "\n";
    NIBBLE_RETURN_IF_ERROR(rewrite(history.file_, content));
  }
  return history;
}

Status History::add(std::string_view entry) {
  if (entry.find_first_not_of(" \t\n") == std::string_view::npos) return {};
  if (!entries_.empty() && entries_.back() == entry) return {};
  entries_.emplace_back(entry);
  if (entries_.size() > kMost) entries_.erase(entries_.begin());
  if (file_.empty()) return {};
  const int fd = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return cannot("write", file_, errno);
  ::fchmod(fd, 0600);
  // One write, so that two sessions' entries never mix.
  const bool written = write_all(fd, escaped(entry) + "\n");
  const int failure = errno;
  ::close(fd);
  return written ? Status() : cannot("write", file_, failure);
}

}  // namespace nibble
