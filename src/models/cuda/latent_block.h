// Latent attention of a decoder on one GPU (ops/latent_attention/latent_attention.h): models/latent_mixer.h's
// twin, with the output's matrix.
//
// Rows go through it some at a time, each run of them behind the one before: a row sees its predecessors'
// vectors in the cache, whichever step or run has put them there.
#pragma once

#include "models/cuda/device_matrix.h"
#include "models/cuda/gathered_product.h"
#include "ops/latent_attention/cuda/latent_cuda.h"

namespace nibble {

// Of the rank's heads, but for what all share: latents, what queries come from, and the output's matrix. All
// pointers are to device memory, and null for what the model is without.
struct LatentBlockWeights {
  Bf16* norm = nullptr;  // [hidden]
  DeviceMatrix down;  // to what queries come from, or queries themselves, and from latent_row on to latents
  Bf16* query_norm = nullptr;   // [query_rank]
  DeviceMatrix query;           // [heads * head_dim, query_rank]; without rows where `down` has queries
  Bf16* latent_norm = nullptr;  // [rank]
  Bf16* keys = nullptr;         // as HeadProductsCudaArgs's weights, of latents' heads
  Bf16* values = nullptr;
  DeviceMatrix output;      // [hidden, all heads * value_dim]
  LatentHeadsRepack heads;  // shapes of keys and values, and where they are
  int head_dim = 0;         // of queries
  int latent_row = 0;
};

LatentBlockWeights lay_out_latent_weights(const ModelConfig& config, const CudaPart& part, std::int64_t layer,
                                          DeviceArena& arena);
// Of WeightPart::attention and its norms; `heads` are the rank's.
Status place_latent(WeightPlacing& placing, const Weight& weight, const Run& heads,
                    const LatentBlockWeights& to);

// What kernels lack of a model's latent attention.
Status check_latent_block(const ModelConfig& config);

class LatentBlock {
 public:
  // The cache of one layer, and the group that its pages are of.
  struct Cache {
    LatentCudaLayer layer;
    int group = 0;
    int page_size = 0;
    // Behind a layer whose launches fill the multiprocessors: none behind them begins before begin's list is
    // there.
    bool behind_a_layer = false;
  };

  // Takes its room. Without memory it only counts.
  LatentBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
              int processors, CudaPlace& place, DeviceArena& arena);
  void clear_room(cudaStream_t stream) const { output_.clear_room(stream); }
  // From now on inputs of FP8 weights are rounded, in this room.
  void round_inputs(const RoundingRoom& room) {
    stream_.rounding = room;
    output_.round_inputs(room);
  }

  // Once a step, for all layers: the angles, and what blocks of attention do. inv_freq: [rotated / 2]
  void begin(const CudaForwardInput& input, const float* inv_freq, cudaStream_t stream) const;
  // residual = pending's; its norm -> delta
  Status run(const LatentBlockWeights& weights, const Cache& cache, const PendingSum& pending,
             const CudaForwardInput& input, cudaStream_t stream) const;

 private:
  struct Rows {
    int first, count;
  };
  // normed_tiles -> the cache, absorbed_
  Status project(const LatentBlockWeights& weights, const Cache& cache, const CudaForwardInput& input,
                 const Rows& rows, cudaStream_t stream) const;
  // absorbed_ -> sums_
  Status attend(const Cache& cache, const CudaForwardInput& input, const Rows& rows,
                cudaStream_t stream) const;

  DecoderStream stream_;
  LatentNumbers latent_;
  int heads_;
  int rows_at_once_;
  float scale_, concentration_;
  float *cos_, *sin_;          // [rows, rotated / 2]
  std::uint8_t* work_;         // LatentWorkCudaArgs's
  float* down_;                // [rows at once, rows of `down`]
  std::uint8_t* query_tiles_;  // token tiles of query_rank columns
  float* q_;                   // [rows at once, heads * head_dim]; null where `down` has queries
  Bf16* plain_;                // [rows at once, heads, plain]
  Bf16* absorbed_;             // [rows at once, heads, rank + rotated]
  Bf16* sums_;                 // [rows at once, heads, rank]
  float *totals_, *partials_;  // LatentAttentionCudaArgs's
  GatheredProduct output_;     // of heads * value_dim columns; of rows at once where this rank is alone
};

}  // namespace nibble
