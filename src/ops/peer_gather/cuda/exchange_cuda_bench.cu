// How long rows take to the experts that they chose and products back, over 2, 4 and 8 GPUs, as far as there
// are: gpt-oss-120b's width, 4 of 128 experts, each rank with sequences of its own. Straight to their places,
// and few through windows. Nothing is multiplied in between. Graphs of both, one pair after the other, on all
// ranks at once; the slowest rank's median.
//
//   exchange_cuda_bench [--json FILE]
#include <algorithm>
#include <memory>
#include <numeric>

#include "comm/cuda/on_device.h"
#include "comm/cuda/peer_rooms.h"
#include "ops/cuda/absent.h"
#include "ops/cuda/ranks_bench_util.cuh"
#include "ops/peer_gather/cuda/dispatch_rows_cuda.h"

namespace nibble {
namespace {

constexpr int hidden = 2880, experts = 128, top_k = 4, most_rows = 2048;
constexpr int row_counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048};

constexpr std::size_t row_bytes = hidden * 2;

struct Sizes {
  std::size_t rows, ids, products, window, dispatch_windows;
  std::size_t windows() const { return window + dispatch_windows; }
  std::size_t all() const { return rows + ids + products + windows(); }
};
Sizes sizes_of(int ranks) {
  const std::size_t places = static_cast<std::size_t>(ranks) * most_rows;
  return {places * row_bytes, places * top_k * 4, places * top_k * hidden * 4,
          std::size_t{dispatch_few_places} * top_k * hidden * 4, dispatch_window_bytes(ranks, row_bytes)};
}

struct Way {
  const char* name;
  bool through_windows;
};
constexpr Way ways[] = {{"straight", false}, {"through windows", true}};

struct Ranks {
  int count;
  const PeerRooms& rooms;
  std::vector<DeviceBuffer> steps;  // DispatchWindows's
};

void queue(Ranks& ranks, int rank, const Way& way, int rows, cudaStream_t stream) {
  const PeerRoom& room = ranks.rooms.of(rank);
  const Sizes sizes = sizes_of(room.ranks);
  std::byte* const at = ranks.rooms.content(rank);
  std::byte* const window = at + sizes.rows + sizes.ids + sizes.products;
  std::int32_t* const ids = reinterpret_cast<std::int32_t*>(at + sizes.rows);
  SlotOwners owners;
  for (int i = 0; i <= room.ranks; ++i) owners.first_expert[i] = i * (experts / room.ranks);
  const DispatchRowsCudaArgs dispatch{.rows = at,
                                      .row_bytes = row_bytes,
                                      .expert_ids = ids,
                                      .count = rows,
                                      .places = rows,
                                      .top_k = top_k,
                                      .owners = owners};
  std::uint32_t* const steps = ranks.steps[static_cast<std::size_t>(rank)].as<std::uint32_t>();
  bench::require(way.through_windows
                     ? dispatch_few_rows_cuda(room, dispatch, {window + sizes.window, steps}, stream)
                     : dispatch_rows_cuda(room, dispatch, stream));
  bench::require(
      gather_products_cuda(room,
                           {.products = reinterpret_cast<float*>(at + sizes.rows + sizes.ids),
                            .expert_ids = ids,
                            .slots = room.ranks * rows * top_k,
                            .hidden = hidden,
                            .owners = owners,
                            .slots_a_group = rows * top_k,
                            .window = way.through_windows ? reinterpret_cast<float*>(window) : nullptr},
                           stream));
}

// Each rank's choices, of the first `rows` places of each.
void choose(const Ranks& ranks, int rows) {
  for (int rank = 0; rank < ranks.count; ++rank) {
    const OnDevice on(rank);
    std::mt19937 random(static_cast<unsigned>(rows * 8 + rank));
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(rows * top_k));
    for (std::int32_t& id : chosen) id = static_cast<std::int32_t>(random() % experts);
    cuda_check(cudaMemcpy(ranks.rooms.content(rank) + sizes_of(ranks.count).rows +
                              static_cast<std::size_t>(rank * rows) * top_k * 4,
                          chosen.data(), chosen.size() * 4, cudaMemcpyHostToDevice));
  }
}

void run_ranks(int count, std::vector<std::string>& lines) {
  std::vector<int> devices(static_cast<std::size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  const Sizes sizes = sizes_of(count);
  auto rooms = PeerRooms::make(devices, sizes.all(), std::chrono::milliseconds(2000));
  bench::require(rooms.status());
  Ranks ranks{count, **rooms, {}};
  for (const int device : devices) {
    const OnDevice on(device);
    ranks.steps.push_back(bench::zeroed(static_cast<std::size_t>(count * dispatch_few_places) * 4));
    cuda_check(cudaMemset((*rooms)->content(device) + sizes.all() - sizes.windows(), absent_bits & 0xff,
                          sizes.windows()));
    cuda_check(cudaDeviceSynchronize());
  }
  for (const Way& way : ways) {
    for (const int rows : row_counts) {
      if (way.through_windows && rows > dispatch_few_places) continue;
      choose(ranks, rows);
      const std::vector<double> medians = bench::medians_of_ranks(
          count, rows >= 128 ? 8 : 64,
          [&](int rank, cudaStream_t stream) { queue(ranks, rank, way, rows, stream); });
      for (int rank = 0; rank < count; ++rank) bench::require(ranks.rooms.failure(rank));
      const double us = *std::max_element(medians.begin(), medians.end());
      std::printf("%d GPUs  %-16s %5d rows of each %8.2f us\n", count, way.name, rows, us);
      std::fflush(stdout);
      char line[200];
      std::snprintf(line, sizeof line,
                    "{\"gpus\": %d, \"what\": \"dispatch and combine, %s\", \"rows\": %d, \"us\": %.2f}",
                    count, way.name, rows, us);
      lines.push_back(line);
    }
  }
  for (const int device : devices) {
    const OnDevice on(device);
    ranks.steps[static_cast<std::size_t>(device)] = {};
  }
}

}  // namespace
}  // namespace nibble

int main(int count, char** arguments) {
  return nibble::bench::run_on_several_gpus(count, arguments, nibble::run_ranks);
}
