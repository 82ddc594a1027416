// How long rows take to the experts that they chose and products back, over 2, 4 and 8 GPUs, as far as there
// are: gpt-oss-120b's width, 4 of 128 experts, each rank with sequences of its own. Nothing is multiplied in
// between. Graphs of both, one pair after the other, on all ranks at once; the slowest rank's median.
//
//   exchange_cuda_bench [--json FILE]
#include <algorithm>
#include <barrier>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "comm/cuda/on_device.h"
#include "comm/cuda/peer_rooms.h"
#include "ops/cuda/bench_util.cuh"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"

namespace nibble {
namespace {

constexpr int hidden = 2880, experts = 128, top_k = 4, most_rows = 2048, replays = 21;
constexpr int row_counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048};

struct Sizes {
  std::size_t rows, ids, products;
  std::size_t all() const { return rows + ids + products; }
};
Sizes sizes_of(int ranks) {
  const std::size_t places = static_cast<std::size_t>(ranks) * most_rows;
  return {places * hidden * 2, places * top_k * 4, places * top_k * hidden * 4};
}

void queue(const PeerRooms& rooms, int rank, int rows, cudaStream_t stream) {
  const PeerRoom& room = rooms.of(rank);
  const Sizes sizes = sizes_of(room.ranks);
  std::byte* const at = rooms.content(rank);
  std::int32_t* const ids = reinterpret_cast<std::int32_t*>(at + sizes.rows);
  const std::size_t first = static_cast<std::size_t>(rank * rows);
  SlotOwners owners;
  for (int i = 0; i <= room.ranks; ++i) owners.first_expert[i] = i * (experts / room.ranks);
  bench::require(dispatch_rows_cuda(room,
                                    {.rows = at + first * hidden * 2,
                                     .row_bytes = hidden * 2,
                                     .expert_ids = ids + first * top_k,
                                     .count = rows,
                                     .places = rows,
                                     .top_k = top_k,
                                     .owners = owners},
                                    stream));
  bench::require(gather_products_cuda(room,
                                      {.products = reinterpret_cast<float*>(at + sizes.rows + sizes.ids),
                                       .expert_ids = ids,
                                       .slots = room.ranks * rows * top_k,
                                       .hidden = hidden,
                                       .owners = owners,
                                       .slots_a_rank = rows * top_k},
                                      stream));
}

// Each rank's median, in microseconds a pair.
std::vector<double> run(int ranks, const PeerRooms& rooms, int rows) {
  const int calls = rows >= 128 ? 8 : 64;
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
      for (int call = 0; call < calls; ++call) queue(rooms, rank, rows, stream);
      cuda_check(cudaStreamEndCapture(stream, &graph));
      cuda_check(cudaGraphInstantiate(&exec, graph, 0));
      cudaEvent_t begin = nullptr, end = nullptr;
      cuda_check(cudaEventCreate(&begin));
      cuda_check(cudaEventCreate(&end));
      std::vector<double> times;
      for (int replay = 0; replay < replays + 2; ++replay) {
        together.arrive_and_wait();
        // One pair ahead, in which ranks meet, so that nobody's clock begins before all are there.
        queue(rooms, rank, rows, stream);
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
  for (int rank = 0; rank < ranks; ++rank) bench::require(rooms.failure(rank));
  return medians;
}

void run_ranks(int ranks, std::vector<std::string>& lines) {
  std::vector<int> devices(static_cast<std::size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  auto rooms = PeerRooms::make(devices, sizes_of(ranks).all(), std::chrono::milliseconds(2000));
  bench::require(rooms.status());
  for (const int rows : row_counts) {
    for (int rank = 0; rank < ranks; ++rank) {
      const OnDevice on(rank);
      std::mt19937 random(static_cast<unsigned>(rows * 8 + rank));
      std::vector<std::int32_t> chosen(static_cast<std::size_t>(rows * top_k));
      for (std::int32_t& id : chosen) id = static_cast<std::int32_t>(random() % experts);
      cuda_check(cudaMemcpy(
          (*rooms)->content(rank) + sizes_of(ranks).rows + static_cast<std::size_t>(rank * rows) * top_k * 4,
          chosen.data(), chosen.size() * 4, cudaMemcpyHostToDevice));
    }
    const std::vector<double> medians = run(ranks, **rooms, rows);
    const double us = *std::max_element(medians.begin(), medians.end());
    std::printf("%d GPUs  %5d rows of each %8.2f us\n", ranks, rows, us);
    std::fflush(stdout);
    char line[200];
    std::snprintf(line, sizeof line,
                  "{\"gpus\": %d, \"what\": \"dispatch and combine\", \"rows\": %d, \"us\": %.2f}", ranks,
                  rows, us);
    lines.push_back(line);
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
  for (int ranks = 2; ranks <= devices && ranks <= most_ranks; ranks *= 2) run_ranks(ranks, lines);
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
