// What a driver, library or device must be for what needs it to run. Each gate knows a minimum, a maximum and
// the versions between them that are known to be bad; whatever needs a gate that is not open is refused by
// name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "base/status.h"
#include "plan/machine.h"

namespace nibble {

enum class GateStatus : std::uint8_t {
  ok,
  unprobed,  // a declared machine's: nothing was looked for
  missing,
  too_old,
  too_new,
  known_bad,
  incompatible,  // there, and not what its name says: a symbol is missing, a size differs, it crashes or
                 // hangs
};
std::string_view gate_status_name(GateStatus status);

struct KnownBad {
  std::string_view version;
  std::string_view why;
};

struct VersionGate {
  std::string_view name;  // "nccl"
  std::string_view what;
  std::string_view minimum;  // empty: any
  std::string_view maximum;  // empty: any; otherwise the last that is known to work, its patches included
  std::span<const KnownBad> bad;
  // "all_reduce nccl": a field of the plan and its value, or the beginning of one that ends with '*'.
  std::span<const std::string_view> used_by;
  std::string_view how;     // it is found
  std::string_view advice;  // what to do about it
};
std::span<const VersionGate> gates();
const VersionGate* find_gate(std::string_view name);

struct GateResult {
  std::string name;
  std::string found;  // a version; empty: none
  GateStatus status = GateStatus::unprobed;
  std::string why;          // and what to do; empty where it is open
  bool overridden = false;  // by --override-gates: what needs it runs nevertheless, and health says degraded

  bool open() const { return status == GateStatus::ok || status == GateStatus::unprobed || overridden; }
  bool operator==(const GateResult&) const = default;
};

// One gate against what was found under its name.
GateResult check_gate(const VersionGate& gate, const FoundLibrary& found);
// All gates for a machine. `overrides` are names between commas.
std::vector<GateResult> check_gates(const Machine& machine, std::string_view overrides);
// Refused where it names a gate that there is not.
Status check_overrides(std::string_view overrides);

// Whether `field` with `value` needs the gate.
bool needs_gate(const VersionGate& gate, std::string_view field, std::string_view value);

void write_gates(std::span<const GateResult> results, JsonWriter& json);

}  // namespace nibble
