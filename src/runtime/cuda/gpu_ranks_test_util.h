// What tests of a model over several GPUs share: workers on ranks, and the bits of one GPU that they must
// have.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "comm/cuda/peer_test_util.h"
#include "runtime/cuda/gpu_worker_test_util.h"
#include "runtime/cuda/pinned_pieces.h"

namespace nibble {

inline WorkerLimits limits_of_ranks(const ModelConfig& config, int ranks, bool graphs,
                                    DType kv_dtype = DType::bf16) {
  WorkerLimits limits = limits_of(config, graphs, small_size, kv_dtype);
  limits.ranks = limits.expert_ranks = ranks;
  limits.gpu_rank_deadline = patient;
  return limits;
}

// Each rank reads its part of the checkpoint by itself, and with the others what they want too.
inline Result<std::unique_ptr<Worker>> start_ranks(const std::filesystem::path& folder,
                                                   const WorkerLimits& limits) {
  const ModelConfig config = must(read_model_config(folder));
  const WeightSource source = must(WeightSource::open(folder));
  const std::unique_ptr<PinnedPieces> pieces = must(PinnedPieces::make(2));
  return GpuWorker::start(
      config,
      [&](const CudaPlace& place, int device) -> Result<std::unique_ptr<GpuRank>> {
        cuda_check(cudaSetDevice(device));
        ThreadPool threads(1);
        NIBBLE_ASSIGN(WeightUpload upload,
                      WeightUpload::begin(source, threads, {.pieces = pieces.get(), .progress = {}}));
        return GpuRank::load(config, place, device, upload, limits);
      },
      limits);
}

// How ranks get what the others have made: by stores into each other's memory, or by NCCL.
enum class RankGather : bool { by_stores, by_nccl };

inline std::unique_ptr<Worker> ranks_worker(const std::filesystem::path& folder, int ranks, bool graphs,
                                            DType kv_dtype = DType::bf16,
                                            RankGather gather = RankGather::by_stores) {
  WorkerLimits limits = limits_of_ranks(must(read_model_config(folder)), ranks, graphs, kv_dtype);
  limits.by_nccl = gather == RankGather::by_nccl;
  return must(start_ranks(folder, limits));
}

// Of one rank with sequences of its own: few graphs, which the emulation takes long for.
inline const Size owners_size = small_cases ? Size{80, 6, 512, 24} : small_size;

// Groups of ranks with sequences of their own.
struct Owners {
  int ranks, owners;
  ExchangeKind exchange = ExchangeKind::low_latency;
};
// Each rank one.
inline std::vector<Owners> owners_of_each(const std::vector<int>& rank_counts) {
  std::vector<Owners> all;
  for (const int ranks : rank_counts) all.push_back({ranks, ranks});
  return all;
}
inline WorkerLimits limits_of_owners(const ModelConfig& config, const Owners& owners, bool graphs,
                                     const Size& own = owners_size) {
  WorkerLimits limits = limits_of(config, graphs, own);
  limits.ranks = limits.expert_ranks = owners.ranks;
  limits.owners = owners.owners;
  limits.owner_rows = own.rows;
  limits.owner_sequences = own.sequences;
  limits.max_rows = owners.owners * own.rows;
  limits.max_sequences = owners.owners * own.sequences;
  limits.exchange = owners.exchange;
  limits.gpu_rank_deadline = patient;
  return limits;
}

// A prompt's log-probabilities and a drawn answer, of each owner while others have nothing, and among others
// of all.
inline void expect_owners_to_have_the_bits_of_one_gpu(const std::filesystem::path& folder,
                                                      const std::vector<Owners>& ways) {
  const std::vector<TokenId> prompt = random_prompt(3, small_cases ? 36 : 150);
  const SamplingParams drawn{.temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .seed = 5};
  const auto own_sequence = [&](std::size_t chunk, int owner) {
    Sequence sequence = sequence_of(prompt, chunk, {5, 2, 3}, drawn);
    sequence.owner = owner;
    return sequence;
  };
  const std::size_t answer = small_cases ? 2 : 4;
  const Heard expected = run_alone(*gpu_worker(false, folder), own_sequence(prompt.size(), 0), answer);
  const ModelConfig config = must(read_model_config(folder));
  for (std::size_t way = 0; way < ways.size(); ++way) {
    const Owners& of = ways[way];
    for (const bool graphs : {false, true}) {
      if (small_cases && graphs != (way == 0)) continue;
      SCOPED_TRACE(std::to_string(of.ranks) + " ranks, " + std::to_string(of.owners) + " owners, graphs " +
                   std::to_string(graphs));
      const std::unique_ptr<Worker> worker = must(start_ranks(folder, limits_of_owners(config, of, graphs)));
      for (int owner = small_cases ? of.owners - 1 : 0; owner < of.owners; ++owner) {
        EXPECT_TRUE(run_alone(*worker, own_sequence(owner % 2 == 0 ? prompt.size() : 33, owner), answer) ==
                    expected)
            << "of owner " << owner;
      }
      std::vector<Sequence> company;
      for (int i = 0; i < 5; ++i) {
        company.push_back(
            sequence_of(random_prompt(20 + static_cast<unsigned>(i), 5 + static_cast<std::size_t>(9 * i)), 20,
                        {6 + 2 * i, 7 + 2 * i}));
        company.back().scores = false;
        company.back().owner = i * i % of.owners;
      }
      Sequence own = own_sequence(25, of.owners - 1);
      while (own.heard.tokens.size() < answer)
        step(*worker, {&company[0], &own, &company[1], &company[2], &company[3], &company[4]});
      EXPECT_TRUE(own.heard == expected) << "in company";
    }
  }
}

// A prompt's log-probabilities and a drawn answer, alone and among others.
inline void expect_the_bits_of_one_gpu(const std::filesystem::path& folder,
                                       const std::vector<int>& rank_counts, DType kv_dtype = DType::bf16,
                                       RankGather gather = RankGather::by_stores) {
  const std::vector<TokenId> prompt = random_prompt(3, small_cases ? 36 : 150);
  const SamplingParams drawn{.temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .seed = 5};
  const auto alone = [&](Worker& worker, std::size_t chunk) {
    return run_alone(worker, sequence_of(prompt, chunk, {5, 2, 3}, drawn), small_cases ? 2 : 4);
  };
  const Heard expected = alone(*gpu_worker(false, folder, kv_dtype), prompt.size());
  for (const int ranks : rank_counts) {
    for (const bool graphs : {false, true}) {
      if (small_cases && graphs != (ranks == rank_counts.front())) continue;
      const std::unique_ptr<Worker> worker = ranks_worker(folder, ranks, graphs, kv_dtype, gather);
      EXPECT_TRUE(alone(*worker, prompt.size()) == expected) << ranks << " ranks, graphs " << graphs;
      EXPECT_TRUE(small_cases || alone(*worker, 33) == expected)
          << ranks << " ranks in chunks, graphs " << graphs;
      std::vector<Sequence> company;
      for (int i = 0; i < 3; ++i) {
        company.push_back(
            sequence_of(random_prompt(20 + static_cast<unsigned>(i), 5 + static_cast<std::size_t>(9 * i)), 20,
                        {6 + 2 * i, 7 + 2 * i}));
        company.back().scores = false;
      }
      Sequence own = sequence_of(prompt, 25, {20, 21, 22}, drawn);
      while (own.heard.tokens.size() < expected.tokens.size())
        step(*worker, {&company[0], &own, &company[1], &company[2]});
      EXPECT_TRUE(own.heard == expected) << ranks << " ranks in company, graphs " << graphs;
    }
  }
}

}  // namespace nibble
