#include "models/cuda/gpt_oss_cuda.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "models/rope_frequencies.h"
#include "ops/cuda/absent.h"
#include "ops/cuda/launch.cuh"
#include "ops/embedding/cuda/embedding_cuda.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/cuda/norm_linear_cuda.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"
#include "ops/rope/cuda/rope_cuda.h"
#include "ops/router/cuda/norm_router_cuda.h"
#include "ops/router/cuda/router_cuda.h"
#include "tensor/device_buffer.h"

namespace nibble {
namespace {

int as_int(std::int64_t value) { return static_cast<int>(value); }
std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// What a block leaves for the next norm: the residual, and what to add to it, one row a token or the products
// of its experts.
struct Pending {
  const float* residual = nullptr;
  const float* delta = nullptr;
  ExpertParts experts;
};

class GptOssCuda final : public CudaModel {
 public:
  GptOssCuda(ModelConfig config, CudaForwardLimits limits, DeviceBuffer weight_memory,
             GptOssCudaWeights weights, DeviceBuffer room_memory, GptOssCudaRoom room)
      : config_(std::move(config)),
        limits_(limits),
        weight_memory_(std::move(weight_memory)),
        weights_(std::move(weights)),
        room_memory_(std::move(room_memory)),
        room_(room),
        concentration_(rope_frequencies(config_).concentration) {}

  const ModelConfig& config() const override { return config_; }
  std::size_t weight_bytes() const override { return weight_memory_.size(); }
  std::size_t workspace_bytes() const override { return room_memory_.size(); }
  int query_heads_a_key_head() const override {
    return cuda_heads(config_) / as_int(config_.num_key_value_heads);
  }

  void use_cache(std::span<const KvCudaLayer> layers, std::span<const int> groups, int page_size) override {
    NIBBLE_CHECK(layers.size() == weights_.layers.size() && groups.size() == layers.size());
    caches_.assign(layers.begin(), layers.end());
    groups_.assign(groups.begin(), groups.end());
    page_size_ = page_size;
  }

  Status forward(const CudaForwardInput& input, float* logits, cudaStream_t stream) override {
    NIBBLE_CHECK(input.rows <= limits_.rows && input.logit_rows <= limits_.logit_rows &&
                 input.sequences <= limits_.sequences);
    NIBBLE_RETURN_IF_ERROR(embedding_cuda({.table = weights_.embedding,
                                           .ids = input.tokens,
                                           .chosen = input.chosen,
                                           .rows = input.rows,
                                           .hidden = hidden(),
                                           .out = room_.residual},
                                          stream));
    rope_angles_cuda({.inv_freq = weights_.inv_freq,
                      .concentration = concentration_,
                      .positions = input.positions,
                      .rows = input.rows,
                      .half = as_int(config_.head_dim / 2),
                      .cos = room_.cos,
                      .sin = room_.sin},
                     stream);
    Pending pending{.residual = room_.residual};
    for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
      const GptOssCudaLayer& layer = weights_.layers[i];
      NIBBLE_RETURN_IF_ERROR(attention(layer, pending, i, input, stream));
      NIBBLE_ASSIGN(const float* const residual, route(layer, input, stream));
      NIBBLE_ASSIGN(pending, experts(layer, residual, input.rows, stream));
    }
    return head(pending, input, logits, stream);
  }

 private:
  int hidden() const { return as_int(config_.hidden_size); }
  int padded_hidden() const { return DenseShape{0, hidden()}.padded_cols(); }
  int top_k() const { return as_int(config_.num_experts_per_tok); }

  // residual = pending's; normed_tiles (and normed, if asked for) = norm(residual)
  AddRmsNormCudaArgs norm(const Bf16* weight, const Pending& pending, Bf16* normed, int rows) const {
    return {.residual = pending.residual,
            .residual_out = room_.residual,
            .delta = pending.delta,
            .experts = pending.experts,
            .weight = weight,
            .out = normed,
            .out_stride = normed == nullptr ? 0 : padded_hidden(),
            .out_tiles = room_.normed_tiles,
            .rows = rows,
            .hidden = hidden(),
            .eps = static_cast<float>(config_.rms_norm_eps)};
  }

