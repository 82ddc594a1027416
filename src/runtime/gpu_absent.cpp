// For a program without device code.
#include "runtime/gpu.h"

namespace nibble {

std::vector<GpuCheck> check_gpu() { return {}; }

void probe_gpus(Machine&) {}

std::vector<std::string> gpu_addresses(int, int) { return {}; }

Result<std::unique_ptr<Worker>> start_gpu_worker(const ModelConfig&, GpuWeights, const WorkerLimits&,
                                                 std::unique_ptr<ProcessLinks>) {
  return invalid_argument("this nibble was built without CUDA; give --device cpu");
}

Status follow_gpu_worker(const ModelConfig&, GpuWeights, const WorkerLimits&, std::unique_ptr<ProcessLinks>,
                         const std::function<void()>&) {
  return invalid_argument("this nibble was built without CUDA; give --device cpu");
}

}  // namespace nibble
