#include "base/container_limits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words_of(const std::string& line, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// A whole number alone, "max" and what is larger than any memory being none.
std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  constexpr std::int64_t unlimited = std::int64_t{1} << 60;  // of version 1: 2^63, rounded down to pages
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value >= unlimited)
    return std::nullopt;
  return value;
}

// How many CPUs a list like "0-3,8" has.
int count_of_list(const std::string& list) {
  int count = 0;
  for (const std::string& range : words_of(list, ',')) {
    const std::size_t dash = range.find('-');
    const std::optional<std::int64_t> first = number_of(std::string_view(range).substr(0, dash));
    const std::optional<std::int64_t> last =
        dash == std::string::npos ? first : number_of(std::string_view(range).substr(dash + 1));
    if (!first || !last || *last < *first || *last > 1 << 20) return 0;
    count += static_cast<int>(*last - *first) + 1;
  }
  return count;
}

// The value of a line "name value" of a statistics file.
std::int64_t statistic(const fs::path& file, std::string_view name) {
  std::ifstream stream(file);
  std::string found;
  for (std::int64_t value = 0; stream >> found >> value;) {
    if (found == name) return value;
  }
  return 0;
}

// A hierarchy of groups that is mounted: the controllers' names, "" the one of version 2.
struct Hierarchy {
  bool second = false;      // version 2
  std::string controllers;  // of version 1: "rw,cpu,cpuacct"
  std::string shown;        // which group the mount point shows
  std::string point;

  bool has(std::string_view controller) const {
    if (second) return true;
    const std::vector<std::string> names = words_of(controllers, ',');
    return std::find(names.begin(), names.end(), controller) != names.end();
  }
};

// Lines of proc/self/mountinfo: "31 24 0:27 /shown /point options - type source options".
std::vector<Hierarchy> hierarchies(const fs::path& root) {
  std::vector<Hierarchy> all;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::vector<std::string> words = words_of(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const std::string& type = *(dash + 1);
    if (type != "cgroup" && type != "cgroup2") continue;
    all.push_back(
        {.second = type == "cgroup2", .controllers = *(dash + 3), .shown = words[3], .point = words[4]});
  }
  return all;
}

// The group of this process in a hierarchy, from lines "4:cpu,cpuacct:/group" or "0::/group".
std::string group_in(const Hierarchy& hierarchy, std::string_view controller, const fs::path& root) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::vector<std::string> names = words_of(controllers, ',');
    const bool mine = hierarchy.second ? controllers.empty()
                                       : std::find(names.begin(), names.end(), controller) != names.end();
    if (mine) return line.substr(second + 1);
  }
  return "/";
}

// The folders of the process's group and of those it lies in, as far as the mount point shows them.
std::vector<fs::path> folders_of(const Hierarchy& hierarchy, std::string_view controller,
                                 const fs::path& root) {
  std::string group = group_in(hierarchy, controller, root);
  // A container that sees its own group as the root names it by the host's path in older kernels.
  if (hierarchy.shown != "/" && group.starts_with(hierarchy.shown))
    group = group.substr(hierarchy.shown.size());
  const fs::path point = root / fs::path(hierarchy.point).relative_path();
  fs::path folder = point / fs::path(group).relative_path();
  std::error_code error;
  if (!fs::is_directory(folder, error)) folder = point;
  std::vector<fs::path> folders;
  for (folder = folder.lexically_normal();; folder = folder.parent_path()) {
    if (!folder.has_filename()) folder = folder.parent_path();
    folders.push_back(folder);
    if (folder == point.lexically_normal() || !folder.has_relative_path()) break;
  }
  return folders;
}

// Without the root of a test's tree in front.
std::string shown_path(const fs::path& file, const fs::path& root) {
  return "/" + file.lexically_relative(root).string();
}

void take_quota(std::optional<std::int64_t> quota, std::optional<std::int64_t> period, const fs::path& file,
                const fs::path& root, ContainerLimits& limits) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  const double cpus = static_cast<double>(*quota) / static_cast<double>(*period);
  if (limits.cpu_quota > 0 && limits.cpu_quota <= cpus) return;
  limits.cpu_quota = cpus;
  limits.cpu_quota_from = shown_path(file, root);
}

void take_cpuset(const fs::path& file, const fs::path& root, ContainerLimits& limits) {
  const int cpus = count_of_list(first_line(file));
  if (cpus == 0 || (limits.cpuset > 0 && limits.cpuset <= cpus)) return;
  limits.cpuset = cpus;
  limits.cpuset_from = shown_path(file, root);
}

void take_memory(const fs::path& file, std::int64_t used, const fs::path& root, ContainerLimits& limits) {
  const std::optional<std::int64_t> most = number_of(first_line(file));
  if (!most || *most == 0) return;
  const std::int64_t left = std::max<std::int64_t>(*most - std::max<std::int64_t>(used, 0), 0);
  limits.memory_free = limits.memory == 0 ? left : std::min(limits.memory_free, left);
  if (limits.memory > 0 && limits.memory <= *most) return;
  limits.memory = *most;
  limits.memory_from = shown_path(file, root);
}

void read_second(const fs::path& folder, const fs::path& root, ContainerLimits& limits) {
  const std::vector<std::string> quota = words_of(first_line(folder / "cpu.max"), ' ');
  if (quota.size() == 2)
    take_quota(number_of(quota[0]), number_of(quota[1]), folder / "cpu.max", root, limits);
  take_cpuset(folder / "cpuset.cpus.effective", root, limits);
  const std::int64_t used = number_of(first_line(folder / "memory.current")).value_or(0);
  take_memory(folder / "memory.max", used - statistic(folder / "memory.stat", "inactive_file"), root, limits);
}

void read_first(const fs::path& folder, std::string_view controller, const fs::path& root,
                ContainerLimits& limits) {
  if (controller == "cpu") {
    take_quota(number_of(first_line(folder / "cpu.cfs_quota_us")),
               number_of(first_line(folder / "cpu.cfs_period_us")), folder / "cpu.cfs_quota_us", root,
               limits);
  } else if (controller == "cpuset") {
    take_cpuset(folder / "cpuset.effective_cpus", root, limits);
  } else {
    const std::int64_t used = number_of(first_line(folder / "memory.usage_in_bytes")).value_or(0);
    take_memory(folder / "memory.limit_in_bytes",
                used - statistic(folder / "memory.stat", "total_inactive_file"), root, limits);
  }
}

}  // namespace

ContainerLimits container_limits(const fs::path& root) {
  ContainerLimits limits;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    if (hierarchy.second) {
      for (const fs::path& folder : folders_of(hierarchy, {}, root)) read_second(folder, root, limits);
      continue;
    }
    for (const std::string_view controller : {"cpu", "cpuset", "memory"}) {
      if (!hierarchy.has(controller)) continue;
      for (const fs::path& folder : folders_of(hierarchy, controller, root))
        read_first(folder, controller, root, limits);
    }
  }
  return limits;
}

int usable_threads(int cpus, const ContainerLimits& limits) {
  int threads = std::max(cpus, 1);
  if (limits.cpuset > 0) threads = std::min(threads, limits.cpuset);
  if (limits.cpu_quota > 0 && limits.cpu_quota < threads)
    threads = std::max(static_cast<int>(std::floor(limits.cpu_quota)), 1);
  return threads;
}

}  // namespace nibble
