#include "models/cuda/mlp_block.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "ops/gated_mlp/cuda/gated_mlp_cuda.h"
#include "ops/gated_mlp/cuda/shared_expert_cuda.h"
#include "ops/gated_mlp/mlp_room.h"

namespace nibble {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

struct MlpFormats {
  TensorFormat gate = TensorFormat::bf16, up = TensorFormat::bf16, down = TensorFormat::bf16;
};
MlpFormats formats_of(const ModelConfig& config, std::int64_t layer) {
  MlpFormats formats;
  visit_weights(config, [&](const Weight& weight) {
    if (weight.layer != layer) return;
    switch (weight.role) {
      case WeightRole::dense_gate:
      case WeightRole::shared_gate: formats.gate = weight.format; break;
      case WeightRole::dense_up:
      case WeightRole::shared_up: formats.up = weight.format; break;
      case WeightRole::dense_down:
      case WeightRole::shared_down: formats.down = weight.format; break;
      default: break;
    }
  });
  return formats;
}

// Outputs of the product with gates and ups that are there for a share's logit: rows come in fours.
constexpr std::int64_t share_rows = 4;

// `own` of so many columns; behind: rows of gate_up behind the ups.
MlpWeights lay_out_mlp(const ModelConfig& config, std::int64_t layer, const Run& own, std::int64_t width,
                       std::int64_t behind, DeviceArena& arena) {
  const MlpFormats formats = formats_of(config, layer);
  const std::int64_t up = stacked_row(formats.gate, own.count);
  const std::int64_t rows = up + (behind > 0 ? up + behind : own.count);
  return {.gate_up = DeviceMatrix::lay_out(arena, formats.gate, rows, config.hidden_size),
          .down = DeviceMatrix::lay_out(arena, formats.down, config.hidden_size, width),
          .width = static_cast<int>(own.count),
          .up = static_cast<int>(up),
          .first = static_cast<int>(own.begin),
          .unit = silu_unit};
}

// As the launch for few rows of a shared expert takes a matrix; none: in a format that it does not take.
std::optional<SharedExpertMatrix> few_matrix(const DeviceMatrix& matrix) {
  if (!matrix.blocks) return matrix.tiles;
  return std::visit(
      [](const auto& blocks) -> std::optional<SharedExpertMatrix> {
        if (blocks.row_scales != nullptr) return std::nullopt;
        return blocks;
      },
      *matrix.blocks);
}
bool is_one_launch(const MlpWeights& weights, int rows) {
  const auto gate_up = few_matrix(weights.gate_up), down = few_matrix(weights.down);
  return gate_up && down && shared_expert_takes(*gate_up, *down, weights.width, rows);
}

bool is_dense(const LayerDescription& layer) { return layer.feed_forward == FeedForward::dense; }

Status check_format(const Weight& weight, TensorFormat of_gate) {
  const auto refuse = [&](const std::string& what) {
    return invalid_argument(weight.name + " is in " + std::string(tensor_format_name(weight.format)) +
                            ", and " + what);
  };
  if (!device_matrix_takes(weight.format))
    return refuse(std::string("its kernels take ") + device_matrix_formats);
  const bool is_up = weight.role == WeightRole::dense_up || weight.role == WeightRole::shared_up;
  if (is_up && weight.format != of_gate)
    return refuse("the gate's in " + std::string(tensor_format_name(of_gate)));
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
  if (weight.format != TensorFormat::bf16 &&
      (rows % block_granule_rows != 0 || cols % block_granule_rows != 0)) {
    return refuse("of " + std::to_string(rows) + " x " + std::to_string(cols) +
                  ", which are not multiples of " + std::to_string(block_granule_rows));
  }
  return {};
}

}  // namespace

DenseLayerWeights lay_out_dense_layer(const ModelConfig& config, const CudaPart& part, std::int64_t layer,
                                      DeviceArena& arena) {
  return {.norm = arena.take<Bf16>(size(config.hidden_size)),
          .mlp = lay_out_mlp(config, layer, part.dense_columns, config.dense_width, 0, arena)};
}

