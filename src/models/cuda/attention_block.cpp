#include "models/cuda/attention_block.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "checkpoint/architecture.h"
#include "models/rope_frequencies.h"
#include "ops/cuda/absent.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/norm_linear_cuda.h"
#include "ops/output_gate/cuda/gate_heads_cuda.h"
#include "ops/rope/cuda/rope_cuda.h"
#include "ops/rope/cuda/turn_heads_cuda.h"

namespace nibble {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

bool products_turn(const ModelConfig& config) {
  return config.head_dim == kv_head_dim && config.rotary_dim == config.head_dim && !config.query_key_norm &&
         !config.attention_output_gate;
}

struct AttentionFormats {
  TensorFormat qkv = TensorFormat::bf16, wo = TensorFormat::bf16;
};
AttentionFormats formats_of(const ModelConfig& config, std::int64_t layer) {
  AttentionFormats formats;
  visit_weights(config, [&](const Weight& weight) {
    if (weight.layer != layer) return;
    if (weight.role == WeightRole::query) formats.qkv = weight.format;
    if (weight.role == WeightRole::attention_output) formats.wo = weight.format;
  });
  return formats;
}

// What the products of blocks, of layers that have any, lack.
Status check_blocks(const ModelConfig& config, std::int64_t layer) {
  const AttentionFormats formats = formats_of(config, layer);
  if (formats.qkv == TensorFormat::bf16 && formats.wo == TensorFormat::bf16) return {};
  if (products_turn(config) || config.attention_bias) {
    return invalid_argument(
        "its attention is in FP8 or NVFP4, and the kernels for that take heads with norms and without "
        "biases");
  }
  if (whole_model(config).all_padded_heads != config.num_attention_heads) {
    return invalid_argument(
        "its attention is in FP8 or NVFP4, and the kernels for that take 1, 2, 4, 8 or 16 query heads for a "
        "head of keys");
  }
  return {};
}

}  // namespace

AttentionBlockWeights lay_out_attention_weights(const ModelConfig& config, const CudaPart& part,
                                                std::int64_t layer, DeviceArena& arena) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_heads = part.padded_heads.count * (config.attention_output_gate ? 2 : 1);
  const std::int64_t qkv_width = (q_heads + 2 * part.kv_heads.count) * config.head_dim;
  const std::int64_t attended_width = part.all_padded_heads * config.head_dim;
  const AttentionFormats formats = formats_of(config, layer);
  AttentionBlockWeights weights;
  weights.norm = arena.take<Bf16>(size(hidden));
  weights.qkv = DeviceMatrix::lay_out(arena, formats.qkv, qkv_width, hidden);
  weights.wo = DeviceMatrix::lay_out(arena, formats.wo, hidden, attended_width);
  if (config.attention_bias) {
    weights.qkv_bias = arena.take<Bf16>(size(qkv_width));
    weights.wo_bias = arena.take<Bf16>(size(hidden));
  }
  if (config.query_key_norm) {
    weights.q_norm = arena.take<Bf16>(size(config.head_dim));
    weights.k_norm = arena.take<Bf16>(size(config.head_dim));
  }
  if (config.attention_sinks) weights.sinks = arena.take<float>(size(part.padded_heads.count));
  weights.window = static_cast<int>(config.layers[size(layer)].window);
  return weights;
}

Status check_attention_block(const ModelConfig& config) {
  const auto attends = [](const LayerDescription& layer) { return layer.mixer == Mixer::attention; };
  if (std::none_of(config.layers.begin(), config.layers.end(), attends)) return {};
  if (config.head_dim > 256 || !attention_takes_heads_of(static_cast<int>(config.head_dim))) {
    return invalid_argument("its heads have " + std::to_string(config.head_dim) +
                            " dimensions, and the kernels take 64, 128 or 256");
  }
  if (!turn_heads_takes(static_cast<int>(config.rotary_dim), static_cast<int>(config.head_dim))) {
    return invalid_argument(
        std::to_string(config.rotary_dim) +
        " dimensions of its heads are rotated, and the kernels take 16, 32, 64, 128 or all");
  }
  const std::int64_t group = config.num_attention_heads / config.num_key_value_heads;
  if (group > attention_tile) {
    return invalid_argument("it has " + std::to_string(group) +
                            " query heads for a head of keys, and the kernels take up to " +
                            std::to_string(attention_tile));
  }
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    NIBBLE_RETURN_IF_ERROR(check_blocks(config, layer));
  return {};
}

