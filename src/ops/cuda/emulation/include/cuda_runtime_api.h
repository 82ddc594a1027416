// The part of CUDA's runtime that the device code uses, on the emulation. Device memory is host memory; what
// is on no stream runs at once.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "ops/cuda/emulation/emulation.h"
#include "ops/cuda/emulation/faults.h"
#include "ops/cuda/emulation/streams.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#define __shared__ static thread_local

using std::max;
using std::min;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace nibble::emulation {
template <unsigned (*value)()>
struct Coordinate {
  operator unsigned() const { return value(); }
};
template <unsigned (*value)(int), int axis>
struct AxisCoordinate {
  operator unsigned() const { return value(axis); }
};
}  // namespace nibble::emulation
inline constexpr struct { nibble::emulation::Coordinate<nibble::emulation::thread_index> x; } threadIdx{};
inline constexpr struct { nibble::emulation::Coordinate<nibble::emulation::block_size> x; } blockDim{};
inline constexpr struct {
  nibble::emulation::AxisCoordinate<nibble::emulation::block_index, 0> x;
  nibble::emulation::AxisCoordinate<nibble::emulation::block_index, 1> y;
} blockIdx{};
inline constexpr struct {
  nibble::emulation::AxisCoordinate<nibble::emulation::grid_size, 0> x;
  nibble::emulation::AxisCoordinate<nibble::emulation::grid_size, 1> y;
} gridDim{};

inline void __syncthreads() { nibble::emulation::block_barrier(0, nibble::emulation::block_size()); }
inline void __syncwarp() { nibble::emulation::warp_barrier(); }
inline unsigned emulated_lane() { return nibble::emulation::thread_index() % 32; }
inline nibble::emulation::Lanes& emulated_exchange(unsigned word) {
  return nibble::emulation::exchange({{word}});
}
inline int __shfl_sync(unsigned, int value, int from) {
  return static_cast<int>(emulated_exchange(static_cast<unsigned>(value))[from].words[0]);
}
inline float __shfl_sync(unsigned, float value, int from) {
  return std::bit_cast<float>(emulated_exchange(std::bit_cast<unsigned>(value))[from].words[0]);
}
inline long long __shfl_sync(unsigned, long long value, int from) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto& words =
      nibble::emulation::exchange({{static_cast<unsigned>(bits), static_cast<unsigned>(bits >> 32)}})[from]
          .words;
  return std::bit_cast<long long>(std::uint64_t{words[1]} << 32 | words[0]);
}
inline long long __shfl_up_sync(unsigned, long long value, int by) {
  const int lane = static_cast<int>(emulated_lane());
  return __shfl_sync(0, value, lane >= by ? lane - by : lane);
}
inline long long __shfl_xor_sync(unsigned, long long value, int with) {
  return __shfl_sync(0, value, static_cast<int>(emulated_lane()) ^ with);
}
inline unsigned __shfl_xor_sync(unsigned, unsigned value, int with) {
  return emulated_exchange(value)[static_cast<int>(emulated_lane()) ^ with].words[0];
}
inline int __shfl_up_sync(unsigned, int value, int by) {
  const int lane = static_cast<int>(emulated_lane());
  return __shfl_sync(0, value, lane >= by ? lane - by : lane);
}
inline float __shfl_up_sync(unsigned, float value, int by) {
  const int lane = static_cast<int>(emulated_lane());
  return __shfl_sync(0, value, lane >= by ? lane - by : lane);
}
inline float __shfl_xor_sync(unsigned, float value, int with) {
  return __shfl_sync(0, value, static_cast<int>(emulated_lane()) ^ with);
}
inline float __shfl_down_sync(unsigned, float value, int by) {
  const int lane = static_cast<int>(emulated_lane());
  return __shfl_sync(0, value, lane + by < 32 ? lane + by : lane);
}
inline double __shfl_down_sync(unsigned, double value, int by) {
  const int lane = static_cast<int>(emulated_lane());
  return std::bit_cast<double>(
      __shfl_sync(0, std::bit_cast<long long>(value), lane + by < 32 ? lane + by : lane));
}
inline unsigned __match_any_sync(unsigned, int value) {
  const auto& lanes = emulated_exchange(static_cast<unsigned>(value));
  unsigned same = 0;
  for (unsigned i = 0; i < 32; ++i) same |= unsigned{lanes[i].words[0] == static_cast<unsigned>(value)} << i;
  return same;
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const auto& lanes = emulated_exchange(value);
  unsigned set = 0;
  for (unsigned i = 0; i < 32; ++i) set |= lanes[i].words[0] << i;
  return set;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const auto& lanes = emulated_exchange(value);
  unsigned most = 0;
  for (const auto& lane : lanes) most = std::max(most, lane.words[0]);
  return most;
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  const auto& lanes = emulated_exchange(value);
  unsigned least = value;
  for (const auto& lane : lanes) least = std::min(least, lane.words[0]);
  return least;
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  const auto& lanes = emulated_exchange(value);
  unsigned sum = 0;
  for (const auto& lane : lanes) sum += lane.words[0];
  return sum;
}
inline unsigned atomicMax(unsigned* at, unsigned value) {
  std::atomic_ref<unsigned> shared(*at);
  unsigned found = shared.load();
  while (found < value && !shared.compare_exchange_weak(found, value)) {
  }
  return found;
}
inline int atomicAdd(int* at, int value) { return std::atomic_ref<int>(*at).fetch_add(value); }
inline unsigned atomicAdd(unsigned* at, unsigned value) {
  return std::atomic_ref<unsigned>(*at).fetch_add(value);
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return std::atomic_ref<unsigned long long>(*at).fetch_add(value);
}
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __popc(unsigned value) { return std::popcount(value); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(std::uint64_t{a} * b >> 32); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
template <class T>
T __ldcg(const T* at) {
  nibble::emulation::check_global(at);
  return *at;
}
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline void __trap() { nibble::emulation::stop("a kernel gave up"); }

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorInvalidClusterSize = 912
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
enum cudaEventFlags { cudaEventDisableTiming };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
struct cudaDeviceProp {
  char name[32] = "emulated GPU";
  int major = 9, minor = 0;
  int multiProcessorCount = 4;
  int pciDomainID = 0, pciBusID = 0, pciDeviceID = 0;
  std::size_t totalGlobalMem = std::size_t{4} << 30;
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributeNonPortableClusterSizeAllowed
};
enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributePreferredSharedMemoryCarveout
};
using cudaStream_t = nibble::emulation::Stream*;
using cudaEvent_t = nibble::emulation::Event*;
// Launches that were recorded instead of run, in their order.
using cudaGraph_t = std::vector<std::function<void()>>*;
using cudaGraphExec_t = const std::vector<std::function<void()>>*;
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    dim3 clusterDim;
    unsigned sharedMemCarveout;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace nibble::emulation {
// Does `work`, unless a fault was ordered.
template <class Work>
cudaError_t attempt(Call call, const Work& work) {
  switch (outcome_of(call)) {
    case Outcome::cut_short:
    case Outcome::works: return work(), cudaSuccess;
    case Outcome::dropped: return cudaSuccess;
    case Outcome::refused: return cudaErrorMemoryAllocation;
    case Outcome::lost: return cudaErrorIllegalAddress;
    case Outcome::hangs: break;
  }
  while (true) pause();
}
inline cudaError_t attempt(Call call) {
  return attempt(call, [] {});
}
// The same of what a stream does in its turn.
template <class Work>
cudaError_t queue(Call call, Stream* stream, const Work& work) {
  return attempt(call, [&] {
    if (stream != nullptr) return stream->queue(work);
    wait_for_all_streams();
    work();
  });
}
}  // namespace nibble::emulation