SharedExpertWeights lay_out_shared_expert(const ModelConfig& config, std::int64_t layer, DeviceArena& arena) {
  const bool has_share = config.shared_expert_gate;
  const bool beside = has_share && formats_of(config, layer).gate == TensorFormat::bf16;
  SharedExpertWeights weights{.mlp = lay_out_mlp(config, layer, {0, config.shared_width}, config.shared_width,
                                                 beside ? share_rows : 0, arena)};
  if (beside) {
    const DenseTiles& of = weights.mlp.gate_up.tiles;
    weights.share_row = 2 * weights.mlp.up;
    const std::size_t before = size(weights.share_row / dense_tile_rows) * of.shape.tile_bytes();
    // An arena that only counts has given no memory.
    weights.share = DenseTiles{of.data == nullptr ? nullptr : of.data + before, {1, of.shape.cols}};
  } else if (has_share) {
    weights.share = lay_out_tiles(arena, 1, config.hidden_size);
  }
  return weights;
}

Status place_mlp(WeightPlacing& placing, const Weight& weight, MlpWeights& to) {
  const Run own{to.first, to.width};
  switch (weight.role) {
    case WeightRole::dense_gate:
    case WeightRole::shared_gate: return place_rows(placing, weight, own, to.gate_up);
    case WeightRole::dense_up:
    case WeightRole::shared_up: return place_rows(placing, weight, own, to.gate_up, to.up);
    case WeightRole::dense_down:
    case WeightRole::shared_down: return place(placing, weight, to.down);
    default: NIBBLE_CHECK(false, weight.name);
  }
  return {};
}

Status place_shared_expert(WeightPlacing& placing, const Weight& weight, SharedExpertWeights& to) {
  if (weight.role == WeightRole::shared_share) return placing.dense(placed_tensor(weight), *to.share);
  return place_mlp(placing, weight, to.mlp);
}

Status check_mlp_block(const ModelConfig& config) {
  if (config.shared_width == 0 && std::none_of(config.layers.begin(), config.layers.end(), is_dense))
    return {};
  TensorFormat of_gate = TensorFormat::bf16;
  Status status;
  visit_weights(config, [&](const Weight& weight) {
    if (!status.ok() || !weight.is_matrix() || weight.role == WeightRole::shared_share) return;
    if (weight.part != WeightPart::dense_layers && weight.part != WeightPart::shared_expert) return;
    if (weight.role == WeightRole::dense_gate || weight.role == WeightRole::shared_gate)
      of_gate = weight.format;
    status = check_format(weight, of_gate);
  });
  return status;
}

MlpBlock::MlpBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
                   CudaPlace& place, DeviceArena& arena)
    : stream_(stream), stuck_(limits.stuck) {
  const bool dense = std::any_of(config.layers.begin(), config.layers.end(), is_dense);
  const std::int64_t width = std::max(dense ? place.part.dense_columns.count : 0, config.shared_width);
  rows_at_once_ = mlp_rows_at_once(limits.rows, width);
  const std::size_t rows = size(rows_at_once_);
  gate_up_ = arena.take<float>(
      rows * size(2 * stacked_row(TensorFormat::bf16, width) + (config.shared_expert_gate ? share_rows : 0)));
  if (dense) {
    dense_down_.emplace(GatheredProduct::Shape{.rows = place.part.alone() ? rows_at_once_ : limits.rows,
                                               .columns = place.part.dense_columns,
                                               .all_columns = static_cast<int>(config.dense_width)},
                        stream, place, arena);
  }
  if (config.shared_width > 0) {
    activations_ = arena.take<std::uint8_t>(
        DenseShape{0, static_cast<int>(config.shared_width)}.token_bytes(rows_at_once_));
    shared_ = arena.take<float>(rows * size(config.hidden_size));
    arrived_ = arena.take<std::uint32_t>(1);
  }
  if (config.shared_expert_gate) logits_ = arena.take<float>(rows);
}

void MlpBlock::clear_room(cudaStream_t stream) const {
  if (dense_down_) dense_down_->clear_room(stream);
}

Status MlpBlock::gate_rows(const MlpWeights& weights, int first, int rows, std::uint8_t* activations,
                           cudaStream_t stream) const {
  NIBBLE_RETURN_IF_ERROR(multiply(stream_, weights.gate_up,
                                  tiles_from(stream_.normed_tiles, first, rows, stream_.hidden), gate_up_,
                                  stream));
  return gate_rows_cuda({.gate_up = gate_up_,
                         .stride = weights.gate_up.rows(),
                         .up = weights.up,
                         .rows = rows,
                         .width = weights.width,
                         .unit = weights.unit,
                         .out = activations},
                        stream);
}

