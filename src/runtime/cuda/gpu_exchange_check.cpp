// What doctor finds of rows that GPUs with sequences of their own exchange: whether they reach the ranks
// whose experts they chose and products come back, straight and through windows, and how long that takes.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "comm/cuda/on_device.h"
#include "comm/cuda/peer_rooms.h"
#include "ops/cuda/absent.h"
#include "ops/peer_gather/cuda/dispatch_rows_cuda.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/gpu_check_util.h"

namespace nibble {
namespace {

constexpr int places = 8, top_k = 4, hidden = 2880, warm_ups = 3;
constexpr std::size_t row_bytes = hidden * 2;
constexpr std::chrono::milliseconds deadline{5000};

std::uint32_t word_of(int place, std::size_t word) {
  return static_cast<std::uint32_t>(word) * 2654435761u % 0xfffffu + static_cast<std::uint32_t>(place);
}
float product_of(int slot, int column) { return static_cast<float>(slot * 4096 + column); }

// One rank's end. Each rank has one expert.
class Exchanging {
 public:
  Exchanging(const PeerRooms& rooms, int rank)
      : room_(rooms.of(rank)),
        all_places_(room_.ranks * places),
        rows_(rooms.content(rank)),
        ids_(reinterpret_cast<std::int32_t*>(rows_ + bytes_of_rows(room_.ranks))),
        products_(reinterpret_cast<float*>(rows_ + bytes_of_rows(room_.ranks) + bytes_of_ids(room_.ranks))),
        window_(products_ + all_places_ * top_k * hidden) {}

  static std::size_t bytes(int ranks) {
    const std::size_t products =
        static_cast<std::size_t>(ranks + 1) * places * top_k * hidden * sizeof(float);
    return bytes_of_rows(ranks) + bytes_of_ids(ranks) + products + dispatch_window_bytes(ranks, row_bytes);
  }

