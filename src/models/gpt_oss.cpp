#include "models/gpt_oss.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "ops/attention/attention.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"
#include "tensor/buffer.h"

namespace nibble {
namespace {

// Everything a forward writes, in one block taken at the start.
struct Workspace {
  Buffer memory;
  float* residual = nullptr;                // [rows, hidden]
  float* normed = nullptr;                  // [rows, hidden]
  float* delta = nullptr;                   // [rows, hidden]: what the last block adds to the residual
  float *q = nullptr, *attended = nullptr;  // [rows, heads * head_dim]
  float *k = nullptr, *v = nullptr;         // [rows, kv_heads * head_dim]
  float *cos = nullptr, *sin = nullptr;     // [rows, head_dim / 2]
  float* attention = nullptr;               // [attention_floats], for paged_attention
  std::int64_t attention_floats = 0;
  float* router_logits = nullptr;      // [rows, experts]
  float* expert_weights = nullptr;     // [rows, top_k]
  float* activations = nullptr;        // [rows * top_k, intermediate]
  float* products = nullptr;           // [rows * top_k, hidden]
  std::int32_t* expert_ids = nullptr;  // [rows, top_k]
  std::int32_t* slots = nullptr;       // [rows * top_k]
  std::int32_t* offsets = nullptr;     // [experts + 1]
  std::byte* shared = nullptr;         // [shared_bytes], each op's in turn
  std::size_t shared_bytes = 0;
  float *last_residual = nullptr, *last_delta = nullptr, *last_normed = nullptr;  // [logit_rows, hidden]
};

Result<Workspace> make_workspace(const ModelConfig& config, const ForwardLimits& limits) {
  const std::int64_t rows = limits.rows, slots = rows * config.num_experts_per_tok;
  const std::int64_t q_width = config.num_attention_heads * config.head_dim;
  const std::int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const auto linear_bytes = [](std::int64_t count, std::int64_t in) {
    return linear_workspace_bytes(static_cast<int>(count), static_cast<int>(in));
  };
  Workspace room;
  room.shared_bytes = std::max(
      {linear_bytes(rows, config.hidden_size), linear_bytes(rows, q_width),
       linear_bytes(limits.logit_rows, config.hidden_size),
       moe_workspace_bytes(static_cast<int>(slots), static_cast<int>(config.num_local_experts),
                           static_cast<int>(std::max(config.hidden_size, config.intermediate_size)))});
  room.attention_floats = attention_room(limits.threads, static_cast<int>(config.num_attention_heads),
                                         static_cast<int>(config.num_key_value_heads),
                                         static_cast<int>(config.head_dim), limits.positions);
  struct Part {
    void* place;  // of the pointer to set
    std::int64_t count;
  };
  const Part parts[] = {
      {&room.residual, rows * config.hidden_size},
      {&room.normed, rows * config.hidden_size},
      {&room.delta, rows * config.hidden_size},
      {&room.q, rows * q_width},
      {&room.attended, rows * q_width},
      {&room.k, rows * kv_width},
      {&room.v, rows * kv_width},
      {&room.cos, rows * config.head_dim / 2},
      {&room.sin, rows * config.head_dim / 2},
      {&room.attention, room.attention_floats},
      {&room.router_logits, rows * config.num_local_experts},
      {&room.expert_weights, slots},
      {&room.activations, slots * config.intermediate_size},
      {&room.products, slots * config.hidden_size},
      {&room.expert_ids, slots},
      {&room.slots, slots},
      {&room.offsets, config.num_local_experts + 1},
      {&room.shared, static_cast<std::int64_t>(room.shared_bytes / 4)},
      {&room.last_residual, limits.logit_rows * config.hidden_size},
      {&room.last_delta, limits.logit_rows * config.hidden_size},
      {&room.last_normed, limits.logit_rows * config.hidden_size},
  };
  static_assert(sizeof(float) == 4 && sizeof(std::int32_t) == 4);
  const auto aligned_bytes = [](std::int64_t count) {
    return (static_cast<std::size_t>(count) * 4 + 63) / 64 * 64;
  };
  std::size_t bytes = 0;
  for (const Part& part : parts) bytes += aligned_bytes(part.count);
  NIBBLE_ASSIGN(room.memory, Buffer::allocate(bytes));
  std::byte* at = room.memory.data();
  for (const Part& part : parts) {
    *static_cast<std::byte**>(part.place) = at;
    at += aligned_bytes(part.count);
  }
  return room;
}

class GptOss final : public Model {
 public:
  GptOss(ModelConfig config, WeightSource source, GptOssWeights weights)
      : config_(std::move(config)),
        source_(std::move(source)),
        weights_(std::move(weights)),
        rope_(gpt_oss_rope(config_)) {}

