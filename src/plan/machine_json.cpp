#include <algorithm>

#include "base/quote.h"
#include "plan/machine.h"

namespace nibble {
namespace {

constexpr std::int64_t most_bytes = std::int64_t{1} << 50;

// Reads members of one object; the first that is wrong is kept, and every later read gives nothing.
class Reader {
 public:
  Reader(std::optional<JsonValue> object, std::string where) : object_(object), where_(std::move(where)) {}

  std::string text(std::string_view name) {
    const std::optional<JsonValue> value = find(name);
    if (!value) return {};
    if (!value->is_string()) return refuse(name, "a string"), std::string();
    return std::string(value->as_string());
  }
  std::int64_t integer(std::string_view name, std::int64_t most, std::int64_t otherwise = 0) {
    const std::optional<JsonValue> value = find(name);
    if (!value) return otherwise;
    if (!value->is_integer() || value->as_integer() < 0 || value->as_integer() > most) {
      refuse(name, "a whole number from 0 to " + std::to_string(most));
      return otherwise;
    }
    return value->as_integer();
  }
  bool boolean(std::string_view name) {
    const std::optional<JsonValue> value = find(name);
    if (!value) return false;
    if (!value->is_bool()) return refuse(name, "true or false"), false;
    return value->as_bool();
  }
  double rate(std::string_view name) {
    const std::optional<JsonValue> value = find(name);
    if (!value) return 0;
    if (!value->is_number() || value->as_double() < 0) return refuse(name, "a number from 0"), 0.0;
    return value->as_double();
  }
  std::vector<std::string> texts(std::string_view name) {
    std::vector<std::string> list;
    const std::optional<JsonValue> value = find(name);
    if (!value) return list;
    if (!value->is_array()) return refuse(name, "a list of strings"), list;
    for (const JsonValue each : value->elements()) {
      if (!each.is_string()) return refuse(name, "a list of strings"), list;
      list.emplace_back(each.as_string());
    }
    std::sort(list.begin(), list.end());
    return list;
  }
  Status only(std::initializer_list<std::string_view> names) {
    if (!object_ || !status_.ok()) return status_;
    if (!object_->is_object()) return invalid_argument(where_ + " must be an object");
    for (const auto& [name, value] : object_->members()) {
      if (std::find(names.begin(), names.end(), name) == names.end())
        return invalid_argument(where_ + " has an unknown member " + quote(name) +
                                "; see what --machine-json prints");
    }
    return status_;
  }

 private:
  std::optional<JsonValue> find(std::string_view name) {
    if (!status_.ok() || !object_) return std::nullopt;
    std::optional<JsonValue> value = object_->find(name);
    if (value && value->is_null()) return std::nullopt;
    return value;
  }
  void refuse(std::string_view name, const std::string& what) {
    status_ = invalid_argument(where_ + "." + std::string(name) + " must be " + what);
  }

