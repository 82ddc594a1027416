// What a plan knows of a machine: facts alone, probed or declared, so that a plan for a machine needs no such
// machine. A rate that nobody measured or declared is 0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/status.h"

namespace nibble {

struct CpuFacts {
  std::string model;
  std::string vendor;                 // GenuineIntel, AuthenticAMD
  int family = 0;                     // the vendor's number: of AMD's 25 is Zen 3 and 4, 26 is Zen 5
  int threads = 0;                    // that this process may use
  std::vector<std::string> features;  // ascending, as Linux names them: avx2, avx512_bf16, amx_tile
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;  // without pushing others out
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
  std::string problem;            // why there is none, where one was looked for
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
  bool operator==(const Machine&) const = default;
};

// "cpu", "h100x1" .. "h100x8", "h200x1" .. "h200x8", "b200x1" .. "b200x8"; anything else is refused with
// what there is.
Result<Machine> declared_machine(std::string_view name);

// What this process finds, without measuring: rates are 0. GPUs are found by the runtime (probe_gpus).
Machine probe_machine();

// The rates of a declared GPU of that model, where there is one.
void add_known_rates(GpuFacts& gpu);

// "machine" of `nibble plan --json`, which read_machine takes back.
void write_machine(const Machine& machine, JsonWriter& json);
// A machine of that shape is declared. What is absent is as if the machine had none of it.
Result<Machine> read_machine(JsonValue json);

}  // namespace nibble
