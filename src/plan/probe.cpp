// Linux's own words about this machine. What a kernel refuses although the CPU names its instructions (tiles
// that the system does not grant) is left out of the features.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/thread_pool.h"
#include "ops/linear/dot_kernels.h"
#include "plan/kernel_table.h"
#include "plan/machine.h"

namespace nibble {
namespace {

// The value of a line "name : value"; empty where there is none.
std::string line_of(const char* file, std::string_view name) {
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

std::int64_t kilobytes_of(std::string_view name) {
  std::istringstream value(line_of("/proc/meminfo", name));
  std::int64_t kilobytes = 0;
  value >> kilobytes;
  return kilobytes * 1024;
}

// Of all that the CPU names, those that some kernel asks for.
std::vector<std::string> known_features() {
  std::istringstream flags(line_of("/proc/cpuinfo", "flags"));
  std::vector<std::string> all;
  for (std::string flag; flags >> flag;) all.push_back(flag);
  std::vector<std::string> known;
  for (const std::string& flag : all) {
    if (needed_by_some_kernel(flag)) known.push_back(flag);
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  const DotKernels* tiles = find_dot_kernels("amx");
  if (tiles == nullptr || !tiles->supported())
    std::erase_if(known, [](const std::string& name) { return name.starts_with("amx"); });
  return known;
}

// "0" or "0-3".
int memory_nodes() {
  std::ifstream online("/sys/devices/system/node/online");
  std::string nodes;
  if (!(online >> nodes)) return 1;
  const std::size_t dash = nodes.find_last_of("-,");
  return dash == std::string::npos ? 1 : std::atoi(nodes.c_str() + dash + 1) + 1;
}

}  // namespace

Machine probe_machine() {
  Machine machine{.name = "this"};
  machine.cpu.model = line_of("/proc/cpuinfo", "model name");
  machine.cpu.vendor = line_of("/proc/cpuinfo", "vendor_id");
  machine.cpu.family = std::atoi(line_of("/proc/cpuinfo", "cpu family").c_str());
  machine.cpu.threads = static_cast<int>(allowed_cpus().size());
  machine.cpu.features = known_features();
  machine.cpu.memory_bytes = kilobytes_of("MemTotal");
  machine.cpu.available_bytes = kilobytes_of("MemAvailable");
  machine.cpu.memory_nodes = memory_nodes();
  return machine;
}

}  // namespace nibble
