// What doctor finds of NCCL: whether each GPU gets by a merge what the others have, bit for bit, and how
// fast.
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "comm/cuda/rank_merge.h"
#include "ops/peer_gather/cuda/merge_parts_cuda.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/gpu_check_util.h"

namespace nibble {
namespace {

constexpr std::size_t few_words = 4096;  // a row's heads and products have as many

std::uint32_t word_of(int rank, std::size_t at) {
  return static_cast<std::uint32_t>(at) * 2654435761u + static_cast<std::uint32_t>(rank);
}

struct Merged {
  double seconds = 0;  // of one merge of few words
  Status status;
};

// Each rank has an equal part of `words` a rank.
Merged run(const NcclId& id, int rank, int ranks, int rounds) {
  Merged merged;
  const CudaStream stream;
  RankMerge merge(rank, ranks);
  merged.status = merge.join(id, stream.get());
  if (!merged.status.ok()) return merged;
  std::vector<std::uint32_t> own(few_words), all(few_words * static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = word_of(rank, i);
  Result<DeviceBuffer> from = on_device(own), whole = zeroed(all.size() * sizeof(std::uint32_t));
  if (!from.ok() || !whole.ok()) return {.status = from.ok() ? whole.status() : from.status()};
  const std::size_t bytes = few_words * sizeof(std::uint32_t);
  const auto merge_once = [&] {
    return merge_columns_cuda(merge,
                              {.from = from->data(),
                               .to = whole->data(),
                               .rows = 1,
                               .row_bytes = whole->size(),
                               .first = static_cast<std::size_t>(rank) * bytes,
                               .bytes = bytes},
                              stream.get());
  };
  merged.status = merge_once();
  stream.wait();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds && merged.status.ok(); ++i) merged.status = merge_once();
  stream.wait();
  merged.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / rounds;
  if (merged.status.ok()) merged.status = merge.failure();
  whole->copy_to(std::span(all));
  for (std::size_t i = 0; i < all.size() && merged.status.ok(); ++i) {
    if (all[i] != word_of(static_cast<int>(i / few_words), i % few_words))
      merged.status = internal_error("GPU " + std::to_string(rank) + " got words that no other sent");
  }
  return merged;
}

}  // namespace

Result<std::string> check_merges(int gpus, int rounds) {
  if (!nccl_functions().ok())
    return std::string(
        "not here; it joins GPUs that cannot write each other's memory, and those of several hosts");
  const int ranks = gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2;
  NIBBLE_ASSIGN(const NcclId id, RankMerge::draw_id());
  std::vector<Merged> merged(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      cuda_check(cudaSetDevice(rank));
      merged[static_cast<std::size_t>(rank)] = run(id, rank, ranks, rounds);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Merged& each : merged) NIBBLE_RETURN_IF_ERROR(each.status);
  return "each of " + std::to_string(ranks) + " GPUs has what the others had, us for 16 KB of each " +
         std::to_string(std::lround(merged[0].seconds * 1e6));
}

}  // namespace nibble
