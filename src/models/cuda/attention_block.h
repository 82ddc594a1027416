// Attention of a decoder on one GPU: grouped heads of 64, 128 or 256 dimensions, with or without norms of q
// and k, gates on what heads give, biases, sinks and a window, rotated as wholes or in part.
//
// Heads of 64 that are not normed, nor gated, are rotated and put into the cache where their product ends
// (qkv_cuda). Others take a kernel more behind a plain product (turn_heads_cuda).
#pragma once

#include "models/cuda/cuda_part.h"
#include "models/cuda/decoder_stream.h"
#include "models/cuda/device_matrix.h"
#include "models/cuda/gathered_product.h"

namespace nibble {

// All pointers are to device memory, and null for what the model is without.
struct AttentionBlockWeights {
  Bf16* norm = nullptr;  // [hidden]
  // [(padded_heads + 2 kv_heads) * head_dim, hidden], of the rank; a head's gate behind its q
  DeviceMatrix qkv;
  Bf16* qkv_bias = nullptr;  // one a row of qkv
  Bf16* q_norm = nullptr;    // [head_dim]
  Bf16* k_norm = nullptr;    // [head_dim]
  DeviceMatrix wo;           // [hidden, all_padded_heads * head_dim]
  Bf16* wo_bias = nullptr;   // [hidden]
  float* sinks = nullptr;    // [padded_heads]
  int window = 0;            // 0: full attention
};

AttentionBlockWeights lay_out_attention_weights(const ModelConfig& config, const CudaPart& part,
                                                std::int64_t layer, DeviceArena& arena);

// What kernels lack of a model's attention.
Status check_attention_block(const ModelConfig& config);

class AttentionBlock {
 public:
  // The cache of one layer, and the group that its pages are of.
  struct Cache {
    KvCudaLayer layer;
    int group = 0;
    int page_size = 0;
  };

  // Takes its room. Without memory it only counts.
  AttentionBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
                 int processors, CudaPlace& place, DeviceArena& arena);
  void clear_room(cudaStream_t stream) const;
  // Of a short context (attention_cuda.h), the same on all ranks; attention_any_context: it has no kernel.
  int most_later_clusters() const { return most_later_clusters_; }
  // From now on inputs of FP8 weights are rounded, in this room.
  void round_inputs(const RoundingRoom& room) {
    stream_.rounding = room;
    output_.round_inputs(room);
  }

  // Once a step: the angles that all layers turn by. inv_freq: [rotary_dim / 2]
  void turn(const CudaForwardInput& input, const float* inv_freq, cudaStream_t stream) const;
  // residual = pending's; its norm -> delta
  Status run(const AttentionBlockWeights& weights, const Cache& cache, const PendingSum& pending,
             const CudaForwardInput& input, cudaStream_t stream) const;

 private:
  // Norm and product of a row of queries, keys and values.
  Status project(const AttentionBlockWeights& weights, const Cache& cache, const PendingSum& pending,
                 const CudaForwardInput& input, int beside, cudaStream_t stream) const;

  // Of rows as a plain product gives them: norms, the turn, and where keys and values belong.
  Status turn_heads(const AttentionBlockWeights& weights, const Cache& cache, const CudaForwardInput& input,
                    cudaStream_t stream) const;
  int qkv_width() const { return ((gated_ ? 2 : 1) * heads_ + 2 * kv_heads_) * head_dim_; }

  DecoderStream stream_;
  int heads_, kv_heads_, head_dim_;
  int most_later_clusters_;
  bool gated_, norms_less_one_;
  int rotary_dim_;
  bool turns_in_product_;
  float concentration_;
  float *cos_, *sin_;       // [rows, rotary_dim / 2]
  float* qkv_;              // [rows, qkv_width()]; null where products turn
  Bf16* q_;                 // [rows, heads, head_dim]
  GatheredProduct output_;  // of heads * head_dim columns
  AttentionCudaWorkspace workspace_;
};

}  // namespace nibble
