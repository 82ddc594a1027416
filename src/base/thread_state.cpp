#include "base/thread_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

namespace nibble {
namespace {

struct ThreadStat {
  char text[512];
  std::string_view name;
  char state = 0;            // 0: there is no such thread
  std::string_view numbers;  // behind the state
};

// A line of /proc: the number, the name in brackets, which may hold any letters, and the state.
void read_stat(pid_t thread, ThreadStat& stat) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", static_cast<int>(thread));
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const ssize_t bytes = ::read(file, stat.text, sizeof stat.text);
  ::close(file);
  const std::string_view line(stat.text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  const std::size_t begin = line.find('('), end = line.rfind(')');
  if (begin == line.npos || end == line.npos || end + 2 >= line.size()) return;
  stat.name = line.substr(begin + 1, end - begin - 1);
  stat.state = line[end + 2];
  stat.numbers = line.substr(end + 3);
}

// Of the tenth and eleventh number behind the state, in the system's ticks: in user mode and in the kernel.
std::chrono::milliseconds cpu_time(const ThreadStat& stat) {
  constexpr int user = 10, kernel = 11;
  std::int64_t ticks = 0;
  std::string_view rest = stat.numbers;
  for (int i = 0; i <= kernel; ++i) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc()) return {};
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    if (i >= user) ticks += number;
  }
  return std::chrono::milliseconds(ticks * 1000 / ::sysconf(_SC_CLK_TCK));
}

bool works(const ThreadStat& stat) { return stat.state == 'R' || stat.state == 'D'; }

}  // namespace

ThreadState state_of_thread(pid_t thread) {
  ThreadStat stat;
  read_stat(thread, stat);
  return {.works = works(stat), .cpu = cpu_time(stat)};
}

bool some_thread_works(std::span<const std::string_view> names) {
  std::error_code error;
  for (auto at = std::filesystem::directory_iterator("/proc/self/task", error);
       !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string number = at->path().filename().string();
    pid_t thread = 0;
    std::from_chars(number.data(), number.data() + number.size(), thread);
    ThreadStat stat;
    read_stat(thread, stat);
    if (works(stat) && std::find(names.begin(), names.end(), stat.name) != names.end()) return true;
  }
  return false;
}

}  // namespace nibble
