#include "plan/machine.h"

#include <algorithm>
#include <charconv>

#include "base/options.h"
#include "base/quote.h"

namespace nibble {
namespace {

constexpr std::int64_t MiB = 1 << 20;
constexpr std::int64_t GiB = 1 << 30;

// Reading rates are what a kernel that only reads reaches, where it was measured (H100, H200), and otherwise
// what the vendor states. Arithmetic: what matrix products were measured to reach on an H200 in bfloat16, and
// the vendor's ratio to it.
const GpuFacts gpus[] = {
    {.model = "NVIDIA H100",
     .count = 1,
     .compute_capability = 90,
     .memory_bytes = 81559 * MiB,
     .read_bandwidth = 3.19e12,
     .bf16_flops = 790e12,
     .link_bandwidth = 370e9},
    {.model = "NVIDIA H200",
     .count = 1,
     .compute_capability = 90,
     .memory_bytes = 143771 * MiB,
     .read_bandwidth = 4.65e12,
     .bf16_flops = 790e12,
     .link_bandwidth = 370e9},
    {.model = "NVIDIA B200",
     .count = 1,
     .compute_capability = 100,
     .memory_bytes = 183359 * MiB,
     .read_bandwidth = 8e12,
     .bf16_flops = 2250e12,
     .link_bandwidth = 740e9},
};
constexpr std::string_view gpu_names[] = {"h100", "h200", "b200"};
constexpr int most_gpus = 8;

CpuFacts desktop() {
  return {.model = "8 cores with AVX-512 and two channels of DDR5",
          .threads = 8,
          .features = {"avx2", "avx512_bf16", "avx512_vnni", "avx512bw", "avx512dq", "avx512f", "avx512vbmi",
                       "avx512vl", "f16c", "fma"},
          .memory_bytes = 64 * GiB,
          .available_bytes = 60 * GiB,
          .read_bandwidth = 60e9,
          .bf16_flops = 2e12,
          .f32_flops = 1e12};
}

CpuFacts host_of(int count) {
  CpuFacts cpu = desktop();
  cpu.model = "a server's CPU with AVX-512";
  cpu.threads = 16 * count;
  cpu.memory_bytes = 128 * GiB * count;
  cpu.available_bytes = 120 * GiB * count;
  cpu.read_bandwidth = 200e9;
  cpu.bf16_flops = 4e12 * count;
  cpu.f32_flops = 2e12 * count;
  return cpu;
}

}  // namespace

void add_known_rates(GpuFacts& gpu) {
  for (const GpuFacts& known : gpus) {
    if (!gpu.model.starts_with(known.model)) continue;
    gpu.read_bandwidth = known.read_bandwidth;
    gpu.bf16_flops = known.bf16_flops;
  }
}

void add_peers(GpuFacts& gpu, const std::function<PeerLink(int from, int to)>& link) {
  gpu.link_bandwidth = 0;
  gpu.peers_probed = true;
  bool nvlink = true;
  for (int from = 0; from < gpu.count; ++from) {
    for (int to = 0; to < gpu.count; ++to) {
      if (from == to) continue;
      const PeerLink found = link(from, to);
      nvlink = nvlink && found.nvlink;
      if (!found.access && gpu.peer_problem.empty())
        gpu.peer_problem = "GPU " + std::to_string(from) + " cannot reach GPU " + std::to_string(to);
    }
  }
  if (gpu.count < 2 || !gpu.peer_problem.empty() || !nvlink) return;
  for (const GpuFacts& known : gpus) {
    if (gpu.model.starts_with(known.model)) gpu.link_bandwidth = known.link_bandwidth;
  }
}

bool CpuFacts::has(std::string_view feature) const {
  return std::find(features.begin(), features.end(), feature) != features.end();
}

Result<Machine> declared_machine(std::string_view name) {
  if (name == "cpu") return Machine{.name = "cpu", .declared = true, .cpu = desktop()};
  for (std::size_t i = 0; i < std::size(gpus); ++i) {
    if (!name.starts_with(gpu_names[i]) || name.size() != gpu_names[i].size() + 2) continue;
    int count = 0;
    const char* const digits = name.data() + name.size() - 1;
    const bool number = std::from_chars(digits, digits + 1, count).ec == std::errc();
    if (name[name.size() - 2] != 'x' || !number || count < 1 || count > most_gpus) continue;
    Machine machine{.name = std::string(name), .declared = true, .cpu = host_of(count), .gpu = gpus[i]};
    machine.gpu.count = count;
    return machine;
  }
  constexpr std::string_view examples[] = {"this", "cpu", "h100x1", "h200x1", "b200x1"};
  const std::string_view near = nearest_name(name, examples);
  return invalid_argument(quote(name) + " is no machine that nibble knows" +
                          (near.empty() ? "" : ", the nearest is " + std::string(near)) +
                          "; give this, cpu, h100xN, h200xN or b200xN with N from 1 to 8, or a JSON file as "
                          "--machine-json prints it");
}

Status take_tuning(const std::string& file, Machine& machine) {
  NIBBLE_ASSIGN(TuningTable table, TuningTable::read(file));
  const bool of_gpu = machine.gpu.count > 0 && table.machine == machine.gpu.model;
  if (!of_gpu && table.machine != machine.cpu.model)
    return invalid_argument(file + " was made on " + quote(table.machine) + ", and this is " +
                            quote(machine.gpu.count > 0 ? machine.gpu.model : machine.cpu.model) +
                            "; make one here with nibble tune");
  machine.tuning = std::move(table);
  return {};
}

}  // namespace nibble
