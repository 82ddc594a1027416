// What benchmarks of several GPUs share: a graph of calls on all ranks at once, and how many ranks there are.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank.h"
#include "ops/cuda/bench_util.cuh"

namespace nibble::bench {

// Queues one call of a rank.
using QueueOnRank = std::function<void(int rank, cudaStream_t stream)>;

// Graphs of so many calls on ranks 0 and up, which are also their devices: each one's median, in microseconds
// a call.
inline std::vector<double> medians_of_ranks(int ranks, int calls, const QueueOnRank& queue) {
  constexpr int warm_up = 2, replays = 21;
  std::vector<double> medians(static_cast<std::size_t>(ranks));
  std::barrier together(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      cuda_check(cudaSetDevice(rank));
      cudaStream_t stream = nullptr;
      cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (int call = 0; call < calls; ++call) queue(rank, stream);
      cuda_check(cudaStreamEndCapture(stream, &graph));
      cuda_check(cudaGraphInstantiate(&exec, graph, 0));
      cudaEvent_t begin = nullptr, end = nullptr;
      cuda_check(cudaEventCreate(&begin));
      cuda_check(cudaEventCreate(&end));
      std::vector<double> times;
      for (int replay = 0; replay < warm_up + replays; ++replay) {
        together.arrive_and_wait();
        // One call ahead, in which ranks meet, so that nobody's clock begins before all are there.
        queue(rank, stream);
        cuda_check(cudaEventRecord(begin, stream));
        cuda_check(cudaGraphLaunch(exec, stream));
        cuda_check(cudaEventRecord(end, stream));
        cuda_check(cudaEventSynchronize(end));
        float milliseconds = 0;
        cuda_check(cudaEventElapsedTime(&milliseconds, begin, end));
        if (replay >= warm_up) times.push_back(milliseconds * 1e3 / calls);
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
  return medians;
}

// What such a benchmark's main returns: run(ranks, lines) with 2, 4 and 8 ranks, as far as there are GPUs;
// the lines go to --json FILE.
inline int run_on_several_gpus(int count, char** arguments,
                               const std::function<void(int ranks, std::vector<std::string>& lines)>& run) {
  const char* json = nullptr;
  for (int i = 1; i + 1 < count; ++i) {
    if (std::strcmp(arguments[i], "--json") == 0) json = arguments[i + 1];
  }
  if (!has_gpu()) return 77;
  int devices = 0;
  cuda_check(cudaGetDeviceCount(&devices));
  std::vector<std::string> lines;
  if (devices < 2) std::fputs("skipped: needs two GPUs or more\n", stderr);
  for (int ranks = 2; ranks <= devices && ranks <= most_ranks; ranks *= 2) run(ranks, lines);
  write_json(json, lines);
  return 0;
}

}  // namespace nibble::bench