Result<PendingSum> MlpBlock::run(const DenseLayerWeights& weights, const CudaForwardInput& input,
                                 cudaStream_t stream) const {
  const PendingSum pending{.residual = stream_.residual, .delta = stream_.delta};
  const RankRows own = stream_.rows_of_rank(input);
  NIBBLE_RETURN_IF_ERROR(stream_.norm_tiles(stream_.norm(weights.norm, pending, nullptr, own), own, stream));
  const bool alone = stream_.is_alone();
  const GatheredProduct::Factors down{.weight = weights.mlp.down};
  for (int first = 0; first < input.rows; first += rows_at_once_) {
    const int rows = std::min(rows_at_once_, input.rows - first);
    NIBBLE_RETURN_IF_ERROR(
        gate_rows(weights.mlp, first, rows, dense_down_->input(alone ? 0 : first), stream));
    if (!alone) continue;
    NIBBLE_RETURN_IF_ERROR(dense_down_->multiply(down, rows, {0, rows, 0},
                                                 stream_.delta + size(first) * size(stream_.hidden), stream));
  }
  if (!alone) NIBBLE_RETURN_IF_ERROR(dense_down_->multiply(down, input.rows, own, stream_.delta, stream));
  return PendingSum{.residual = stream_.residual, .delta = stream_.delta};
}

bool MlpBlock::takes_few(const SharedExpertWeights& weights, int rows) const {
  return stream_.rounding.codes == nullptr && is_one_launch(weights.mlp, rows);
}

Status MlpBlock::multiply_shared(const SharedExpertWeights& weights, const SharedChoice& choice, int rows,
                                 cudaStream_t stream) const {
  if (!takes_few(weights, rows)) return {};
  const bool joins = choice.product != nullptr;
  return shared_expert_cuda({.x = {stream_.normed_tiles, rows},
                             .gate_up = *few_matrix(weights.mlp.gate_up),
                             .down = *few_matrix(weights.mlp.down),
                             .width = weights.mlp.width,
                             .up = weights.mlp.up,
                             .unit = weights.mlp.unit,
                             .share = weights.share.value_or(DenseTiles{}),
                             .rows_are_there = choice.rows_are_there,
                             .activations = activations_,
                             .arrived = arrived_,
                             .stuck = stuck_,
                             .out = joins ? choice.product : shared_,
                             .logits = joins ? nullptr : logits_,
                             .weight = joins ? choice.weight : nullptr,
                             .id = joins ? choice.id : nullptr},
                            stream);
}

Result<PendingSum> MlpBlock::add_shared(const SharedExpertWeights& weights, const PendingSum& routed,
                                        const SharedChoice& choice, const CudaForwardInput& input,
                                        cudaStream_t stream) const {
  const std::size_t hidden = size(stream_.hidden);
  const bool few = takes_few(weights, input.rows);
  if (few && choice.product != nullptr) {
    PendingSum sum = routed;
    ++sum.experts.top_k;
    return sum;
  }
  const RankRows own = stream_.rows_of_rank(input);
  const int past = own.first + own.count;
  for (int first = own.first; first < past; first += rows_at_once_) {
    const int count = std::min(rows_at_once_, past - first);
    const std::size_t at = size(first) * hidden, slot = size(first) * size(routed.experts.top_k);
    if (!few) {
      NIBBLE_RETURN_IF_ERROR(gate_rows(weights.mlp, first, count, activations_, stream));
      NIBBLE_RETURN_IF_ERROR(multiply(stream_, weights.mlp.down, {activations_, count}, shared_, stream));
    }
    const bool beside = !few && weights.share_row > 0;
    if (weights.share && !few && !beside) {
      NIBBLE_RETURN_IF_ERROR(linear_cuda({.x = tiles_from(stream_.normed_tiles, first, count, stream_.hidden),
                                          .weight = *weights.share,
                                          .y = logits_,
                                          .y_stride = 1,
                                          .workspace = stream_.linear},
                                         stream));
    }
    AddSharedCudaArgs args{.shared = shared_,
                           .logits = beside          ? gate_up_ + weights.share_row
                                     : weights.share ? logits_
                                                     : nullptr,
                           .logit_stride = beside ? weights.mlp.gate_up.rows() : 1,
                           .out = stream_.delta + at,
                           .rows = count,
                           .hidden = stream_.hidden};
    if (routed.experts.products != nullptr) {
      args.experts = {.products = routed.experts.products + slot * hidden,
                      .expert_ids = routed.experts.expert_ids + slot,
                      .expert_weights = routed.experts.expert_weights + slot,
                      .top_k = routed.experts.top_k};
    } else {
      args.routed = routed.delta + at;
    }
    NIBBLE_RETURN_IF_ERROR(add_shared_cuda(args, stream));
  }
  return PendingSum{.residual = routed.residual, .delta = stream_.delta};
}

}  // namespace nibble
