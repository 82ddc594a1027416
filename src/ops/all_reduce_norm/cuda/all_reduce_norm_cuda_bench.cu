// How long all_reduce_norm takes over 2, 4 and 8 GPUs, as far as there are, for gpt-oss's width: one-shot,
// two-shot with the residual at its owner and everywhere, and one-shot of parts that the kernel ahead pushed,
// with that kernel. Graphs of calls, one after the other, on all members at once; the slowest member's
// median.
//
//   all_reduce_norm_cuda_bench [--json FILE]
#include <algorithm>
#include <barrier>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "comm/cuda/peer_workspace.h"
#include "ops/all_reduce_norm/cuda/all_reduce_norm_cuda.h"
#include "ops/cuda/bench_util.cuh"

namespace nibble {
namespace {

constexpr int hidden = 2880, most_rows = 512, replays = 21;
constexpr int row_counts[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512};

struct Way {
  const char* name;
  Algorithm algorithm;
  bool at_owner, ahead;
  int most;
};
constexpr Way ways[] = {{"one-shot", Algorithm::one_shot, false, false, 256},
                        {"one-shot, pushed ahead", Algorithm::one_shot, false, true, 256},
                        {"two-shot, residual at owner", Algorithm::two_shot, true, false, 512},
                        {"two-shot, residual everywhere", Algorithm::two_shot, false, false, 512}};

struct Buffers {
  DeviceBuffer parts, residual, weight, out;
};
Buffers buffers_of(int rank) {
  std::mt19937 random(static_cast<unsigned>(rank));
  const std::size_t count = std::size_t{most_rows} * hidden;
  std::vector<float> parts(count);
  for (float& part : parts) part = std::normal_distribution<float>()(random);
  return {bench::copied(parts), bench::zeroed(count * 4), bench::filled<Bf16>(hidden, bench::normal, random),
          bench::zeroed(count * 2)};
}

void queue(const PeerGroup& group, Buffers& buffers, const Way& way, int rows, cudaStream_t stream) {
  if (way.ahead) bench::require(push_parts_cuda(group, buffers.parts.as<float>(), rows, stream));
  bench::require(all_reduce_norm_cuda(group,
                                      {.parts = way.ahead ? nullptr : buffers.parts.as<float>(),
                                       .residual = buffers.residual.as<float>(),
                                       .weight = buffers.weight.as<Bf16>(),
                                       .residual_at_owner = way.at_owner,
                                       .out = buffers.out.as<Bf16>(),
                                       .out_stride = hidden,
                                       .rows = rows,
                                       .hidden = hidden,
                                       .eps = 1e-5f,
                                       .algorithm = way.algorithm},
                                      stream));
}

// Each member's median, in microseconds a call.
std::vector<double> run(int members, const PeerWorkspace& workspace, std::vector<Buffers>& buffers,
                        const Way& way, int rows) {
  const int calls = rows >= 128 ? 16 : 64;
  std::vector<double> medians(static_cast<std::size_t>(members));
  std::barrier together(members);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < members; ++rank) {
    threads.emplace_back([&, rank] {
      cuda_check(cudaSetDevice(rank));
      cudaStream_t stream = nullptr;
      cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (int call = 0; call < calls; ++call)
        queue(workspace.member(rank), buffers[static_cast<std::size_t>(rank)], way, rows, stream);
      cuda_check(cudaStreamEndCapture(stream, &graph));
      cuda_check(cudaGraphInstantiate(&exec, graph, 0));
      cudaEvent_t begin = nullptr, end = nullptr;
      cuda_check(cudaEventCreate(&begin));
      cuda_check(cudaEventCreate(&end));
      std::vector<double> times;
      for (int replay = 0; replay < replays + 2; ++replay) {
        together.arrive_and_wait();
        // One call ahead, in which members meet, so that nobody's clock begins before all are there.
        queue(workspace.member(rank), buffers[static_cast<std::size_t>(rank)], way, rows, stream);
        cuda_check(cudaEventRecord(begin, stream));
        cuda_check(cudaGraphLaunch(exec, stream));
        cuda_check(cudaEventRecord(end, stream));
        cuda_check(cudaEventSynchronize(end));
        float milliseconds = 0;
        cuda_check(cudaEventElapsedTime(&milliseconds, begin, end));
        if (replay >= 2) times.push_back(milliseconds * 1e3 / calls);
      }
      std::sort(times.begin(), times.end());
      medians[static_cast<std::size_t>(rank)] = times[times.size() / 2];
      cuda_check(cudaEventDestroy(begin));
      cuda_check(cudaEventDestroy(end));
      cuda_check(cudaGraphExecDestroy(exec));
      cuda_check(cudaGraphDestroy(graph));
      cuda_check(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < members; ++rank) bench::require(workspace.failure(rank));
  return medians;
}

void run_group(int members, std::vector<std::string>& lines) {
  std::vector<int> devices(static_cast<std::size_t>(members));
  std::iota(devices.begin(), devices.end(), 0);
  auto workspace = PeerWorkspace::make(Group{devices}, devices, {.most_rows = most_rows, .hidden = hidden});
  bench::require(workspace.status());
  std::vector<Buffers> buffers;
  for (const int device : devices) {
    const OnDevice on(device);
    load_all_reduce_norm_kernels(members);
    buffers.push_back(buffers_of(device));
  }
  for (const Way& way : ways) {
    for (const int rows : row_counts) {
      if (rows > way.most) continue;
      const std::vector<double> medians = run(members, **workspace, buffers, way, rows);
      const double us = *std::max_element(medians.begin(), medians.end());
      std::printf("%d GPUs  %-30s %4d rows %8.2f us\n", members, way.name, rows, us);
      std::fflush(stdout);
      char line[200];
      std::snprintf(line, sizeof line, "{\"gpus\": %d, \"what\": \"%s\", \"rows\": %d, \"us\": %.2f}",
                    members, way.name, rows, us);
      lines.push_back(line);
    }
  }
  for (const int device : devices) {
    const OnDevice on(device);
    buffers[static_cast<std::size_t>(device)] = {};
  }
}

int run_all(const char* json) {
  if (!bench::has_gpu()) return 77;
  int devices = 0;
  cuda_check(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    std::fputs("skipped: needs two GPUs or more\n", stderr);
    bench::write_json(json, {});
    return 0;
  }
  std::vector<std::string> lines;
  for (int members = 2; members <= devices && members <= most_ranks; members *= 2) run_group(members, lines);
  bench::write_json(json, lines);
  return 0;
}

}  // namespace
}  // namespace nibble

int main(int count, char** arguments) {
  const char* json = nullptr;
  for (int i = 1; i + 1 < count; ++i) {
    if (std::strcmp(arguments[i], "--json") == 0) json = arguments[i + 1];
  }
  return nibble::run_all(json);
}
