#include "runtime/gpu.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
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

std::vector<std::string> gpu_addresses(int first, int count) {
  std::vector<std::string> addresses;
  for (int device = first; device < first + count; ++device) {
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, device));
    char text[32];
    std::snprintf(text, sizeof text, "%04x:%02x:%02x", static_cast<unsigned>(properties.pciDomainID),
                  static_cast<unsigned>(properties.pciBusID), static_cast<unsigned>(properties.pciDeviceID));
    addresses.emplace_back(text);
  }
  return addresses;
}

namespace {

// The ranks of this process.
struct RanksHere {
  int first = 0, count = 1;
};

// How each of them gets its weights.
class RankLoader {
 public:
  static Result<RankLoader> make(const ModelConfig& config, const GpuWeights& weights,
                                 const WorkerLimits& limits, const ProcessLinks* links) {
    const RanksHere here = links == nullptr ? RanksHere{.count = limits.ranks}
                                            : RanksHere{links->first_rank(), links->ranks_here()};
    RankLoader loader(config, weights, limits, here);
    if (weights.source && here.count > 1) {
      NIBBLE_ASSIGN(loader.pieces_, PinnedPieces::make(PinnedPieces::places_of_rank * here.count));
    }
    return Result<RankLoader>(std::move(loader));
  }

  Result<std::unique_ptr<GpuRank>> operator()(const CudaPlace& place, int device) const {
    cuda_check(cudaSetDevice(device));
    if (const Status places = check_places(waiting_grids()); !places.ok())
      return Status(places.code(), places.message() + ": give --device cpu, and report this");
    if (!weights_->source) {
      RandomWeights random(weights_->seed);
      return GpuRank::load(*config_, place, device, random, *limits_);
    }
    // Each rank reads its part alone, over its own link, and what others want too with them; one of them
    // tells of all.
    ThreadPool threads(threads_of_rank(limits_->threads, here_.count, device - limits_->device));
    WeightUploadOptions options{.pieces = pieces_.get(), .progress = {}};
    if (here_.first == 0 && device == limits_->device) options.progress = weights_->progress;
    NIBBLE_ASSIGN(WeightUpload upload, WeightUpload::begin(*weights_->source, threads, std::move(options)));
    return GpuRank::load(*config_, place, device, upload, *limits_);
  }

 private:
  RankLoader(const ModelConfig& config, const GpuWeights& weights, const WorkerLimits& limits,
             const RanksHere& here)
      : config_(&config), weights_(&weights), limits_(&limits), here_(here) {}

  const ModelConfig* config_;
  const GpuWeights* weights_;
  const WorkerLimits* limits_;
  RanksHere here_;
  std::unique_ptr<PinnedPieces> pieces_;
};

}  // namespace

Result<std::unique_ptr<Worker>> start_gpu_worker(const ModelConfig& config, GpuWeights weights,
                                                 const WorkerLimits& limits,
                                                 std::unique_ptr<ProcessLinks> links) {
  NIBBLE_ASSIGN(const RankLoader load, RankLoader::make(config, weights, limits, links.get()));
  NIBBLE_ASSIGN(std::unique_ptr<Worker> worker,
                GpuWorker::start(config, std::cref(load), limits, std::move(links)));
  if (weights.source) NIBBLE_RETURN_IF_ERROR(weights.source->intact());
  return worker;
}

Status follow_gpu_worker(const ModelConfig& config, GpuWeights weights, const WorkerLimits& limits,
                         std::unique_ptr<ProcessLinks> links, const std::function<void()>& ready) {
  NIBBLE_ASSIGN(const RankLoader load, RankLoader::make(config, weights, limits, links.get()));
  return GpuWorker::follow(config, std::cref(load), limits, std::move(links), ready);
}

}  // namespace nibble
