// A layer's gated delta rule with the matrices around it, on one GPU (models/delta_mixer.h,
// ops/gated_delta/cuda/gated_delta_cuda.h).
#pragma once

#include <optional>

#include "models/cuda/device_matrix.h"
#include "models/cuda/gathered_product.h"
#include "ops/gated_delta/cuda/gated_delta_cuda.h"

namespace nibble {

// Of the rank's heads of keys and their heads of values, but for `output` and what is said to be of all. All
// pointers are to device memory.
struct DeltaBlockWeights {
  Bf16* norm = nullptr;      // [hidden]
  DeviceMatrix projections;  // of q, k, v and z, and behind them of b and a if those have their format
  std::optional<DeviceMatrix> gates;  // of b and a, if they have another
  // Where they begin in their matrix; b and a are those of all heads.
  int k_row = 0, v_row = 0, z_row = 0, b_row = 0, a_row = 0;
  float* convolution = nullptr;  // [taps, channels]
  float* rate = nullptr;         // [value_heads]
  float* bias = nullptr;         // [value_heads]
  float* head_norm = nullptr;    // [value_dim]
  DeviceMatrix output;           // [hidden, values of all heads]
};

DeltaBlockWeights lay_out_delta_weights(const ModelConfig& config, const CudaPart& part, std::int64_t layer,
                                        DeviceArena& arena);

// What a weight's rows mean: the rank's heads among all.
struct DeltaHeads {
  DeltaShape all;
  Run keys, values;  // the rank's
  bool by_key_head = false;
};
DeltaHeads delta_heads(const ModelConfig& config, const CudaPart& part);

// Of WeightPart::linear_attention.
Status place_delta(WeightPlacing& placing, const Weight& weight, const DeltaHeads& heads,
                   const DeltaBlockWeights& to);

// What kernels lack of a model's layers with the rule.
Status check_delta_block(const ModelConfig& config);

class DeltaBlock {
 public:
  // Takes its room. Without memory it only counts.
  DeltaBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
             CudaPlace& place, DeviceArena& arena);
  void clear_room(cudaStream_t stream) const { output_.clear_room(stream); }
  // From now on inputs of FP8 weights are rounded, in this room.
  void round_inputs(const RoundingRoom& room) {
    stream_.rounding = room;
    output_.round_inputs(room);
  }

  // Drafts are rows of their sequence, which goes by chunks then.
  static bool has_one_row_each(const CudaForwardInput& input);

  // residual = pending's; its norm -> delta
  Status run(const DeltaBlockWeights& weights, const DeltaLayer& states, const PendingSum& pending,
             const CudaForwardInput& input, cudaStream_t stream) const;

 private:
  DeltaColumns columns(const DeltaBlockWeights& weights) const;

  DecoderStream stream_;
  DeltaHeads heads_;
  DeltaShape shape_;  // of the rank's
  float* projected_;  // [rows, the widest projection]
  float* gates_;      // [rows, rows of a matrix of gates]
  float* qkv_;        // [rows, channels]
  double* decays_;    // [rows, value_heads]
  float* betas_;      // [rows, value_heads]
  float* products_;   // [delta_product_floats]
  float* of_heads_;   // [rows, values]
  GatheredProduct output_;
};

}  // namespace nibble