inline const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "error";
}
inline const char* cudaGetErrorString(cudaError_t) { return "of the emulation"; }
inline cudaError_t cudaGetLastError() { return nibble::emulation::attempt(nibble::emulation::Call::other); }
inline cudaError_t cudaDeviceSynchronize() {
  return nibble::emulation::attempt(nibble::emulation::Call::wait, [] {
    nibble::emulation::wait_for_all_streams();
    nibble::emulation::finish_launches();
  });
}
inline cudaError_t cudaGetDevice(int* device) {
  return *device = nibble::emulation::current_device, cudaSuccess;
}
// A second device is there even where a program finds one.
inline cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= std::max(2, nibble::emulation::device_count)) return cudaErrorInvalidDevice;
  return nibble::emulation::current_device = device, cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  return *count = nibble::emulation::device_count, cudaSuccess;
}
enum cudaDeviceP2PAttr { cudaDevP2PAttrNativeAtomicSupported };
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
inline cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) {
  return *value = 1, cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  properties->pciBusID = std::max(nibble::emulation::first_device_here, 0) + device;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = cudaDeviceProp().multiProcessorCount, cudaSuccess;
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return nibble::emulation::attempt(nibble::emulation::Call::allocation, [&] {
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*memory == nullptr) nibble::emulation::stop("the host has no memory for the emulated GPU's");
  });
}
inline cudaError_t cudaFree(void* memory) {
  nibble::emulation::wait_for_all_streams();
  nibble::emulation::finish_launches();
  return std::free(memory), cudaSuccess;
}
inline cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
inline cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  return nibble::emulation::queue(nibble::emulation::Call::copy, stream, [=] {
    nibble::emulation::finish_launches();
    std::memcpy(to, from, bytes);
  });
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                     std::size_t width, std::size_t height, cudaMemcpyKind,
                                     cudaStream_t stream) {
  return nibble::emulation::queue(nibble::emulation::Call::copy, stream, [=] {
    nibble::emulation::finish_launches();
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                  width);
    }
  });
}
inline cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  return nibble::emulation::queue(nibble::emulation::Call::copy, stream, [=] {
    nibble::emulation::finish_launches();
    std::memset(at, value, bytes);
  });
}
// These wait for what they do.
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return nibble::emulation::queue(nibble::emulation::Call::wait, nullptr, [=] {
    nibble::emulation::finish_launches();
    std::memcpy(to, from, bytes);
  });
}
inline cudaError_t cudaMemset(void* at, int value, std::size_t bytes) {
  return nibble::emulation::queue(nibble::emulation::Call::wait, nullptr, [=] {
    nibble::emulation::finish_launches();
    std::memset(at, value, bytes);
  });
}
inline cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* all) {
  return *available = *all = cudaDeviceProp().totalGlobalMem, cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return *stream = new nibble::emulation::Stream, cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) return cudaDeviceSynchronize();
  return nibble::emulation::attempt(nibble::emulation::Call::wait, [=] {
    stream->wait();
    nibble::emulation::finish_launches_of(stream->device);
  });
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new nibble::emulation::Event, cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  *event = {stream, stream == nullptr ? 0 : stream->queued()};
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return nibble::emulation::attempt(nibble::emulation::Call::wait, [=] {
    if (event->stream == nullptr) return nibble::emulation::finish_launches();
    event->stream->wait_for(event->count);
    nibble::emulation::finish_launches_of(event->stream->device);
  });
}
// Who asks waits for it, so it never is not ready.
inline cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }

