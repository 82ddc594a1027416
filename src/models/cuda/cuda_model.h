// A model on one GPU: weights in its kernels' layouts and one forward, a list of launches.
//
// Whatever a forward reads lies in device memory at addresses the caller chose, and its launches depend on
// the sizes below alone: so a forward may be captured into a CUDA graph and replayed with other inputs in the
// same places.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "comm/token_exchange.h"
#include "models/cuda/cuda_part.h"
#include "models/cuda/launch_counts.h"
#include "models/cuda/weight_feed.h"
#include "ops/attention/cuda/attention_cuda.h"
#include "ops/attention/cuda/kv_cuda.h"
#include "ops/gated_delta/cuda/gated_delta_cuda.h"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/moe/many_tokens.h"
#include "ops/sample/cuda/sample_cuda.h"

namespace nibble {

// What a forward may be asked at most; memory is taken for it once. Of a rank with sequences of its own: of
// those.
struct CudaForwardLimits {
  int rows = 0;
  int logit_rows = 0;
  int sequences = 0;
  int many_tokens_from = moe_many_tokens_unplanned;  // an expert, for its kernel for many
  ExchangeKind exchange = ExchangeKind::none;        // of ranks with sequences of their own
  bool rounds_prompts = false;                       // inputs of FP8 weights to FP8, in steps of prompts
  std::uint32_t* stuck = nullptr;  // one word of pinned host memory (ops/cuda/stuck.h); null: nobody reads it
  LaunchCounts* launches = nullptr;  // which outlive the model; null: nobody counts
};

// Layers that look back equally far share page tables (core/batch.h).
inline constexpr int cuda_page_groups = 2;

// Pointers are to device memory.
struct CudaForwardInput {
  int rows = 0;
  int sequences = 0;
  int logit_rows = 0;
  int most_rows = 0;          // at least `rows`: of any group of ranks with sequences of its own
  bool one_row_each = false;  // a decode step: sequence i has row i, and no other
  bool of_prompts = false;    // as CudaForwardLimits::rounds_prompts says, which must be so
  // One number: rows from it on fill the step up to its size. Their sequences have no rows and their slots
  // are -1.
  const std::int32_t* row_limit = nullptr;
  const std::int32_t* tokens = nullptr;                      // [rows]; -1 - i: that of chosen[i]
  const SampledToken* chosen = nullptr;                      // by the step before, and this one
  const std::int32_t* positions = nullptr;                   // [rows]
  const std::int32_t* kv_slots[cuda_page_groups] = {};       // [rows]
  const SequenceCuda* sequence_rows[cuda_page_groups] = {};  // [sequences]
  // Sequences in their order, cut so that each run's splits fit the room that attention has for them.
  std::span<const int> attention_runs;         // on the host: where each run ends; the last is `sequences`
  int later_clusters = attention_any_context;  // that all contexts need (attention_cuda.h)
  // Keys and values of positions before each sequence's first row are of earlier steps. Else some are of rows
  // of this one.
  bool settled = true;
  const std::int32_t* page_table = nullptr;
  DeltaStepCuda states;  // of models whose layers keep some; rows and sequences are those above
  const std::int32_t* wanted_rows = nullptr;  // [logit_rows], ascending; null: all rows
};

// As attention's kernels take them.
struct CudaHeads {
  int a_key_head = 1;  // of queries
  int dim = kv_head_dim;
  // The positions of a cluster of a short context, and how many later clusters it may have, if any at all.
  int cluster_positions = attention_cluster_positions(kv_head_dim), most_later_clusters = 0;
};

class CudaModel {
 public:
  virtual ~CudaModel() = default;
  virtual const ModelConfig& config() const = 0;
  virtual std::size_t weight_bytes() const = 0;
  virtual std::size_t workspace_bytes() const = 0;
  virtual CudaHeads heads() const = 0;
  // Where ranks gather logits, which forward() leaves there without a copy; null where one is alone.
  virtual float* gathered_logits() const = 0;
  // Each layer's keys and values, and which group of pages they are of. Called once, before the first
  // forward.
  virtual void use_cache(std::span<const KvCudaLayer> layers, std::span<const int> groups, int page_size) = 0;
  // Whether layers keep states; and those of each layer, of [layers], without memory of layers that keep
  // none.
  virtual bool keeps_states() const = 0;
  virtual void use_states(std::span<const DeltaLayer> layers) = 0;
  // The same of layers with latents instead; both are without memory where a layer is of the other kind.
  virtual void use_latents(std::span<const LatentCudaLayer> layers, std::span<const int> groups,
                           int page_size) = 0;
  // Splits of sequences with few rows that one run of attention may have.
  static constexpr int attention_splits_room = 8192;
  // Queues the forward; logits: [logit_rows, vocabulary], which only the first rank has, or each with
  // sequences of its own. Row for row the result depends on the sequence alone.
  virtual Status forward(const CudaForwardInput& input, float* logits, cudaStream_t stream) = 0;
};

// Takes the device memory for weights and workspace, and fills the weights from the feed. What the
// kernels lack is refused before memory is taken.
Result<std::unique_ptr<CudaModel>> load_cuda_model(const ModelConfig& config, const CudaForwardLimits& limits,
                                                   const CudaPlace& place, WeightFeed& feed,
                                                   cudaStream_t stream);
// Of place.shared and of place.shared_by_all, what load_cuda_model takes: the same on all ranks.
struct SharedBytes {
  std::size_t of_sequences = 0, of_all = 0;
};
SharedBytes shared_bytes_of_cuda_model(const ModelConfig& config, const CudaForwardLimits& limits,
                                       const CudaPart& part);

}  // namespace nibble