  // residual = pending's; its norm -> delta
  Status attention(const GptOssCudaLayer& layer, const Pending& pending, std::size_t index,
                   const CudaForwardInput& input, cudaStream_t stream) {
    const KvCudaLayer& cache = caches_[index];
    const int group = groups_[index], heads = cuda_heads(config_);
    AttentionCudaArgs args{.q = room_.q,
                           .heads = heads,
                           .sequences = input.sequence_rows[group],
                           .sequence_count = input.sequences,
                           .page_table = input.page_table,
                           .page_size = page_size_,
                           .cache = cache,
                           .window = layer.window,
                           .sinks = layer.sinks,
                           .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                           .out = room_.attended,
                           .rows = input.one_row_each ? AttentionRows::one : AttentionRows::both,
                           .short_contexts = input.short_contexts,
                           .max_splits = attention_splits_room,
                           // Only this step's rows are new, and the kernel ahead writes those.
                           .settled = true,
                           .workspace = room_.attention};
    // Attention's blocks lie beside those of the products before and behind it.
    const int beside = attention_shared_bytes(args);
    const AddRmsNormCudaArgs of_norm = norm(layer.attention_norm, pending, nullptr, input.rows);
    const QkvCudaArgs qkv{.x = {room_.normed_tiles, input.rows},
                          .weight = layer.qkv,
                          .bias = layer.qkv_bias,
                          .heads = heads,
                          .cos = room_.cos,
                          .sin = room_.sin,
                          .kv_slots = input.kv_slots[group],
                          .q = room_.q,
                          .cache = cache,
                          .workspace = room_.linear,
                          .beside = beside};
    if (norm_linear_takes(of_norm, layer.qkv.shape)) {
      NIBBLE_RETURN_IF_ERROR(norm_qkv_cuda(of_norm, qkv, stream));
    } else {
      NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda(of_norm, stream));
      NIBBLE_RETURN_IF_ERROR(qkv_cuda(qkv, stream));
    }
    int begin = 0;
    for (const int end : input.attention_runs) {
      args.sequences = input.sequence_rows[group] + begin;
      args.sequence_count = end - begin;
      NIBBLE_RETURN_IF_ERROR(attention_cuda(args, stream));
      begin = end;
    }
    return linear_cuda({.x = {room_.attended, input.rows},
                        .weight = layer.wo,
                        .bias = layer.wo_bias,
                        .y = room_.delta,
                        .y_stride = hidden(),
                        .workspace = room_.linear,
                        .beside = beside},
                       stream);
  }

  // residual + delta -> normed, expert_ids, expert_weights; returns where the new residual is.
  Result<const float*> route(const GptOssCudaLayer& layer, const CudaForwardInput& input,
                             cudaStream_t stream) {
    const int experts = as_int(config_.num_local_experts);
    if (norm_router_takes(layer.router.shape, input.rows)) {
      NIBBLE_RETURN_IF_ERROR(norm_router_cuda({.residual = room_.residual,
                                               .delta = room_.delta,
                                               .norm_weight = layer.expert_norm,
                                               .eps = static_cast<float>(config_.rms_norm_eps),
                                               .residual_out = room_.few_residual,
                                               .norm = room_.normed,
                                               .norm_stride = padded_hidden(),
                                               .router = layer.router,
                                               .router_bias = layer.router_bias,
                                               .rows = input.rows,
                                               .row_limit = input.row_limit,
                                               .top_k = top_k(),
                                               .expert_ids = room_.expert_ids,
                                               .expert_weights = room_.expert_weights,
                                               .workspace = room_.router},
                                              stream));
      return room_.few_residual;
    }
    NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda(
        norm(layer.expert_norm, {.residual = room_.residual, .delta = room_.delta}, room_.normed, input.rows),
        stream));
    NIBBLE_RETURN_IF_ERROR(linear_cuda({.x = {room_.normed_tiles, input.rows},
                                        .weight = layer.router,
                                        .bias = layer.router_bias,
                                        .y = room_.router_logits,
                                        .y_stride = experts,
                                        .workspace = room_.linear},
                                       stream));
    NIBBLE_RETURN_IF_ERROR(route_top_k_cuda({.logits = room_.router_logits,
                                             .rows = input.rows,
                                             .row_limit = input.row_limit,
                                             .experts = experts,
                                             .top_k = top_k(),
                                             .expert_ids = room_.expert_ids,
                                             .expert_weights = room_.expert_weights},
                                            stream));
    return room_.residual;
  }

  // The experts' products, for the next norm to add up.
  Pending unadded(const float* residual) const {
    return {.residual = residual,
            .experts = {.products = room_.moe.products,
                        .expert_ids = room_.expert_ids,
                        .expert_weights = room_.expert_weights,
                        .top_k = top_k()}};
  }

  // normed -> what the next norm adds to `residual`
  Result<Pending> experts(const GptOssCudaLayer& layer, const float* residual, int rows,
                          cudaStream_t stream) {
    MoeCudaArgs args{.x = room_.normed,
                     .x_stride = padded_hidden(),
                     .tokens = rows,
                     .top_k = top_k(),
                     .expert_ids = room_.expert_ids,
                     .expert_weights = room_.expert_weights,
                     .workspace = room_.moe};
    const int slots = rows * top_k();
    if (moe_takes_many(slots, as_int(config_.num_local_experts), limits_.many_tokens_from)) {
      NIBBLE_RETURN_IF_ERROR(moe_many_cuda(layer.experts, args, stream));
      return unadded(residual);
    }
    if (slots <= moe_cuda_max_slots) {
      NIBBLE_RETURN_IF_ERROR(moe_few_cuda(layer.experts, args, stream));
      return unadded(residual);
    }
    args.out = room_.delta;
    NIBBLE_RETURN_IF_ERROR(moe_few_cuda(layer.experts, args, stream));
    return Pending{.residual = residual, .delta = room_.delta};
  }

  // The last norm, and the vocabulary for the wanted rows only.
  Status head(const Pending& pending, const CudaForwardInput& input, float* logits, cudaStream_t stream) {
    const AddRmsNormCudaArgs of_norm = norm(weights_.final_norm, pending, nullptr, input.rows);
    if (input.logit_rows == input.rows && norm_linear_takes(of_norm, weights_.lm_head.shape))
      return norm_linear_cuda(of_norm,
                              {.x = {nullptr, 1},
                               .weight = weights_.lm_head,
                               .y = logits,
                               .y_stride = as_int(config_.vocab_size),
                               .workspace = room_.linear},
                              stream);
    NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda(of_norm, stream));
    const std::uint8_t* wanted = room_.normed_tiles;
    if (input.wanted_rows != nullptr) {
      NIBBLE_RETURN_IF_ERROR(gather_tokens_cuda({room_.normed_tiles, input.rows}, hidden(), input.wanted_rows,
                                                input.logit_rows, room_.wanted_tiles, stream));
      wanted = room_.wanted_tiles;
    }
    return linear_cuda({.x = {wanted, input.logit_rows},
                        .weight = weights_.lm_head,
                        .y = logits,
                        .y_stride = as_int(config_.vocab_size),
                        .workspace = room_.linear},
                       stream);
  }

  ModelConfig config_;
  CudaForwardLimits limits_;
  DeviceBuffer weight_memory_;
  GptOssCudaWeights weights_;
  DeviceBuffer room_memory_;
  GptOssCudaRoom room_;
  float concentration_ = 1;
  std::vector<KvCudaLayer> caches_;
  std::vector<int> groups_;  // [layers]
  int page_size_ = 0;
};

}  // namespace