namespace {

// Of the rank with most heads: all run the same graphs.
int later_clusters_of_ranks(const ModelConfig& config, const CudaPart& part, int processors) {
  if (config.head_dim > 128) return attention_any_context;
  const std::int64_t all = config.num_key_value_heads, kv_heads = (all + part.ranks - 1) / part.ranks;
  return attention_later_clusters(static_cast<int>(kv_heads),
                                  static_cast<int>(config.num_attention_heads / all), processors);
}

}  // namespace

AttentionBlock::AttentionBlock(const ModelConfig& config, const CudaForwardLimits& limits,
                               const DecoderStream& stream, int processors, CudaPlace& place,
                               DeviceArena& arena)
    : stream_(stream),
      heads_(static_cast<int>(place.part.padded_heads.count)),
      kv_heads_(static_cast<int>(place.part.kv_heads.count)),
      head_dim_(static_cast<int>(config.head_dim)),
      most_later_clusters_(later_clusters_of_ranks(config, place.part, processors)),
      gated_(config.attention_output_gate),
      norms_less_one_(config.zero_centred_norms),
      rotary_dim_(static_cast<int>(config.rotary_dim)),
      turns_in_product_(products_turn(config)),
      concentration_(rope_frequencies(config).concentration),
      output_({.rows = limits.rows,
               .columns = {place.part.padded_heads.begin * head_dim_, heads_ * head_dim_},
               .all_columns = static_cast<int>(place.part.all_padded_heads) * head_dim_},
              stream, place, arena) {
  const std::size_t rows = size(limits.rows), half = size(rotary_dim_ / 2);
  cos_ = arena.take<float>(rows * half);
  sin_ = arena.take<float>(rows * half);
  qkv_ = turns_in_product_ ? nullptr : arena.take<float>(rows * size(qkv_width()));
  q_ = arena.take<Bf16>(rows * size(heads_ * head_dim_));
  workspace_.partials =
      arena.take<float>(attention_partials(CudaModel::attention_splits_room, kv_heads_, head_dim_));
  workspace_.stuck = limits.stuck;
}

void AttentionBlock::clear_room(cudaStream_t stream) const {
  output_.clear_room(stream);
  make_absent(workspace_.partials, attention_partials(CudaModel::attention_splits_room, kv_heads_, head_dim_),
              stream);
}

void AttentionBlock::turn(const CudaForwardInput& input, const float* inv_freq, cudaStream_t stream) const {
  rope_angles_cuda({.inv_freq = inv_freq,
                    .concentration = concentration_,
                    .positions = input.positions,
                    .rows = input.rows,
                    .half = rotary_dim_ / 2,
                    .cos = cos_,
                    .sin = sin_},
                   stream);
}

