// What an engine takes of a rank's memory, to the byte, from its shapes alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/options.h"
#include "comm/token_exchange.h"
#include "ops/moe/many_tokens.h"
#include "plan/kernel_table.h"
#include "plan/model_traits.h"

namespace nibble {

// Rows of logits beyond one a sequence are for scoring prompts: bounded, since a row is the vocabulary wide.
inline constexpr int scoring_rows = 64;

// On a GPU with sequences of its own: rows of a step that may travel through windows (ops/peer_gather/cuda).
inline constexpr int few_rows_of_a_gpu = 32;

// What of a rank's weights --quantization brings into this format, as models/dense_conversion.h lays it out.
std::int64_t converted_bytes(const ModelTraits& model, Quantization quantization, int ranks);
// Of one rank; a share that does not divide is rounded up.
std::int64_t weight_bytes(const ModelTraits& model, Quantization quantization, int ranks);
// Of a rank of a group, of `owners` that each have sequences of their own: its experts of all ranks', and of
// everything else its part among the group's.
std::int64_t owner_weight_bytes(const ModelTraits& model, Quantization quantization, int ranks, int owners);
// What a GPU's rank has beyond that: ModelTraits::whole_on_gpus.
std::int64_t whole_weight_bytes(const ModelTraits& model, int ranks);
// What it has more where each GPU has all experts.
std::int64_t expert_copies_bytes(const ModelTraits& model, int ranks);

// Keys and values of one position in all layers, on one rank.
std::int64_t kv_position_bytes(const ModelTraits& model, DType dtype, int ranks);

// A sequence's states in all layers, on one rank, where a step checks so many drafts; and a snapshot of them.
std::int64_t state_bytes_of_rank(const ModelTraits& model, int ranks, int drafts);
std::int64_t snapshot_bytes_of_rank(const ModelTraits& model, int ranks);

// Layers with a window have pages of their own where other layers see everything; else all are in the first
// group.
bool has_window_pages(const ModelTraits& model);
// How keys and values are kept on a rank.
struct KvShape {
  DType dtype = DType::bf16;
  int ranks = 1;
  int page_size = 0;  // positions
};
struct KvPages {
  std::int64_t whole = 0;     // of layers that see all positions
  std::int64_t windowed = 0;  // of layers with a window
};
// Bytes of a page of each group, over its layers, on one rank.
KvPages kv_page_bytes(const ModelTraits& model, const KvShape& shape);
// Window pages beside `whole` others. What runs needs so many however long its sequences are; as many again,
// and at least a quarter of `whole`, are for prefixes that may be asked for again.
std::int64_t window_pages_beside(const ModelTraits& model, int page_size, std::int64_t sequences,
                                 std::int64_t step_tokens, std::int64_t whole);
// The most whole pages that fit `bytes` together with their window pages.
std::int64_t whole_pages_in(const ModelTraits& model, const KvShape& shape, std::int64_t sequences,
                            std::int64_t step_tokens, std::int64_t bytes);

struct StepLimits {
  std::int64_t rows = 0;
  std::int64_t logit_rows = 0;
  std::int64_t sequences = 0;
  std::int64_t drafts = 0;     // on a GPU
  std::int64_t positions = 0;  // of one sequence
  int threads = 1;
  int ranks = 1;
  int owners = 1;  // groups of ranks that have sequences of their own; rows and sequences are one's
  int expert_ranks = 1;
  ExchangeKind exchange = ExchangeKind::none;
  bool on_gpu = false;
  bool fp8_prompts = false;                          // there: inputs of FP8 weights are rounded
  bool by_nccl = false;                              // there: ranks gather by NCCL
  int many_tokens_from = moe_many_tokens_unplanned;  // an expert

  // Rows of a step on a GPU that only decodes, at most.
  std::int64_t decode_rows() const { return std::max(sequences, std::min({drafts + 1, rows, logit_rows})); }
};
// Everything a step writes: activations, logits, sampling.
std::int64_t workspace_bytes(const ModelTraits& model, const StepLimits& limits);

// Changes of logits (penalties, biases, forbidden tokens) that a step on a GPU has room for: some a sequence,
// and those of one whole context more, each of whose tokens may have three.
constexpr std::int64_t logit_change_room(std::int64_t sequences, std::int64_t positions) {
  return sequences * 8192 + 3 * positions;
}

// CUDA graphs of a GPU's steps that only decode.
std::int64_t graph_bytes(const StepLimits& limits);

}  // namespace nibble
