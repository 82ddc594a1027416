// A model: weights bound to their places and one forward over a ragged batch.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weight_source.h"
#include "comm/token_exchange.h"
#include "models/dense_conversion.h"
#include "ops/attention/paged_kv.h"
#include "ops/gated_delta/delta_state.h"
#include "ops/latent_attention/latent_cache.h"
#include "ops/op_context.h"
#include "plan/rank_part.h"

namespace nibble {

// One layer's keys and values, or latents, and which of its pages are whose. Layers with a window have other
// page tables than those without.
struct LayerKv {
  KvLayer cache;
  LatentLayer latent;
  std::span<const SequenceRows> sequences;  // cover all rows
};

// The states of one layer that keeps no keys and values; without memory of the others.
using LayerState = DeltaLayer;

// Rows of all sequences of a step, one after the other; a sequence's rows are consecutive positions.
struct ForwardInput {
  std::span<const TokenId> tokens;        // [rows]
  std::span<const int> positions;         // [rows]
  std::span<const LayerKv> kv;            // [layers]
  std::span<const LayerState> states;     // [layers]; empty where no layer has any
  std::span<const StateRows> state_rows;  // cover all rows likewise
  std::span<const int> logit_rows;        // ascending rows whose logits are wanted
  // Rows of the rank that has most, where groups of ranks have sequences of their own: all send tokens as
  // often as it does. 0: all have the same rows.
  int most_rows = 0;
  Communicator* ranks = nullptr;    // all, at which experts meet tokens; null: there is one rank
  Communicator* sharers = nullptr;  // those that have the same rows, through which parts are gathered
};

// What a forward may be asked at most; memory is taken for it once.
struct ForwardLimits {
  int rows = 0;
  int logit_rows = 0;
  int positions = 0;  // of one sequence
  int threads = 0;
  ExchangeKind exchange = ExchangeKind::none;  // of ranks with experts of their own
};

// How often forwards have run each op, a layer once.
struct OpRuns {
  std::uint64_t attention = 0;  // on keys and values
  std::uint64_t latent_attention = 0;
  std::uint64_t gated_delta = 0;
  std::uint64_t experts = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // Takes all memory that forwards within the limits need, and maps the weights that are in memory already;
  // called once, before the first forward.
  virtual Status reserve(const ForwardLimits& limits, ThreadPool& threads) = 0;
  // Puts dense weights into another format, for good (dense_conversion.h); called once, after reserve().
  virtual Status convert_dense(DenseFormat format, ThreadPool& threads,
                               const ConversionProgress& progress) = 0;
  // Of the weights' files, mapped by reserve().
  virtual std::int64_t mapped_bytes() const = 0;
  // logits: [logit_rows, vocab_size]; of several ranks, null for those that only give their part. All ranks
  // are given the same input, or each group the rows of its own sequences, maybe none; an error is one of the
  // ranks' meeting. Row for row the result depends on the sequence alone: not on the batch, the chunks its
  // prompt came in, or the threads.
  virtual Status forward(OpContext& context, const ForwardInput& input, float* logits) = 0;
  virtual OpRuns runs() const = 0;
  // Whether the weights still are what was loaded (their files may have been cut while mapped).
  virtual Status intact() const = 0;
};

// The architecture named by the config, from the list in model_list.cpp; the weights' shapes are checked
// against the config before any is used.
Result<std::unique_ptr<Model>> bind_model(const ModelConfig& config, WeightSource weights);
// One rank's part of it. Ranks of a process share the source, and each reads its own part of it.
Result<std::unique_ptr<Model>> bind_model(const ModelConfig& config,
                                          std::shared_ptr<const WeightSource> weights, const RankPart& part);

}  // namespace nibble
