#include "runtime/gpu_health.h"

#include <dlfcn.h>

#include <memory>
#include <string_view>

namespace nibble {
namespace {

// The part of nvml.h that is asked for. Its functions give 0 for success; handles are opaque.
using Device = void*;
constexpr unsigned sm_clock = 1, memory_clock = 2;  // nvmlClockType_t
constexpr unsigned corrected_errors = 0, uncorrected_errors = 1, since_driver_load = 0;
constexpr unsigned core_temperature = 0;
constexpr std::uint64_t idle = 0x1;

struct Reason {
  std::uint64_t bit;
  std::string_view name;
};
constexpr Reason reasons[] = {{0x2, "clocks set by an application"},
                              {0x4, "the power limit"},
                              {0x8, "the hardware's slowdown"},
                              {0x10, "another GPU's clocks"},
                              {0x20, "the driver's limit for its temperature"},
                              {0x40, "the hardware's limit for its temperature"},
                              {0x80, "the power supply's brake"},
                              {0x100, "the display's clocks"}};

class Nvml {
 public:
  explicit Nvml(const char* file) : library_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    begun_ = library_ != nullptr && call("nvmlInit_v2");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (begun_) call("nvmlShutdown");
    if (library_ != nullptr) dlclose(library_);
  }

  bool is_there() const { return library_ != nullptr; }
  bool begun() const { return begun_; }
  // False where there is no such function, or it says no.
  template <class... Args>
  bool call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library_, name));
    return function != nullptr && function(args...) == 0;
  }
  template <class T, class... Args>
  std::optional<T> get(const char* name, Args... args) const {
    T value{};
    if (!call(name, args..., &value)) return {};
    return value;
  }
  template <class... Args>
  std::optional<Reading> reading(const char* now, const char* most, Args... args) const {
    Reading reading;
    if (!call(now, args..., &reading.now) || !call(most, args..., &reading.most)) return {};
    return reading;
  }

 private:
  void* library_;
  bool begun_ = false;
};

std::string of(const Reading& reading) {
  return std::to_string(reading.now) + " of " + std::to_string(reading.most);
}

GpuCheck clocks(const GpuHealth& health) {
  GpuCheck check{.name = "gpu's clocks"};
  if (!health.sm_mhz || !health.memory_mhz) return check.skip("the driver does not say");
  check.found = "SM " + of(*health.sm_mhz) + " MHz, memory " + of(*health.memory_mhz) + " MHz" +
                (health.celsius ? ", " + std::to_string(*health.celsius) + " C" : "");
  const bool is_idle = health.slowdown.value_or(0) == idle;
  if (!is_idle && health.memory_mhz->now * 10 < health.memory_mhz->most * 9)
    return check.warn("its memory is slower than it can be; nvidia-smi -q -d CLOCK says who set that");
  return check;
}

GpuCheck slowdown(const GpuHealth& health) {
  GpuCheck check{.name = "gpu's slowdown", .found = "nothing holds its clocks down"};
  if (!health.slowdown) return check.skip("the driver does not say");
  std::string found;
  for (const Reason& reason : reasons) {
    if ((*health.slowdown & reason.bit) != 0) found += (found.empty() ? "" : ", ") + std::string(reason.name);
  }
  if (found.empty()) return check;
  check.found = "held down by " + found;
  return check.warn("it computes slower than its figures; nvidia-smi -q -d PERFORMANCE says more");
}

GpuCheck memory_errors(const GpuHealth& health) {
  GpuCheck check{.name = "gpu's memory errors"};
  if (!health.ecc) return check.skip("this GPU's memory corrects no errors");
  if (!*health.ecc) {
    check.found = "ECC is off";
    return check.warn("errors of its memory go unnoticed; nvidia-smi -e 1 and a reset turn ECC on");
  }
  const auto count = [](const std::optional<std::uint64_t>& errors) {
    return errors ? std::to_string(*errors) : std::string("?");
  };
  check.found = "ECC is on: " + count(health.corrected) + " corrected, " + count(health.uncorrected) +
                " uncorrected since the driver was loaded";
  if (health.remap_failed.value_or(false)) {
    check.found += "; a bad row could not be replaced";
    return check.fail("have this GPU replaced");
  }
  if (health.uncorrected.value_or(0) > 0)
    return check.fail("reset this GPU; if they come back, have it replaced");
  if (health.remap_pending.value_or(false)) {
    check.found += "; a bad row waits to be replaced";
    return check.warn("a reset of the GPU replaces it");
  }
  return check;
}

GpuCheck link(const GpuHealth& health) {
  GpuCheck check{.name = "gpu's link"};
  if (!health.link_generation || !health.link_width) return check.skip("the driver does not say");
  check.found =
      "PCIe generation " + of(*health.link_generation) + ", " + of(*health.link_width) + " lanes wide";
  if (health.link_width->now < health.link_width->most)
    return check.warn("weights come slower than they could: look at its slot and riser");
  return check;
}

}  // namespace

Result<GpuHealth> read_gpu_health(const std::string& pci_address, const char* library) {
  const Nvml nvml(library);
  if (!nvml.is_there()) return not_found(std::string(library) + " is not there");
  if (!nvml.begun()) return internal_error(std::string(library) + " does not start");
  Device device = nullptr;
  if (!nvml.call("nvmlDeviceGetHandleByPciBusId_v2", pci_address.c_str(), &device))
    return not_found(std::string(library) + " knows no GPU at " + pci_address);
  GpuHealth health{
      .sm_mhz = nvml.reading("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", device, sm_clock),
      .memory_mhz = nvml.reading("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", device, memory_clock),
      .link_generation =
          nvml.reading("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration", device),
      .link_width = nvml.reading("nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth", device),
      .slowdown = nvml.get<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", device),
      .corrected = nvml.get<unsigned long long>("nvmlDeviceGetTotalEccErrors", device, corrected_errors,
                                                since_driver_load),
      .uncorrected = nvml.get<unsigned long long>("nvmlDeviceGetTotalEccErrors", device, uncorrected_errors,
                                                  since_driver_load),
      .celsius = nvml.get<unsigned>("nvmlDeviceGetTemperature", device, core_temperature)};
  unsigned now = 0, after_reset = 0;
  if (nvml.call("nvmlDeviceGetEccMode", device, &now, &after_reset)) health.ecc = now != 0;
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (nvml.call("nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &pending, &failed)) {
    health.remap_pending = pending != 0;
    health.remap_failed = failed != 0;
  }
  return health;
}

std::vector<GpuCheck> judge(const GpuHealth& health) {
  return {clocks(health), slowdown(health), memory_errors(health), link(health)};
}

}  // namespace nibble
