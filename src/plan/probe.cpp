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

void limit(CpuFacts& cpu, const ContainerLimits& limits) {
  cpu.threads = usable_threads(cpu.cpus, limits);
  cpu.cpu_quota = limits.cpu_quota;
  cpu.cpu_quota_from = limits.cpu_quota_from;
  if (limits.memory == 0) return;
  if (limits.memory < cpu.memory_bytes || limits.memory_free < cpu.available_bytes)
    cpu.memory_limit_from = limits.memory_from;
  cpu.memory_bytes = std::min(cpu.memory_bytes, limits.memory);
  cpu.available_bytes = std::min(cpu.available_bytes, limits.memory_free);
}

Machine probe_machine() {
  Machine machine{.name = "this"};
  machine.cpu.model = line_of("/proc/cpuinfo", "model name");
  machine.cpu.vendor = line_of("/proc/cpuinfo", "vendor_id");
  machine.cpu.family = std::atoi(line_of("/proc/cpuinfo", "cpu family").c_str());
  const std::vector<int> cpus = allowed_cpus();
  machine.cpu.cpus = static_cast<int>(cpus.size());
  const std::vector<int> claimed = claimed_cpus();
  machine.cpu.claimed_cpus = static_cast<int>(std::count_if(
      cpus.begin(), cpus.end(), [&](int cpu) { return std::ranges::count(claimed, cpu) != 0; }));
  machine.cpu.features = known_features();
  machine.cpu.memory_bytes = kilobytes_of("MemTotal");
  machine.cpu.available_bytes = kilobytes_of("MemAvailable");
  machine.cpu.memory_nodes = memory_nodes();
  limit(machine.cpu, container_limits());
  return machine;
}

}  // namespace nibble