  const ModelConfig& config() const override { return config_; }
  Status convert_dense(DenseFormat format, ThreadPool& threads, const ConversionProgress& progress) override {
    std::vector<DenseMatrix*> matrices;
    for (GptOssLayer& layer : weights_.layers) {
      for (DenseMatrix* each : {&layer.wq, &layer.wk, &layer.wv, &layer.wo}) matrices.push_back(each);
    }
    matrices.push_back(&weights_.lm_head);
    NIBBLE_ASSIGN(converted_, nibble::convert_dense(matrices, format, source_, threads, progress));
    return {};
  }

  Status intact() const override { return source_.intact(); }
  std::int64_t mapped_bytes() const override { return mapped_bytes_; }

  Status reserve(const ForwardLimits& limits, ThreadPool& threads) override {
    mapped_bytes_ = source_.map_cached(threads);
    NIBBLE_ASSIGN(room_, make_workspace(config_, limits));
    limits_ = limits;
    return {};
  }

  void forward(OpContext& context, const ForwardInput& input, float* logits) override {
    const int rows = static_cast<int>(input.tokens.size());
    NIBBLE_CHECK(rows <= limits_.rows && static_cast<int>(input.logit_rows.size()) <= limits_.logit_rows);

    {
      const TimedScope scope(context.times, "embedding");
      embedding(context, input.tokens, weights_.embedding, room_.residual);
      rope_angles(context, rope_, input.positions, room_.cos, room_.sin);
    }
    const float* delta = nullptr;
    for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
      const GptOssLayer& layer = weights_.layers[i];
      norm(context, layer.attention_norm, delta, rows);
      attention(context, layer, input.kv[i], rows);
      norm(context, layer.expert_norm, room_.delta, rows);
      experts(context, layer, rows);
      delta = room_.delta;
    }
    head(context, input.logit_rows, logits);
  }

 private:
  // residual += delta; normed = norm(residual)
  void norm(OpContext& context, const Bf16* weight, const float* delta, int rows) {
    const TimedScope scope(context.times, "norm");
    add_rms_norm(context, {.residual = room_.residual,
                           .delta = delta,
                           .weight = weight,
                           .out = room_.normed,
                           .rows = rows,
                           .hidden = hidden(),
                           .eps = eps()});
  }

  // normed -> delta
  void attention(OpContext& context, const GptOssLayer& layer, const LayerKv& kv, int rows) {
    project(context, layer, kv.cache, rows);
    attend(context, layer, kv);
    const TimedScope scope(context.times, "attention output");
    linear(context, {.x = room_.attended,
                     .rows = rows,
                     .weight = layer.wo,
                     .bias = layer.bo,
                     .y = room_.delta,
                     .workspace = shared()});
  }

  // normed -> q, k, v, the first two rotated
  void project(OpContext& context, const GptOssLayer& layer, const KvLayer& kv, int rows) {
    const TimedScope scope(context.times, "q, k, v");
    linear(context, {.x = room_.normed,
                     .rows = rows,
                     .weight = layer.wq,
                     .bias = layer.bq,
                     .y = room_.q,
                     .workspace = shared()});
    linear(context, {.x = room_.normed,
                     .rows = rows,
                     .weight = layer.wk,
                     .bias = layer.bk,
                     .y = room_.k,
                     .workspace = shared()});
    linear(context, {.x = room_.normed,
                     .rows = rows,
                     .weight = layer.wv,
                     .bias = layer.bv,
                     .y = room_.v,
                     .workspace = shared()});
    rope(context, {.x = room_.q,
                   .cos = room_.cos,
                   .sin = room_.sin,
                   .rows = rows,
                   .heads = static_cast<int>(config_.num_attention_heads),
                   .head_dim = kv.head_dim});
    rope(context, {.x = room_.k,
                   .cos = room_.cos,
                   .sin = room_.sin,
                   .rows = rows,
                   .heads = kv.kv_heads,
                   .head_dim = kv.head_dim});
  }

  // q, k, v -> attended
  void attend(OpContext& context, const GptOssLayer& layer, const LayerKv& kv) {
    const TimedScope scope(context.times, "attention");
    kv_append(context, {.keys = room_.k, .values = room_.v, .sequences = kv.sequences, .cache = kv.cache});
    paged_attention(context, {.q = room_.q,
                              .heads = static_cast<int>(config_.num_attention_heads),
                              .sequences = kv.sequences,
                              .cache = kv.cache,
                              .window = layer.window,
                              .sinks = layer.sinks.data(),
                              .scale = 1.0f / std::sqrt(static_cast<float>(kv.cache.head_dim)),
                              .out = room_.attended,
                              .room = {room_.attention, static_cast<std::size_t>(room_.attention_floats)}});
  }