  std::optional<JsonValue> object_;
  std::string where_;
  Status status_;
};

Status read_libraries(std::optional<JsonValue> list, std::vector<FoundLibrary>& libraries) {
  if (!list || list->is_null()) return {};
  if (!list->is_array()) return invalid_argument("machine.libraries must be a list");
  for (const JsonValue each : list->elements()) {
    Reader reader(each, "machine.libraries");
    libraries.push_back(
        {.name = reader.text("name"), .version = reader.text("version"), .problem = reader.text("problem")});
    NIBBLE_RETURN_IF_ERROR(reader.only({"name", "version", "problem"}));
  }
  return {};
}

}  // namespace

void write_machine(const Machine& machine, JsonWriter& json) {
  const CpuFacts& cpu = machine.cpu;
  json.begin_object().member("name", machine.name).member("declared", machine.declared);
  json.key("cpu")
      .begin_object()
      .member("model", cpu.model)
      .member("vendor", cpu.vendor)
      .member("family", cpu.family)
      .member("threads", cpu.threads)
      .member("cpus", cpu.cpus)
      .member("claimed_cpus", cpu.claimed_cpus)
      .member("cpu_quota", cpu.cpu_quota)
      .member("cpu_quota_from", cpu.cpu_quota_from);
  json.key("features").begin_array();
  for (const std::string& feature : cpu.features) json.value(feature);
  json.end_array()
      .member("memory_bytes", cpu.memory_bytes)
      .member("available_bytes", cpu.available_bytes)
      .member("memory_limit_from", cpu.memory_limit_from)
      .member("memory_nodes", cpu.memory_nodes)
      .member("read_bandwidth", cpu.read_bandwidth)
      .member("bf16_flops", cpu.bf16_flops)
      .member("f32_flops", cpu.f32_flops)
      .end_object();
  const GpuFacts& gpu = machine.gpu;
  if (gpu.count > 0) {
    json.key("gpu")
        .begin_object()
        .member("model", gpu.model)
        .member("count", gpu.count)
        .member("compute_capability", gpu.compute_capability)
        .member("memory_bytes", gpu.memory_bytes)
        .member("read_bandwidth", gpu.read_bandwidth)
        .member("bf16_flops", gpu.bf16_flops)
        .member("link_bandwidth", gpu.link_bandwidth)
        .member("peers_probed", gpu.peers_probed)
        .member("peer_problem", gpu.peer_problem)
        .end_object();
  }
  if (!machine.libraries.empty()) {
    json.key("libraries").begin_array();
    for (const FoundLibrary& library : machine.libraries) {
      json.begin_object()
          .member("name", library.name)
          .member("version", library.version)
          .member("problem", library.problem)
          .end_object();
    }
    json.end_array();
  }
  json.end_object();
}

Result<Machine> read_machine(JsonValue json) {
  Reader top(json, "machine");
  Machine machine{.name = top.text("name"), .declared = true};
  NIBBLE_RETURN_IF_ERROR(top.only({"name", "declared", "cpu", "gpu", "libraries"}));
  if (machine.name.empty()) machine.name = "a declared machine";

  Reader cpu(json.find("cpu"), "machine.cpu");
  machine.cpu = {.model = cpu.text("model"),
                 .vendor = cpu.text("vendor"),
                 .family = static_cast<int>(cpu.integer("family", 1 << 16)),
                 .threads = static_cast<int>(cpu.integer("threads", 1 << 16, 1)),
                 .cpus = static_cast<int>(cpu.integer("cpus", 1 << 16)),
                 .claimed_cpus = static_cast<int>(cpu.integer("claimed_cpus", 1 << 16)),
                 .cpu_quota = cpu.rate("cpu_quota"),
                 .cpu_quota_from = cpu.text("cpu_quota_from"),
                 .features = cpu.texts("features"),
                 .memory_bytes = cpu.integer("memory_bytes", most_bytes),
                 .available_bytes = cpu.integer("available_bytes", most_bytes),
                 .memory_limit_from = cpu.text("memory_limit_from"),
                 .memory_nodes = static_cast<int>(cpu.integer("memory_nodes", 1024, 1)),
                 .read_bandwidth = cpu.rate("read_bandwidth"),
                 .bf16_flops = cpu.rate("bf16_flops"),
                 .f32_flops = cpu.rate("f32_flops")};
  NIBBLE_RETURN_IF_ERROR(
      cpu.only({"model", "vendor", "family", "threads", "cpus", "claimed_cpus", "cpu_quota", "cpu_quota_from",
                "features", "memory_bytes", "available_bytes", "memory_limit_from", "memory_nodes",
                "read_bandwidth", "bf16_flops", "f32_flops"}));
  if (machine.cpu.threads < 1) return invalid_argument("machine.cpu.threads must be at least 1");

  Reader gpu(json.find("gpu"), "machine.gpu");
  machine.gpu = {.model = gpu.text("model"),
                 .count = static_cast<int>(gpu.integer("count", 8)),
                 .compute_capability = static_cast<int>(gpu.integer("compute_capability", 1000)),
                 .memory_bytes = gpu.integer("memory_bytes", most_bytes),
                 .read_bandwidth = gpu.rate("read_bandwidth"),
                 .bf16_flops = gpu.rate("bf16_flops"),
                 .link_bandwidth = gpu.rate("link_bandwidth"),
                 .peers_probed = gpu.boolean("peers_probed"),
                 .peer_problem = gpu.text("peer_problem")};
  NIBBLE_RETURN_IF_ERROR(gpu.only({"model", "count", "compute_capability", "memory_bytes", "read_bandwidth",
                                   "bf16_flops", "link_bandwidth", "peers_probed", "peer_problem"}));
  NIBBLE_RETURN_IF_ERROR(read_libraries(json.find("libraries"), machine.libraries));
  return machine;
}

}  // namespace nibble