namespace nibble::emulation {
inline thread_local cudaGraph_t capturing = nullptr;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return nibble::emulation::capturing = new std::vector<std::function<void()>>, cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  return *graph = std::exchange(nibble::emulation::capturing, nullptr), cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return *exec = new std::vector<std::function<void()>>(*graph), cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  using namespace nibble::emulation;
  const bool cut_short = outcome_of(Call::graph) == Outcome::cut_short;
  return queue(Call::launch, stream, [exec, cut_short] {
    for (std::size_t i = 0; i + (cut_short ? 1 : 0) < exec->size(); ++i) (*exec)[i]();
  });
}

namespace nibble::emulation {
// Blocks that the emulated GPU can run as one cluster, at most; a test's to lower for a while.
inline unsigned largest_cluster = 16;

inline unsigned cluster_of(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) return config.attrs[i].val.clusterDim.x;
  }
  return 1;
}
}  // namespace nibble::emulation

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int bytes) {
  if (bytes > 227 * 1024) nibble::emulation::stop("more shared memory than a block can have");
  return cudaSuccess;
}
struct cudaFuncAttributes {
  std::size_t sharedSizeBytes = 0;
};
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel) {
  return cudaSuccess;
}
namespace nibble::emulation {
// Threads that a multiprocessor has registers for; a test's to lower for a while.
inline int most_threads = 2048;
}  // namespace nibble::emulation
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int threads,
                                                          std::size_t shared_bytes) {
  *blocks = std::min(nibble::emulation::most_threads / threads,
                     static_cast<int>(228 * 1024 / (shared_bytes + 1024)));
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, Kernel, const cudaLaunchConfig_t* config) {
  *clusters = nibble::emulation::cluster_of(*config) <= nibble::emulation::largest_cluster ? 2 : 0;
  return cudaSuccess;
}
template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               const Args&... args) {
  const unsigned cluster = nibble::emulation::cluster_of(*config);
  if (cluster > nibble::emulation::largest_cluster)
    nibble::emulation::stop("a cluster larger than the GPU runs");
  if (config->stream != nullptr && config->stream->device != nibble::emulation::current_device)
    nibble::emulation::stop("a launch by a thread that uses another device than its stream");
  bool overlaps = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
      overlaps = config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
  }
  const nibble::emulation::Grid grid{.blocks_x = config->gridDim.x,
                                     .blocks_y = config->gridDim.y,
                                     .threads = config->blockDim.x,
                                     .cluster = cluster,
                                     .overlaps = overlaps,
                                     .shared_bytes = config->dynamicSmemBytes};
  const auto launch = [grid, kernel, args...] {
    nibble::emulation::run(grid, [kernel, args...] { kernel(args...); });
  };
  if (nibble::emulation::capturing != nullptr)
    return nibble::emulation::capturing->push_back(launch), cudaSuccess;
  return nibble::emulation::queue(nibble::emulation::Call::launch, config->stream, launch);
}
