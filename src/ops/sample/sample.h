// sample: from one row of logits to one token, and the log-probabilities a caller asked for.
//
// The logits chosen from may have been changed (logit_changes.h). Filters in this order, each over what the
// one before left, probabilities renormalised in between: temperature, top_k, top_p, min_p, as in
// transformers and llama.cpp; vLLM takes min_p first, which differs only where top_p is below 1 too. Ties are
// broken towards the lower id everywhere. The draw uses one uniform number that depends on (seed, choice,
// position) alone, so a result does not depend on the batch. Log-probabilities are of the softmax over the
// whole vocabulary, before changes, temperature and filters.
//
// Order. The softmax's sum is taken over blocks of row_block ids, each as ops/row/row_kernels.h says and in
// double precision; blocks are added in index order. What is drawn from are whole numbers, a token's mass
// being e^((logit - largest) / temperature) in units of 2^-40, rounded down, so their sums have no order;
// the draw walks the ids in ascending order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token_id.h"
#include "ops/row/row_kernels.h"
#include "ops/sample/uniform_draw.h"

namespace nibble {

inline constexpr int row_block = 1024;

struct SampleParams {
  float temperature = 1.0f;  // 0: the likeliest token
  int top_k = 0;             // 0: all
  float top_p = 1.0f;        // in (0, 1]
  float min_p = 0.0f;        // in [0, 1]
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::uint32_t position = 0;  // of the sampled token in its sequence
};

// A row's softmax: logprob(id) = logits[id] - log_sum_exp.
struct RowStatistics {
  double log_sum_exp = 0;
  TokenId likeliest = 0;
  bool finite = true;  // false: a NaN or Inf among the logits; the rest is then meaningless
};
RowStatistics row_statistics(std::span<const float> logits, const RowKernels& kernels = best_row_kernels());

// Of finite logits: the one of the largest, the lowest id of a tie.
TokenId likeliest_token(std::span<const float> logits, const RowKernels& kernels = best_row_kernels());

inline float logprob(std::span<const float> logits, const RowStatistics& statistics, TokenId id) {
  return static_cast<float>(logits[static_cast<std::size_t>(id)] - statistics.log_sum_exp);
}

// Room that a worker keeps: once it is reserved for the vocabulary, sampling allocates nothing.
struct SampleWorkspace {
  std::vector<TokenId> candidates;         // ids that a filter looks at
  std::vector<float> weights;              // [vocabulary] or more, relative to the likeliest token's 1
  std::vector<std::int64_t> block_masses;  // of row_block ids each

  void reserve(std::size_t vocabulary) {
    candidates.reserve(vocabulary);
    weights.reserve(vocabulary);
    block_masses.reserve(vocabulary / row_block + 1);
  }
};

// `first` is the row's likeliest token.
TokenId sample(std::span<const float> logits, TokenId first, const SampleParams& params,
               SampleWorkspace& workspace, const RowKernels& kernels = best_row_kernels());

// The `count` likeliest ids in descending order.
void likeliest(std::span<const float> logits, int count, std::vector<TokenId>& ids);

}  // namespace nibble
