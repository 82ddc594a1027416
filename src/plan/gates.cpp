#include "plan/gates.h"

#include <algorithm>
#include <charconv>

#include "base/quote.h"
#include "plan/version.h"

namespace nibble {
namespace {

constexpr std::string_view driver_users[] = {"device cuda"};
constexpr std::string_view capability_users[] = {"moe_runner sm90_*", "attention sm90_*"};
constexpr std::string_view peer_users[] = {"all_reduce gather", "token_exchange normal",
                                           "token_exchange low_latency"};
constexpr std::string_view nccl_users[] = {"all_reduce nccl", "all_reduce ring"};
constexpr std::string_view cpu_users[] = {"device cpu"};

constexpr KnownBad bad_nccl[] = {
    {"2.28.3", "its symmetric kernels can corrupt small messages, as the release notes of 2.28.7 say"},
};

// Each minimum, maximum and bad version has its source beside it. Nothing of nibble calls what has no users
// yet; `nibble doctor` tells what of it a machine has.
constexpr VersionGate list[] = {
    {.name = "cpu",
     .what = "instructions of the CPU",
     .used_by = cpu_users,
     .how = "/proc/cpuinfo",
     .advice = "each kernel names the instructions it needs; cpu_scalar needs none"},
    // The device code is built with CUDA 13.0, whose programs run on drivers of any CUDA 13 (CUDA's minor
    // version compatibility); docs/device has the driver that it ran on.
    {.name = "cuda_driver",
     .what = "NVIDIA's driver",
     .minimum = "13.0",
     .maximum = "13",
     .used_by = driver_users,
     .how = "libcuda.so.1: cuDriverGetVersion",
     .advice = "install a driver of branch 580 or later"},
    // The program has its own, linked statically; this is the one that libraries of others bring.
    {.name = "cuda_runtime",
     .what = "the CUDA runtime",
     .minimum = "13.0",
     .maximum = "13",
     .used_by = {},
     .how = "libcudart.so.13: cudaRuntimeGetVersion",
     .advice = "install the runtime of CUDA 13"},
    // The device code is compiled for sm_90a alone (cmake/nibble_cuda.cmake), which later GPUs do not run.
    {.name = "compute_capability",
     .what = "the GPU's architecture",
     .minimum = "9.0",
     .maximum = "9.0",
     .used_by = capability_users,
     .how = "the device's attributes",
     .advice = "nibble has kernels for SM90: H100, H200"},
    {.name = "peer_access",
     .what = "GPUs that read one another's memory",
     .used_by = peer_users,
     .how = "cuDeviceCanAccessPeer",
     .advice = "use GPUs of one host that NVLink joins"},
    // 2.27.7 is the first that is packaged for CUDA 13 (nvidia-nccl-cu13); 2.28.9 is the last whose header
    // was held against what is called here.
    {.name = "nccl",
     .what = "NVIDIA's collectives",
     .minimum = "2.27.7",
     .maximum = "2.28",
     .bad = bad_nccl,
     .used_by = nccl_users,
     .how = "libnccl.so.2: ncclGetVersion",
     .advice = "install NCCL 2.28.9"},
    // Its versions are CUDA's: what CUDA 13 ships is 13.
    {.name = "cublaslt",
     .what = "NVIDIA's matrix products",
     .minimum = "13.0",
     .maximum = "13",
     .used_by = {},
     .how = "libcublasLt.so.13: cublasLtGetVersion",
     .advice = "install cuBLAS of CUDA 13"},
    // The version is the standard's: libmpi.so.40 is Open MPI 4 and 5, which say 3.1.
    {.name = "mpi",
     .what = "the launch of several hosts",
     .minimum = "3.1",
     .maximum = "4",
     .used_by = {},
     .how = "libmpi.so.40: MPI_Get_version",
     .advice = "install Open MPI 4.1"},
};

// "2.28" takes 2.28.9: what a maximum does not name is as large as it likes.
bool above(const Version& version, std::string_view maximum) {
  const std::optional<Version> limit = parse_version(maximum);
  const std::size_t named = static_cast<std::size_t>(std::count(maximum.begin(), maximum.end(), '.')) + 1;
  for (std::size_t i = 0; limit && i < named; ++i) {
    if (version.parts[i] != limit->parts[i]) return version.parts[i] > limit->parts[i];
  }
  return false;
}

std::string range_of(const VersionGate& gate) {
  if (gate.minimum.empty()) return "any";
  return std::string(gate.minimum) + " or later" +
         (gate.maximum.empty() ? std::string() : ", up to " + std::string(gate.maximum));
}

std::vector<std::string_view> names_in(std::string_view text) {
  std::vector<std::string_view> names;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) names.push_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names;
}

// What a machine's facts say of a gate that is no library.
std::optional<FoundLibrary> fact_of(const VersionGate& gate, const Machine& machine) {
  if (gate.name == "cpu") return FoundLibrary{.name = "cpu", .version = "0", .problem = {}};
  if (machine.gpu.count == 0) return std::nullopt;
  if (gate.name == "compute_capability") {
    const int capability = machine.gpu.compute_capability;
    return FoundLibrary{.name = "compute_capability",
                        .version = std::to_string(capability / 10) + "." + std::to_string(capability % 10),
                        .problem = {}};
  }
  if (gate.name == "peer_access") {
    const GpuFacts& gpu = machine.gpu;
    if (gpu.count == 1) return FoundLibrary{.name = "peer_access", .version = "0", .problem = {}};
    std::string problem = gpu.peer_problem;
    if (!gpu.peers_probed && !machine.declared) problem = "nobody asked the driver";
    if (!gpu.peers_probed && machine.declared && gpu.link_bandwidth <= 0)
      problem = "the GPUs cannot reach one another";
    return FoundLibrary{.name = "peer_access", .version = problem.empty() ? "0" : "", .problem = problem};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Version> parse_version(std::string_view text) {
  Version version;
  for (std::size_t i = 0; i < version.parts.size(); ++i) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version.parts[i]);
    if (error != std::errc() || version.parts[i] < 0) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) return version;
    if (text[0] != '.') return std::nullopt;
    text.remove_prefix(1);
  }
  return std::nullopt;
}

