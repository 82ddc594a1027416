// What doctor finds of GPUs together: whether each receives what the others write into its memory, and how
// fast.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "comm/cuda/on_device.h"
#include "comm/cuda/peer_rooms.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/gpu_check_util.h"

namespace nibble {
namespace {

constexpr int rows = 1024;
constexpr std::chrono::milliseconds deadline{5000};

std::uint32_t word_of(int round, int rank, std::size_t at) {
  return static_cast<std::uint32_t>(at) * 2654435761u + static_cast<std::uint32_t>(round * 64 + rank);
}

// Of all ranks' columns what each has, in two matrices that take turns.
struct Gathered {
  int ranks;
  std::size_t row_words;  // of a rank

  std::size_t words() const { return rows * row_words * static_cast<std::size_t>(ranks); }
  // Gathers `rounds` times; the seconds of one, and how many words were not what their rank sent.
  struct Found {
    double seconds = 0;
    std::size_t wrong = 0;
    Status status;
  };
  Found run(const PeerRooms& rooms, int rank, int rounds) const;
};

Gathered::Found Gathered::run(const PeerRooms& rooms, int rank, int rounds) const {
  Found found;
  const CudaStream stream;
  std::vector<std::uint32_t> own(rows * row_words), all(words());
  const auto gather = [&](int round, const DeviceBuffer& from) -> Status {
    std::byte* const whole =
        rooms.content(rank) + static_cast<std::size_t>(round % 2) * words() * sizeof(std::uint32_t);
    const std::size_t bytes = row_words * sizeof(std::uint32_t);
    return gather_columns_cuda(rooms.of(rank),
                               {.from = from.data(),
                                .from_stride = bytes,
                                .to = whole + static_cast<std::size_t>(rank) * bytes,
                                .to_stride = bytes * static_cast<std::size_t>(ranks),
                                .bytes = bytes,
                                .rows = rows},
                               stream.get());
  };
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = word_of(round, rank, i);
    Result<DeviceBuffer> from = on_device(own);
    if (!from.ok()) return {.status = from.status()};
    cuda_check(cudaDeviceSynchronize());
    found.status = gather(round, *from);
    stream.wait();
    if (!found.status.ok()) return found;
    cuda_check(cudaMemcpy(all.data(), rooms.content(rank) + static_cast<std::size_t>(round) * words() * 4,
                          all.size() * 4, cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t row = i / row_words / static_cast<std::size_t>(ranks),
                        of = i / row_words % static_cast<std::size_t>(ranks);
      found.wrong += all[i] != word_of(round, static_cast<int>(of), row * row_words + i % row_words);
    }
    if (round == 0) continue;
    // Others may still compare: what is timed begins when all are here.
    found.status = gather(0, *from);
    stream.wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 1; i <= rounds && found.status.ok(); ++i) found.status = gather(i, *from);
    stream.wait();
    found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / rounds;
  }
  return found;
}

}  // namespace

Result<std::string> check_peers(int gpus, int rounds) {
  const int ranks = gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2;
  std::vector<int> devices(static_cast<std::size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  const Gathered gathered{.ranks = ranks, .row_words = rounds > 1 ? std::size_t{4096} : std::size_t{64}};
  NIBBLE_ASSIGN(const std::unique_ptr<PeerRooms> rooms,
                PeerRooms::make(devices, 2 * gathered.words() * sizeof(std::uint32_t), deadline));
  std::vector<Gathered::Found> found(devices.size());
  std::vector<std::thread> threads;
  for (const int rank : devices) {
    threads.emplace_back([&, rank] {
      cuda_check(cudaSetDevice(rank));
      found[static_cast<std::size_t>(rank)] = gathered.run(*rooms, rank, rounds);
    });
  }
  for (std::thread& thread : threads) thread.join();
  double slowest = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Gathered::Found& of = found[static_cast<std::size_t>(rank)];
    NIBBLE_RETURN_IF_ERROR(of.status);
    NIBBLE_RETURN_IF_ERROR(rooms->failure(rank));
    if (of.wrong > 0) {
      return internal_error("GPU " + std::to_string(rank) + " has " + std::to_string(of.wrong) +
                            " words that no other sent");
    }
    slowest = std::max(slowest, of.seconds);
  }
  const double bytes = static_cast<double>(rows * gathered.row_words * 4) * (ranks - 1);
  return std::to_string(ranks) +
         " GPUs write into each other's memory what arrives there, GB/s out of each " +
         std::to_string(std::lround(bytes / slowest / 1e9));
}

}  // namespace nibble