GptOssCudaRoom lay_out_gpt_oss_room(const ModelConfig& config, const CudaForwardLimits& limits,
                                    int processors, DeviceArena& arena) {
  const int hidden = as_int(config.hidden_size), heads = cuda_heads(config);
  const int head_dim = as_int(config.head_dim), kv_heads = as_int(config.num_key_value_heads);
  const int experts = as_int(config.num_local_experts), top_k = as_int(config.num_experts_per_tok);
  const DenseShape of_hidden{0, hidden}, of_heads{0, heads * head_dim};
  const Mxfp4GranuleShape up{2 * as_int(config.intermediate_size), hidden},
      down{hidden, as_int(config.intermediate_size)};
  const std::size_t rows = size(limits.rows), blocks = size(processors);
  const int all_slots = limits.rows * top_k;
  const bool many = moe_takes_many(all_slots, experts, limits.many_tokens_from);
  const int few_slots = moe_cuda_slots(limits.rows, top_k);
  GptOssCudaRoom room;
  room.residual = arena.take<float>(rows * size(hidden));
  room.delta = arena.take<float>(rows * size(hidden));
  const int few_rows = std::min(limits.rows, norm_router_max_rows);
  room.few_residual = arena.take<float>(size(few_rows) * size(hidden));
  room.router.sums = arena.take<float>(norm_router_sums(experts));
  room.normed = arena.take<Bf16>(rows * size(of_hidden.padded_cols()));
  room.normed_tiles = arena.take<std::uint8_t>(of_hidden.token_bytes(limits.rows));
  room.wanted_tiles = arena.take<std::uint8_t>(of_hidden.token_bytes(limits.logit_rows));
  room.cos = arena.take<float>(rows * size(head_dim / 2));
  room.sin = arena.take<float>(rows * size(head_dim / 2));
  room.q = arena.take<Bf16>(rows * size(heads * head_dim));
  room.attended = arena.take<std::uint8_t>(of_heads.token_bytes(limits.rows));
  room.router_logits = arena.take<float>(rows * size(experts));
  room.expert_ids = arena.take<std::int32_t>(size(all_slots));
  room.expert_weights = arena.take<float>(size(all_slots));
  room.attention.partials = arena.take<float>(attention_partials(CudaModel::attention_splits_room, kv_heads));
  room.linear.few_sums =
      arena.take<float>(linear_few_floats(processors, std::max(limits.rows, limits.logit_rows)));
  room.linear.many_sums = arena.take<float>(linear_many_floats(processors));
  room.linear.arrived = arena.take<std::uint32_t>(blocks);
  room.moe.activations = arena.take<Bf16>(size(few_slots) * size(down.padded_cols()));
  room.moe.products = arena.take<float>(size(many ? all_slots : few_slots) * size(hidden));
  room.moe.arrived = arena.take<std::uint32_t>(1);
  room.moe.many = arena.take<std::uint8_t>(many ? moe_many_bytes(all_slots, experts, up, down) : 0);
  room.moe.many_counters = arena.take<std::uint32_t>(many ? size(moe_many_counters(all_slots, experts)) : 0);
  room.attention.stuck = room.linear.stuck = room.router.stuck = room.moe.stuck = limits.stuck;
  return room;
}

