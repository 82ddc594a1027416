// The GPU side of the runtime as the engine sees it. Without device code in the program every question has
// the answer "there is none".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weight_source.h"
#include "comm/process_links.h"
#include "plan/machine.h"
#include "runtime/worker.h"

namespace nibble {

enum class GpuVerdict : std::uint8_t { ok, warn, fail, skip };

// What doctor finds of the first GPU: its copies, what its driver says of it, and each family of kernels.
struct GpuCheck {
  std::string name;
  GpuVerdict verdict = GpuVerdict::ok;
  std::string found;
  std::string advice;  // what to do

  GpuCheck warn(std::string what) const { return {name, GpuVerdict::warn, found, std::move(what)}; }
  GpuCheck fail(std::string what) const { return {name, GpuVerdict::fail, found, std::move(what)}; }
  GpuCheck skip(std::string why) const { return {name, GpuVerdict::skip, std::move(why), {}}; }
};
std::vector<GpuCheck> check_gpu();

// Adds this process's GPUs to what was probed of its machine.
void probe_gpus(Machine& machine);

// What this process finds, GPUs and all.
inline Machine probe_machine_with_gpus() {
  Machine machine = probe_machine();
  probe_gpus(machine);
  return machine;
}

// Where a GPU's weights come from: a checkpoint, or else a seed, which gives every tensor random values with
// the statistics of real ones.
struct GpuWeights {
  std::optional<WeightSource> source;
  std::uint64_t seed = 0;
  std::function<void(double done, double total)> progress;  // bytes of the source; empty: nobody asks
};

// Where some of this process's GPUs are, which no two of a host share.
std::vector<std::string> gpu_addresses(int first, int count);

// A worker on this process's GPUs, from limits.device on. Takes all memory that steps within the limits need,
// fills the weights, captures the graphs and holds each to the bits of a step without one. Of the ranks the
// processes of `links` have an equal share each, and this is the first of them; without it all are here.
Result<std::unique_ptr<Worker>> start_gpu_worker(const ModelConfig& config, GpuWeights weights,
                                                 const WorkerLimits& limits,
                                                 std::unique_ptr<ProcessLinks> links = nullptr);
// In another process than the first: makes that one's steps, until it has ended. `ready` is called once they
// can come.
Status follow_gpu_worker(const ModelConfig& config, GpuWeights weights, const WorkerLimits& limits,
                         std::unique_ptr<ProcessLinks> links, const std::function<void()>& ready);

}  // namespace nibble
