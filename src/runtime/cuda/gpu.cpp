#include "runtime/gpu.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "models/cuda/random_weights.h"
#include "ops/cuda/waiting_grids.h"
#include "runtime/cuda/gpu_worker.h"
#include "runtime/cuda/weight_upload.h"
#include "tensor/cuda_check.h"

namespace nibble {

namespace {

// The driver loads a kernel when it is first launched, and may let that wait until the device is idle: which
// it never is while a kernel there waits for another GPU, whose launch may wait for the same driver. So where
// there are several all are loaded with the program. Must come before the first call of the driver.
void load_kernels_at_once() {
  std::error_code error;
  int devices = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error))
    devices += entry.is_directory() ? 1 : 0;
  if (devices > 1) ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace

void probe_gpus(Machine& machine) {
  load_kernels_at_once();
  machine.gpu = {};
  if (int version = 0; cudaDriverGetVersion(&version) == cudaSuccess && version > 0) {
    std::erase_if(machine.libraries, [](const FoundLibrary& each) { return each.name == "cuda_driver"; });
    machine.libraries.push_back(
        {.name = "cuda_driver",
         .version = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10),
         .problem = {}});
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    machine.gpu.problem = cudaGetErrorString(cudaGetLastError());
    return;
  }
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    machine.gpu.problem = cudaGetErrorString(cudaGetLastError());
    return;
  }
  machine.gpu.model = properties.name;
  machine.gpu.count = count;
  machine.gpu.compute_capability = properties.major * 10 + properties.minor;
  machine.gpu.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  add_known_rates(machine.gpu);
  // What the driver cannot answer counts as no way. Only NVLink carries atomic operations of another GPU.
  add_peers(machine.gpu, [](int from, int to) {
    int access = 0, atomics = 0;
    const bool asked =
        cudaDeviceCanAccessPeer(&access, from, to) == cudaSuccess &&
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to) == cudaSuccess;
    if (!asked) (void)cudaGetLastError();  // the next check must not find it
    return PeerLink{.access = asked && access != 0, .nvlink = asked && atomics != 0};
  });
}

Result<std::unique_ptr<Worker>> start_gpu_worker(const ModelConfig& config, GpuWeights weights,
                                                 const WorkerLimits& limits) {
  std::unique_ptr<PinnedPieces> pieces;
  if (weights.source && limits.ranks > 1) {
    NIBBLE_ASSIGN(pieces, PinnedPieces::make(PinnedPieces::places_of_rank * limits.ranks));
  }
  const auto load = [&](const CudaPlace& place, int device) -> Result<std::unique_ptr<GpuRank>> {
    cuda_check(cudaSetDevice(device));
    if (const Status places = check_places(waiting_grids()); !places.ok())
      return Status(places.code(), places.message() + ": give --device cpu, and report this");
    if (!weights.source) {
      RandomWeights random(weights.seed);
      return GpuRank::load(config, place, device, random, limits);
    }
    // Each rank reads its part alone, over its own link, and what others want too with them; one of them
    // tells of all.
    ThreadPool threads(threads_of_rank(limits.threads, limits.ranks, place.part.rank));
    WeightUploadOptions options{.pieces = pieces.get(), .progress = {}};
    if (place.part.rank == 0) options.progress = weights.progress;
    NIBBLE_ASSIGN(WeightUpload upload, WeightUpload::begin(*weights.source, threads, std::move(options)));
    return GpuRank::load(config, place, device, upload, limits);
  };
  NIBBLE_ASSIGN(std::unique_ptr<Worker> worker, GpuWorker::start(config, load, limits));
  if (weights.source) NIBBLE_RETURN_IF_ERROR(weights.source->intact());
  return worker;
}

}  // namespace nibble