Status check_gpt_oss_cuda(const ModelConfig& config) {
  const auto refuse = [](const std::string& what) {
    return invalid_argument("this model cannot run on a GPU: " + what + "; give --device cpu");
  };
  if (config.head_dim != kv_head_dim) {
    return refuse("its heads have " + std::to_string(config.head_dim) + " dimensions, and the kernels take " +
                  std::to_string(kv_head_dim));
  }
  const std::int64_t group = config.num_attention_heads / config.num_key_value_heads;
  if (group > attention_tile) {
    return refuse("it has " + std::to_string(group) +
                  " query heads for a head of keys, and the kernels take up to " +
                  std::to_string(attention_tile));
  }
  if (config.hidden_size % mxfp4_block != 0 || config.intermediate_size % mxfp4_block != 0) {
    return refuse("its width of " + std::to_string(config.hidden_size) + " or its experts' of " +
                  std::to_string(config.intermediate_size) + " is not a multiple of " +
                  std::to_string(mxfp4_block));
  }
  if (config.num_local_experts > moe_many_most_experts) {
    return refuse("a layer has " + std::to_string(config.num_local_experts) +
                  " experts, and the kernels take up to " + std::to_string(moe_many_most_experts));
  }
  return {};
}

Result<std::unique_ptr<CudaModel>> load_gpt_oss_cuda(const ModelConfig& config,
                                                     const CudaForwardLimits& limits, WeightFeed& feed,
                                                     cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_gpt_oss_cuda(config));
  const int processors = processors_of_device();
  DeviceArena counted_weights, counted_room;
  lay_out_gpt_oss_weights(config, counted_weights);
  lay_out_gpt_oss_room(config, limits, processors, counted_room);
  NIBBLE_ASSIGN(DeviceBuffer weight_memory, DeviceBuffer::allocate(counted_weights.used()));
  NIBBLE_ASSIGN(DeviceBuffer room_memory, DeviceBuffer::allocate(counted_room.used()));
  // Counters begin at 0, and what pads activations must be finite, as must heads that fill a group up.
  room_memory.fill(0);
  if (cuda_heads(config) != config.num_attention_heads) weight_memory.fill(0);
  DeviceArena weight_arena(weight_memory.data()), room_arena(room_memory.data());
  GptOssCudaWeights weights = lay_out_gpt_oss_weights(config, weight_arena);
  const GptOssCudaRoom room = lay_out_gpt_oss_room(config, limits, processors, room_arena);
  clear_linear_workspace(room.linear, processors, std::max(limits.rows, limits.logit_rows), stream);
  make_absent(room.router.sums, norm_router_sums(as_int(config.num_local_experts)), stream);
  const int kv_heads = as_int(config.num_key_value_heads);
  make_absent(room.attention.partials, attention_partials(CudaModel::attention_splits_room, kv_heads),
              stream);
  NIBBLE_ASSIGN(WeightPlacing placing, WeightPlacing::begin(feed, stream));
  NIBBLE_RETURN_IF_ERROR(place_gpt_oss_weights(config, weights, placing));
  return std::unique_ptr<CudaModel>(std::make_unique<GptOssCuda>(
      config, limits, std::move(weight_memory), std::move(weights), std::move(room_memory), room));
}

Result<std::unique_ptr<CudaModel>> load_cuda_model(const ModelConfig& config, const CudaForwardLimits& limits,
                                                   WeightFeed& feed, cudaStream_t stream) {
  if (config.architecture == "GptOssForCausalLM") return load_gpt_oss_cuda(config, limits, feed, stream);
  return invalid_argument("no GPU kernels are built for the architecture " + config.architecture +
                          "; give --device cpu");
}

}  // namespace nibble
