// A decoder of pre-norm layers, each a mixer and a feed-forward, on one GPU: models/decoder.h's twin, from
// the same description. Its blocks (attention, experts, head) have weights and room of their own; those of a
// kind that no layer has take none.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "models/cuda/attention_block.h"
#include "models/cuda/delta_block.h"
#include "models/cuda/experts_block.h"
#include "models/cuda/head_block.h"
#include "models/cuda/latent_block.h"
#include "models/cuda/mlp_block.h"
#include "models/cuda/weight_placing.h"

namespace nibble {

// Kinds of a layer's two halves, each with the norm before it. A block of the same kind runs it (Mixer and
// FeedForward in checkpoint/model_config.h).
using MixerCudaWeights = std::variant<AttentionBlockWeights, DeltaBlockWeights, LatentBlockWeights>;
using FeedForwardCudaWeights = std::variant<ExpertsBlockWeights, DenseLayerWeights>;

struct DecoderCudaLayer {
  MixerCudaWeights mixer;
  FeedForwardCudaWeights feed_forward;
  std::optional<SharedExpertWeights> shared;  // beside experts
};

// All pointers are to device memory.
struct DecoderCudaWeights {
  Bf16* embedding = nullptr;             // [vocab, hidden]
  std::vector<DecoderCudaLayer> layers;  // of the rank's heads and experts
  HeadBlockWeights head;
  float* inv_freq = nullptr;  // [rotary_dim / 2]

  // Where everything lies; an arena without memory says how much that is.
  static DecoderCudaWeights lay_out(const ModelConfig& config, const CudaPart& part, DeviceArena& arena);
};

// What a forward writes, by blocks; laid out by making them.
struct DecoderCudaBlocks {
  DecoderStream stream;
  HeadBlock head;
  std::optional<AttentionBlock> attention;
  std::optional<DeltaBlock> delta;
  std::optional<LatentBlock> latent;
  std::optional<ExpertsBlock> experts;
  std::optional<MlpBlock> mlp;  // of dense layers and of shared experts
  RoundingRoom rounding;        // where limits say that prompts are rounded

  // What ranks share is taken from `place`.
  static DecoderCudaBlocks lay_out(const ModelConfig& config, const CudaForwardLimits& limits,
                                   CudaPlace& place, int processors, DeviceArena& arena);

  void clear_room(cudaStream_t on) const;
  // The same blocks, which round the inputs of FP8 weights.
  DecoderCudaBlocks of_prompts() const;

 private:
  // Where what rows pass through alone or in attention runs, and where the experts do.
  struct Places {
    CudaPlace &of_sequences, &of_experts;
    int processors;
  };
  DecoderCudaBlocks(const ModelConfig& config, const CudaForwardLimits& limits, const Places& places,
                    DeviceArena& arena);
};

// Fills what was laid out, each weight by its role.
Status place_decoder_weights(const ModelConfig& config, const CudaPart& part, DecoderCudaWeights& weights,
                             WeightPlacing& placing);

// What the kernels cannot compute of a model; refused before memory is taken.
Status check_decoder_cuda(const ModelConfig& config);

Result<std::unique_ptr<CudaModel>> load_decoder_cuda(const ModelConfig& config,
                                                     const CudaForwardLimits& limits, const CudaPlace& place,
                                                     WeightFeed& feed, cudaStream_t stream);

}  // namespace nibble
