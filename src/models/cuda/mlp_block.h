// A feed-forward that every row takes, on one GPU: that of a dense layer, and the expert that a layer's
// tokens share beside those they choose (ops/gated_mlp/gated_mlp.h).
//
// Rows go through it some at a time, so that what a wide layer has between its products stays small.
//
// Ranks have parts of a dense layer's width each. A shared expert every rank has whole: it is narrow, and
// what each would save of its weights is less than another wait for the others. Of rows that ranks share each
// takes its own.
#pragma once

#include <optional>

#include "models/cuda/device_matrix.h"
#include "models/cuda/gathered_product.h"
#include "ops/row/gated_unit.h"

namespace nibble {

// All pointers are to device memory.
struct MlpWeights {
  DeviceMatrix gate_up;  // gates' rows, and from row `up` on those of the ups
  DeviceMatrix down;     // [hidden, width of all ranks]
  int width = 0, up = 0;
  int first = 0;  // of the width, which this rank has from there on
  GatedUnit unit;
};
struct DenseLayerWeights {
  Bf16* norm = nullptr;  // [hidden]
  MlpWeights mlp;
};
struct SharedExpertWeights {
  MlpWeights mlp;
  std::optional<DenseTiles> share;  // [1, hidden]: the logit of a row's share; none: shares of 1
  // Where it lies in gate_up, whose product then makes the logits too; 0: it lies apart.
  int share_row = 0;
};

DenseLayerWeights lay_out_dense_layer(const ModelConfig& config, const CudaPart& part, std::int64_t layer,
                                      DeviceArena& arena);
SharedExpertWeights lay_out_shared_expert(const ModelConfig& config, std::int64_t layer, DeviceArena& arena);

// Of roles dense_gate to shared_share.
Status place_mlp(WeightPlacing& placing, const Weight& weight, MlpWeights& to);
Status place_shared_expert(WeightPlacing& placing, const Weight& weight, SharedExpertWeights& to);

// What kernels lack of a model's dense layers and shared experts.
Status check_mlp_block(const ModelConfig& config);

class MlpBlock {
 public:
  // Takes its room. Without memory it only counts.
  MlpBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
           CudaPlace& place, DeviceArena& arena);
  void clear_room(cudaStream_t stream) const;
  // From now on inputs of FP8 weights are rounded, in this room.
  void round_inputs(const RoundingRoom& room) {
    stream_.rounding = room;
    if (dense_down_) dense_down_->round_inputs(room);
  }

  // A dense layer's: residual + delta and its norm -> delta.
  Result<PendingSum> run(const DenseLayerWeights& weights, const CudaForwardInput& input,
                         cudaStream_t stream) const;
  // Beside the routed experts of the same rows, whose norm lies in normed_tiles: what a shared expert of few
  // rows gives, in one launch. Of more rows nothing yet.
  Status multiply_shared(const SharedExpertWeights& weights, const SharedChoice& choice, int rows,
                         cudaStream_t stream) const;
  // Behind both: what the routed experts gave + share * the shared expert's, in delta or as one more choice
  // of the row.
  Result<PendingSum> add_shared(const SharedExpertWeights& weights, const PendingSum& routed,
                                const SharedChoice& choice, const CudaForwardInput& input,
                                cudaStream_t stream) const;

 private:
  // Whether the shared expert of so many rows is one launch.
  bool takes_few(const SharedExpertWeights& weights, int rows) const;
  // Rows [first, first + rows) of normed_tiles -> what lies between the products.
  Status gate_rows(const MlpWeights& weights, int first, int rows, std::uint8_t* activations,
                   cudaStream_t stream) const;

  DecoderStream stream_;
  int rows_at_once_;
  // [rows at once, rows of a gate_up matrix]: gates, ups, what lies between, and a share's logit behind.
  float* gate_up_;
  std::optional<GatheredProduct> dense_down_;  // of rows at once where this rank is alone
  std::uint8_t* activations_ = nullptr;        // of a shared expert: token tiles of its width
  float* shared_ = nullptr;                    // [rows at once, hidden]; null where no layer shares an expert
  float* logits_ = nullptr;           // [rows at once], where a product of their own or one launch makes
                                      // them; null where shares are 1
  std::uint32_t* arrived_ = nullptr;  // where the blocks of a shared expert's launch meet
  std::uint32_t* stuck_;              // CudaForwardLimits's
};

}  // namespace nibble