  // normed -> delta
  void experts(OpContext& context, const GptOssLayer& layer, int rows) {
    const int top_k = static_cast<int>(config_.num_experts_per_tok);
    route(context, layer, rows, top_k);
    const TimedScope scope(context.times, "experts");
    moe_mxfp4(context, layer.experts,
              {.x = room_.normed,
               .rows = rows,
               .top_k = top_k,
               .expert_ids = room_.expert_ids,
               .expert_weights = room_.expert_weights,
               .out = room_.delta,
               .activations = room_.activations,
               .products = room_.products,
               .slots = room_.slots,
               .offsets = room_.offsets,
               .workspace = shared()});
  }

  // normed -> expert_ids, expert_weights
  void route(OpContext& context, const GptOssLayer& layer, int rows, int top_k) {
    const TimedScope scope(context.times, "router");
    linear(context, {.x = room_.normed,
                     .rows = rows,
                     .weight = layer.router,
                     .bias = layer.router_bias,
                     .y = room_.router_logits,
                     .workspace = shared()});
    route_top_k(context, {.logits = room_.router_logits,
                          .rows = rows,
                          .experts = static_cast<int>(config_.num_local_experts),
                          .top_k = top_k,
                          .expert_ids = room_.expert_ids,
                          .expert_weights = room_.expert_weights});
  }

  // The last norm and the vocabulary, for the wanted rows only.
  void head(OpContext& context, std::span<const int> logit_rows, float* logits) {
    const TimedScope scope(context.times, "lm_head");
    const int rows = static_cast<int>(logit_rows.size());
    const std::int64_t width = config_.hidden_size;
    for (int i = 0; i < rows; ++i) {
      const std::int64_t from = logit_rows[static_cast<std::size_t>(i)] * width;
      std::copy_n(room_.residual + from, width, room_.last_residual + i * width);
      std::copy_n(room_.delta + from, width, room_.last_delta + i * width);
    }
    add_rms_norm(context, {.residual = room_.last_residual,
                           .delta = room_.last_delta,
                           .weight = weights_.final_norm,
                           .out = room_.last_normed,
                           .rows = rows,
                           .hidden = hidden(),
                           .eps = eps()});
    linear(context, {.x = room_.last_normed,
                     .rows = rows,
                     .weight = weights_.lm_head,
                     .y = logits,
                     .workspace = shared()});
  }

  std::span<std::byte> shared() const { return {room_.shared, room_.shared_bytes}; }
  int hidden() const { return static_cast<int>(config_.hidden_size); }
  float eps() const { return static_cast<float>(config_.rms_norm_eps); }

  ModelConfig config_;
  WeightSource source_;  // owns the bytes that weights_ points into
  Buffer converted_;     // what of weights_ is not in the source's format
  GptOssWeights weights_;
  RopeFrequencies rope_;
  std::int64_t mapped_bytes_ = 0;
  ForwardLimits limits_;
  Workspace room_;
};

}  // namespace

RopeFrequencies gpt_oss_rope(const ModelConfig& config) {
  const int head_dim = static_cast<int>(config.head_dim);
  if (!config.yarn) return default_rope(head_dim, config.rope_theta);
  const YarnScaling& yarn = *config.yarn;
  return yarn_rope(head_dim,
                   {.theta = config.rope_theta,
                    .factor = yarn.factor,
                    .beta_fast = yarn.beta_fast,
                    .beta_slow = yarn.beta_slow,
                    .original_max_position = static_cast<int>(yarn.original_max_position_embeddings),
                    .truncate = yarn.truncate,
                    .concentration = yarn.attention_factor});
}

Result<std::unique_ptr<Model>> bind_gpt_oss(const ModelConfig& config, WeightSource source) {
  if (!attention_takes_head_dim(config.head_dim)) {
    return broken_model("config.json: head_dim " + std::to_string(config.head_dim) +
                        " is not supported; attention takes multiples of 32 up to 256");
  }
  NIBBLE_ASSIGN(GptOssWeights weights, bind_gpt_oss_weights(config, source));
  return std::unique_ptr<Model>(std::make_unique<GptOss>(config, std::move(source), std::move(weights)));
}

}  // namespace nibble