Status AttentionBlock::project(const AttentionBlockWeights& weights, const Cache& cache,
                               const PendingSum& pending, const CudaForwardInput& input, int beside,
                               cudaStream_t stream) const {
  const RankRows own = stream_.rows_of_rank(input);
  const AddRmsNormCudaArgs of_norm = stream_.norm(weights.norm, pending, nullptr, own);
  if (weights.qkv.blocks) {
    NIBBLE_RETURN_IF_ERROR(stream_.norm_tiles(of_norm, own, stream));
    NIBBLE_RETURN_IF_ERROR(multiply_blocks(stream_, *weights.qkv.blocks, {stream_.normed_tiles, input.rows},
                                           qkv_, qkv_width(), stream));
    return turn_heads(weights, cache, input, stream);
  }
  const bool in_one = !own.are_shared() && norm_linear_takes(of_norm, weights.qkv.tiles.shape);
  if (!in_one) NIBBLE_RETURN_IF_ERROR(stream_.norm_tiles(of_norm, own, stream));
  const TokenTiles x{stream_.normed_tiles, input.rows};
  if (turns_in_product_) {
    const QkvCudaArgs qkv{.x = x,
                          .weight = weights.qkv.tiles,
                          .bias = weights.qkv_bias,
                          .heads = heads_,
                          .cos = cos_,
                          .sin = sin_,
                          .kv_slots = input.kv_slots[cache.group],
                          .q = q_,
                          .cache = cache.layer,
                          .workspace = stream_.linear,
                          .beside = beside};
    return in_one ? norm_qkv_cuda(of_norm, qkv, stream) : qkv_cuda(qkv, stream);
  }
  const LinearCudaArgs product{.x = x,
                               .weight = weights.qkv.tiles,
                               .bias = weights.qkv_bias,
                               .y = qkv_,
                               .y_stride = weights.qkv.rows(),
                               .workspace = stream_.linear,
                               .beside = beside};
  NIBBLE_RETURN_IF_ERROR(in_one ? norm_linear_cuda(of_norm, product, stream) : linear_cuda(product, stream));
  return turn_heads(weights, cache, input, stream);
}

Status AttentionBlock::turn_heads(const AttentionBlockWeights& weights, const Cache& cache,
                                  const CudaForwardInput& input, cudaStream_t stream) const {
  return turn_heads_cuda({.qkv = qkv_,
                          .gated = gated_,
                          .rows = input.rows,
                          .heads = heads_,
                          .q_norm = weights.q_norm,
                          .k_norm = weights.k_norm,
                          .norm_less_one = norms_less_one_,
                          .eps = stream_.eps,
                          .rotary_dim = rotary_dim_,
                          .cos = cos_,
                          .sin = sin_,
                          .kv_slots = input.kv_slots[cache.group],
                          .q = q_,
                          .cache = cache.layer},
                         stream);
}

Status AttentionBlock::run(const AttentionBlockWeights& weights, const Cache& cache,
                           const PendingSum& pending, const CudaForwardInput& input,
                           cudaStream_t stream) const {
  AttentionCudaArgs args{.q = q_,
                         .heads = heads_,
                         .sequences = input.sequence_rows[cache.group],
                         .sequence_count = input.sequences,
                         .page_table = input.page_table,
                         .page_size = cache.page_size,
                         .cache = cache.layer,
                         .window = weights.window,
                         .sinks = weights.sinks,
                         .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
                         .out = output_.input(),
                         .rows = input.one_row_each ? AttentionRows::one : AttentionRows::both,
                         .later_clusters = input.later_clusters,
                         .max_splits = CudaModel::attention_splits_room,
                         // What this step's rows add the kernel ahead writes.
                         .settled = input.settled,
                         .workspace = workspace_};
  // Attention's blocks lie beside those of the products before and behind it, if they leave room enough.
  const int beside = head_dim_ > 128 ? 0 : attention_shared_bytes(args);
  NIBBLE_RETURN_IF_ERROR(project(weights, cache, pending, input, beside, stream));
  int begin = 0;
  for (const int end : input.attention_runs) {
    args.sequences = input.sequence_rows[cache.group] + begin;
    args.sequence_count = end - begin;
    NIBBLE_RETURN_IF_ERROR(attention_cuda(args, stream));
    begin = end;
  }
  if (gated_) {
    NIBBLE_RETURN_IF_ERROR(gate_heads_cuda({.out = output_.input(),
                                            .gates = qkv_ + head_dim_,
                                            .stride = qkv_width(),
                                            .rows = input.rows,
                                            .heads = heads_,
                                            .head_dim = head_dim_},
                                           stream));
  }
  return output_.multiply({.weight = weights.wo, .bias = weights.wo_bias, .beside = beside}, input.rows,
                          stream_.rows_of_rank(input), stream_.delta, stream);
}

}  // namespace nibble