  Status begin() {
    const std::size_t window_floats = std::size_t{places} * top_k * hidden;
    NIBBLE_ASSIGN(steps_, zeroed(static_cast<std::size_t>(room_.ranks) * dispatch_few_places * 4));
    make_absent(window_, window_floats + dispatch_window_bytes(room_.ranks, row_bytes) / sizeof(float),
                stream_.get());
    std::vector<std::uint32_t> rows;
    std::vector<std::int32_t> ids;
    for (int place = first(); place < first() + places; ++place) {
      for (std::size_t word = 0; word < row_bytes / 4; ++word) rows.push_back(word_of(place, word));
      for (int k = 0; k < top_k; ++k) ids.push_back(id_of(place * top_k + k));
    }
    cuda_check(cudaMemcpy(rows_ + static_cast<std::size_t>(first()) * row_bytes, rows.data(), rows.size() * 4,
                          cudaMemcpyHostToDevice));
    cuda_check(cudaMemcpy(ids_ + first() * top_k, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
    std::vector<float> product(hidden);
    for (int slot = 0; slot < all_places_ * top_k; ++slot) {
      if (id_of(slot) != room_.rank) continue;
      for (int i = 0; i < hidden; ++i) product[static_cast<std::size_t>(i)] = product_of(slot, i);
      cuda_check(
          cudaMemcpy(products_ + slot * hidden, product.data(), product.size() * 4, cudaMemcpyHostToDevice));
    }
    return meet_cuda(room_, stream_.get());
  }

  Status run(bool through_windows) {
    SlotOwners owners;
    std::iota(owners.first_expert, owners.first_expert + room_.ranks + 1, 0);
    const DispatchRowsCudaArgs dispatch{.rows = rows_,
                                        .row_bytes = row_bytes,
                                        .expert_ids = ids_,
                                        .count = places,
                                        .places = places,
                                        .top_k = top_k,
                                        .owners = owners};
    const DispatchWindows windows{reinterpret_cast<std::byte*>(window_ + places * top_k * hidden),
                                  steps_.as<std::uint32_t>()};
    NIBBLE_RETURN_IF_ERROR(through_windows ? dispatch_few_rows_cuda(room_, dispatch, windows, stream_.get())
                                           : dispatch_rows_cuda(room_, dispatch, stream_.get()));
    return gather_products_cuda(room_,
                                {.products = products_,
                                 .expert_ids = ids_,
                                 .slots = all_places_ * top_k,
                                 .hidden = hidden,
                                 .owners = owners,
                                 .slots_a_group = places * top_k,
                                 .window = through_windows ? window_ : nullptr},
                                stream_.get());
  }

  // Microseconds of one of so many.
  Result<double> time(bool through_windows, int rounds) {
    for (int i = 0; i < warm_ups; ++i) NIBBLE_RETURN_IF_ERROR(run(through_windows));
    stream_.wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) NIBBLE_RETURN_IF_ERROR(run(through_windows));
    stream_.wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / rounds * 1e6;
  }

  // Words of rows that came for this rank's expert, and of its own rows' products, that are not what was
  // sent.
  std::size_t wrong() const {
    std::vector<std::uint32_t> rows(bytes_of_rows(room_.ranks) / 4);
    std::vector<float> products(static_cast<std::size_t>(all_places_) * top_k * hidden);
    cuda_check(cudaMemcpy(rows.data(), rows_, rows.size() * 4, cudaMemcpyDeviceToHost));
    cuda_check(cudaMemcpy(products.data(), products_, products.size() * 4, cudaMemcpyDeviceToHost));
    std::size_t wrong = 0;
    for (int slot = 0; slot < all_places_ * top_k; ++slot) {
      const int place = slot / top_k;
      if (id_of(slot) == room_.rank) {
        for (std::size_t word = 0; word < row_bytes / 4; ++word)
          wrong += rows[static_cast<std::size_t>(place) * (row_bytes / 4) + word] != word_of(place, word);
      }
      if (place / places != room_.rank) continue;
      for (int i = 0; i < hidden; ++i)
        wrong += products[static_cast<std::size_t>(slot * hidden + i)] != product_of(slot, i);
    }
    return wrong;
  }
  // Of what came from other ranks.
  void forget() const {
    for (int rank = 0; rank < room_.ranks; ++rank) {
      if (rank == room_.rank) continue;
      cuda_check(
          cudaMemset(rows_ + static_cast<std::size_t>(rank * places) * row_bytes, 0, places * row_bytes));
    }
    for (int slot = first() * top_k; slot < (first() + places) * top_k; ++slot) {
      if (id_of(slot) != room_.rank)
        cuda_check(cudaMemset(products_ + slot * hidden, 0xff, hidden * sizeof(float)));
    }
    cuda_check(cudaDeviceSynchronize());
  }
  Status meet() const {
    NIBBLE_RETURN_IF_ERROR(meet_cuda(room_, stream_.get()));
    stream_.wait();
    return {};
  }

 private:
  static std::size_t bytes_of_rows(int ranks) { return static_cast<std::size_t>(ranks) * places * row_bytes; }
  static std::size_t bytes_of_ids(int ranks) { return static_cast<std::size_t>(ranks) * places * top_k * 4; }
  // Each rank's, in turns that no two rows begin alike.
  std::int32_t id_of(int slot) const { return (slot + slot / top_k) % room_.ranks; }
  int first() const { return room_.rank * places; }

  const PeerRoom& room_;
  int all_places_;
  std::byte* rows_;
  std::int32_t* ids_;
  float *products_, *window_;
  DeviceBuffer steps_;
  CudaStream stream_;
};

struct Found {
  double us[2] = {};  // straight, through windows
  std::size_t wrong = 0;
  Status status;
};

Status exchange(const PeerRooms& rooms, int rank, int rounds, Found& found) {
  Exchanging own(rooms, rank);
  NIBBLE_RETURN_IF_ERROR(own.begin());
  for (const bool through_windows : {false, true}) {
    NIBBLE_RETURN_IF_ERROR(own.meet());
    own.forget();
    NIBBLE_RETURN_IF_ERROR(own.meet());
    NIBBLE_ASSIGN(found.us[through_windows], own.time(through_windows, rounds));
    found.wrong += own.wrong();
  }
  return {};
}

}  // namespace

Result<std::string> check_exchange(int gpus, int rounds) {
  const int ranks = gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2;
  std::vector<int> devices(static_cast<std::size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  NIBBLE_ASSIGN(const std::unique_ptr<PeerRooms> rooms,
                PeerRooms::make(devices, Exchanging::bytes(ranks), deadline));
  std::vector<Found> found(devices.size());
  std::vector<std::thread> threads;
  for (const int rank : devices) {
    threads.emplace_back([&, rank] {
      cuda_check(cudaSetDevice(rank));
      Found& own = found[static_cast<std::size_t>(rank)];
      own.status = exchange(*rooms, rank, rounds, own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  double slowest[2] = {};
  for (int rank = 0; rank < ranks; ++rank) {
    const Found& of = found[static_cast<std::size_t>(rank)];
    NIBBLE_RETURN_IF_ERROR(of.status);
    NIBBLE_RETURN_IF_ERROR(rooms->failure(rank));
    if (of.wrong > 0) {
      return internal_error("GPU " + std::to_string(rank) + " has " + std::to_string(of.wrong) +
                            " words of rows and products that no other sent");
    }
    for (int way = 0; way < 2; ++way) slowest[way] = std::max(slowest[way], of.us[way]);
  }
  const auto tenths = [](double us) {
    const long whole = std::lround(us * 10);
    return std::to_string(whole / 10) + "." + std::to_string(whole % 10);
  };
  return std::to_string(places) +
         " rows of each reach the experts that they chose and products come back, us " + tenths(slowest[0]) +
         ", through windows " + tenths(slowest[1]);
}

}  // namespace nibble
