// A layer's gated delta rule with the matrices around it, on one GPU (models/delta_mixer.h,
// ops/gated_delta/cuda/gated_delta_cuda.h).
#pragma once

#include <optional>

#include "models/cuda/dense_matrix.h"
#include "ops/gated_delta/cuda/gated_delta_cuda.h"

namespace nibble {

// All pointers are to device memory.
struct DeltaBlockWeights {
  Bf16* norm = nullptr;      // [hidden]
  DeviceMatrix projections;  // of q, k, v and z, and behind them of b and a if those have their format
  std::optional<DeviceMatrix> gates;    // of b and a, if they have another
  int z_row = 0, b_row = 0, a_row = 0;  // where they begin in their matrix
  float* convolution = nullptr;         // [taps, channels]
  float* rate = nullptr;                // [value_heads]
  float* bias = nullptr;                // [value_heads]
  float* head_norm = nullptr;           // [value_dim]
  DeviceMatrix output;                  // [hidden, values]
};

DeltaBlockWeights lay_out_delta_weights(const ModelConfig& config, std::int64_t layer, DeviceArena& arena);

// Of WeightPart::linear_attention.
Status place_delta(WeightPlacing& placing, const Weight& weight, const DeltaBlockWeights& to);

// What kernels lack of a model's layers with the rule.
Status check_delta_block(const ModelConfig& config);

class DeltaBlock {
 public:
  // Takes its room. Without memory it only counts.
  DeltaBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
             DeviceArena& arena);

  // residual = pending's; its norm -> delta
  Status run(const DeltaBlockWeights& weights, const DeltaLayer& states, const PendingSum& pending,
             const CudaForwardInput& input, cudaStream_t stream) const;

 private:
  DeltaColumns columns(const DeltaBlockWeights& weights) const;

  DecoderStream stream_;
  DeltaShape shape_;
  bool by_key_head_;
  float* projected_;     // [rows, the widest projection]
  float* gates_;         // [rows, rows of a matrix of gates]
  float* qkv_;           // [rows, channels]
  double* decays_;       // [rows, value_heads]
  float* betas_;         // [rows, value_heads]
  float* products_;      // [rows, key_heads, 2, delta_chunk]
  float* of_heads_;      // [rows, values]
  std::uint8_t* mixed_;  // token tiles of values columns
};

}  // namespace nibble
