// What the driver's management library (NVML) says of a GPU: clocks, what holds them down, errors of its
// memory, its link. The library comes with a driver and is opened where it is asked for; nothing here needs
// CUDA.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/gpu.h"

namespace nibble {

// Of a thing and the most that it can be.
struct Reading {
  unsigned now = 0, most = 0;
};

// What a GPU or its driver does not tell is absent.
struct GpuHealth {
  std::optional<Reading> sm_mhz, memory_mhz;
  std::optional<Reading> link_generation, link_width;  // of PCIe
  std::optional<std::uint64_t> slowdown;               // reasons, as NVML's bits
  std::optional<bool> ecc;
  std::optional<std::uint64_t> corrected, uncorrected;  // errors of the memory since the driver was loaded
  std::optional<bool> remap_pending, remap_failed;      // of rows of the memory that went bad
  std::optional<unsigned> celsius;
};

// Of the GPU at that PCI address. not_found where there is no such library.
Result<GpuHealth> read_gpu_health(const std::string& pci_address, const char* library = "libnvidia-ml.so.1");

// A line each, with what to do where something is not as it should be. Asked for while the GPU works, or
// right afterwards: an idle one has low clocks and a slow link, as it should.
std::vector<GpuCheck> judge(const GpuHealth& health);

}  // namespace nibble
