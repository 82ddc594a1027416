// For a program without device code.
#include "runtime/gpu.h"

namespace nibble {

std::vector<GpuCheck> check_gpu() { return {}; }

void probe_gpus(Machine&) {}

Result<std::unique_ptr<Worker>> start_gpu_worker(const ModelConfig&, GpuWeights, const WorkerLimits&) {
  return invalid_argument("this nibble was built without CUDA; give --device cpu");
}

}  // namespace nibble
