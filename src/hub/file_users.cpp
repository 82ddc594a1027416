#include "hub/file_users.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "base/quote.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLines = 1'000'000;

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// A line is "begin-end rights offset device inode    path"; a path begins with the line's first slash, for
// "device" has a colon.
bool maps_one_of(const fs::path& process, const std::set<std::string>& files) {
  std::ifstream maps(process / "maps");
  std::string line;
  for (int i = 0; i < kMostLines && std::getline(maps, line); ++i) {
    const std::size_t at = line.find('/');
    if (at != line.npos && files.contains(line.substr(at))) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> process_that_maps(const std::vector<fs::path>& files) {
  std::set<std::string> wanted;
  for (const fs::path& file : files) {
    std::error_code error;
    const fs::path full = fs::canonical(file, error);
    if (!error) wanted.insert(full.native());
  }
  std::error_code error;
  fs::directory_iterator entry("/proc", error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    const std::string number = entry->path().filename().native();
    if (!is_number(number) || !maps_one_of(entry->path(), wanted)) continue;
    std::ifstream names(entry->path() / "comm");
    std::string name;
    std::getline(names, name);
    return escape(name) + " (process " + number + ")";
  }
  return std::nullopt;
}

}  // namespace nibble
