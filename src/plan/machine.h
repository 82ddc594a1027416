// What a plan knows of a machine: facts alone, probed or declared, so that a plan for a machine needs no such
// machine. A rate that nobody measured or declared is 0.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/container_limits.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/status.h"
#include "plan/tuning_table.h"

namespace nibble {

struct CpuFacts {
  std::string model;
  std::string vendor;  // GenuineIntel, AuthenticAMD
  int family = 0;      // the vendor's number: of AMD's 25 is Zen 3 and 4, 26 is Zen 5
  int threads = 0;     // that can run at the same time
  // CPUs that this process may run on; 0: as many as threads. A container's quota leaves fewer threads than
  // those.
  int cpus = 0;
  int claimed_cpus = 0;        // of those, that pools of nibble have pinned threads to (base/cpu_claims.h)
  double cpu_quota = 0;        // CPUs' worth of time that a container has; 0: no limit
  std::string cpu_quota_from;  // the file that says so
  std::vector<std::string> features;  // ascending, as Linux names them: avx2, avx512_bf16, amx_tile
  // The machine's, or what a container's limit leaves.
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;  // without pushing others out
  std::string memory_limit_from;     // the file that limits them; empty: none does
  int memory_nodes = 1;
  double read_bandwidth = 0;  // bytes/s, all threads together
  double bf16_flops = 0;      // a second, all threads together; a multiply-add is two
  double f32_flops = 0;

  bool has(std::string_view feature) const;
  bool operator==(const CpuFacts&) const = default;
};

// `count` equal ones in one host; 0: none.
struct GpuFacts {
  std::string model;
  int count = 0;
  int compute_capability = 0;     // 90: SM90
  std::int64_t memory_bytes = 0;  // of each
  double read_bandwidth = 0;      // bytes/s of each
  double bf16_flops = 0;          // a second of each, dense
  double link_bandwidth = 0;      // bytes/s between two of them, one way
  // Of several: whether the driver was asked which of them reach which, and what it said of those that do
  // not.
  bool peers_probed = false;
  std::string peer_problem;
  std::string problem;  // why there is none, where one was looked for
  bool operator==(const GpuFacts&) const = default;
};

// A library or driver that was looked for.
struct FoundLibrary {
  std::string name;     // a gate's
  std::string version;  // empty: not there, or `problem` says why it cannot be used
  std::string problem;
  bool operator==(const FoundLibrary&) const = default;
};

struct Machine {
  std::string name;
  bool declared =
      false;  // not probed: what is only declared in nibble may be planned for it, never run on it
  CpuFacts cpu;
  GpuFacts gpu;
  std::vector<FoundLibrary> libraries;
  std::optional<TuningTable> tuning;  // what was measured of choices on such a machine, where it is given
  bool operator==(const Machine&) const = default;
};

// "cpu", "h100x1" .. "h100x8", "h200x1" .. "h200x8", "b200x1" .. "b200x8"; anything else is refused with
// what there is.
Result<Machine> declared_machine(std::string_view name);

// Takes a container's limits into account: the CPUs are known, threads follow, memory becomes less.
void limit(CpuFacts& cpu, const ContainerLimits& limits);

// What this process finds, without measuring: rates are 0. GPUs are found by the runtime (probe_gpus).
Machine probe_machine();

// A table that a file has; refused where it is of another kind of machine.
Status take_tuning(const std::string& file, Machine& machine);

// The rates of a declared GPU of that model, where there is one; of several, but for what joins them.
void add_known_rates(GpuFacts& gpu);

// What the driver says of one GPU's way to another's memory.
struct PeerLink {
  bool access = false;
  bool nvlink = false;
};
// Notes which GPUs reach which. The model's rate of links counts only where NVLink joins all of them.
void add_peers(GpuFacts& gpu, const std::function<PeerLink(int from, int to)>& link);

// "machine" of `nibble plan --json`, which read_machine takes back.
void write_machine(const Machine& machine, JsonWriter& json);
// A machine of that shape is declared. What is absent is as if the machine had none of it.
Result<Machine> read_machine(JsonValue json);

}  // namespace nibble