std::string_view gate_status_name(GateStatus status) {
  constexpr std::string_view names[] = {"ok",      "unprobed",  "missing",     "too_old",
                                        "too_new", "known_bad", "incompatible"};
  return names[static_cast<std::size_t>(status)];
}

std::span<const VersionGate> gates() { return list; }

const VersionGate* find_gate(std::string_view name) {
  const auto found = std::find_if(std::begin(list), std::end(list),
                                  [&](const VersionGate& gate) { return gate.name == name; });
  return found == std::end(list) ? nullptr : &*found;
}

GateResult check_gate(const VersionGate& gate, const FoundLibrary& found) {
  GateResult result{.name = std::string(gate.name), .found = found.version, .status = GateStatus::ok};
  const auto fail = [&](GateStatus status, const std::string& what) {
    result.status = status;
    result.why = what + "; " + std::string(gate.advice);
    return result;
  };
  const std::string name(gate.name);
  if (!found.problem.empty())
    return fail(GateStatus::incompatible, name + " cannot be used: " + found.problem);
  if (found.version.empty())
    return fail(GateStatus::missing, name + " is missing (" + std::string(gate.how) + ")");
  const std::optional<Version> version = parse_version(found.version);
  if (!version)
    return fail(GateStatus::incompatible, name + " says of itself the version " + quote(found.version));
  for (const KnownBad& bad : gate.bad) {
    if (parse_version(bad.version) == version)
      return fail(GateStatus::known_bad,
                  name + " " + found.version + " is known to be bad: " + std::string(bad.why));
  }
  if (!gate.minimum.empty() && *version < *parse_version(gate.minimum))
    return fail(GateStatus::too_old,
                name + " " + found.version + " is too old: it must be " + range_of(gate));
  if (!gate.maximum.empty() && above(*version, gate.maximum)) {
    return fail(GateStatus::too_new, name + " " + found.version +
                                         " is newer than what nibble was tested with: it must be " +
                                         range_of(gate));
  }
  return result;
}

std::vector<GateResult> check_gates(const Machine& machine, std::string_view overrides) {
  const std::vector<std::string_view> accepted = names_in(overrides);
  std::vector<GateResult> results;
  for (const VersionGate& gate : list) {
    std::optional<FoundLibrary> found = fact_of(gate, machine);
    for (const FoundLibrary& library : machine.libraries) {
      if (library.name == gate.name) found = library;
    }
    GateResult result{.name = std::string(gate.name)};
    if (found) {
      result = check_gate(gate, *found);
    } else if (!machine.declared && machine.gpu.count > 0) {
      result = check_gate(gate, {.name = std::string(gate.name), .version = {}, .problem = {}});
    }
    result.overridden =
        !result.open() && std::find(accepted.begin(), accepted.end(), gate.name) != accepted.end();
    results.push_back(std::move(result));
  }
  return results;
}

Status check_overrides(std::string_view overrides) {
  for (const std::string_view name : names_in(overrides)) {
    if (find_gate(name) != nullptr) continue;
    std::string known;
    for (const VersionGate& gate : list) known += (known.empty() ? "" : ", ") + std::string(gate.name);
    return invalid_argument("--override-gates: " + quote(name) + " is no gate; give names of " + known);
  }
  return {};
}

bool needs_gate(const VersionGate& gate, std::string_view field, std::string_view value) {
  const std::string use = std::string(field) + " " + std::string(value);
  return std::any_of(gate.used_by.begin(), gate.used_by.end(), [&](std::string_view user) {
    return user.ends_with('*') ? std::string_view(use).starts_with(user.substr(0, user.size() - 1))
                               : use == user;
  });
}

void write_gates(std::span<const GateResult> results, JsonWriter& json) {
  json.begin_array();
  for (const GateResult& result : results) {
    const VersionGate& gate = *find_gate(result.name);
    json.begin_object().member("name", result.name).member("found", result.found);
    json.member("min", gate.minimum).member("max", gate.maximum).key("bad").begin_array();
    for (const KnownBad& bad : gate.bad) json.value(bad.version);
    json.end_array()
        .member("status", gate_status_name(result.status))
        .member("overridden", result.overridden)
        .member("why", result.why)
        .key("used_by")
        .begin_array();
    for (const std::string_view user : gate.used_by) json.value(user);
    json.end_array().end_object();
  }
  json.end_array();
}

}  // namespace nibble
