#include "models/decoder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "base/check.h"
#include "comm/collectives.h"
#include "models/model_traits.h"
#include "models/rope_frequencies.h"
#include "ops/attention/attention.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/output_gate/output_gate.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"
#include "plan/exchange_shape.h"
#include "plan/forward_room.h"
#include "tensor/buffer.h"

namespace nibble {
namespace {

RouterKind router_kind(RouterScore score) {
  switch (score) {
    case RouterScore::softmax_of_chosen: return RouterKind::softmax_of_chosen;
    case RouterScore::softmax_of_all: return RouterKind::softmax_of_all;
    case RouterScore::sigmoid: return RouterKind::sigmoid;
  }
  return RouterKind::softmax_of_chosen;
}

RouterRule router_rule(const ModelConfig& config, const DecoderLayer& layer) {
  return {.kind = router_kind(config.router_score),
          .renormalise = config.router_renormalises,
          .bias = layer.correction.empty() ? nullptr : layer.correction.data(),
          .groups = static_cast<int>(config.router_groups),
          .top_groups = static_cast<int>(config.router_top_groups),
          .scale = static_cast<float>(config.router_scale)};
}

bool has_latents(const ModelConfig& config) { return config.latent.rank > 0; }

// What a head gives.
std::int64_t value_dim(const ModelConfig& config) {
  return has_latents(config) ? config.latent.value_dim : config.head_dim;
}

// What a head of keys of a layer with a state gives with its heads of values.
std::int64_t values_of_key_head(const ModelConfig& config) {
  const DeltaNumbers& delta = config.delta;
  return delta.key_heads == 0 ? 0 : delta.value_heads / delta.key_heads * delta.value_dim;
}

class Decoder final : public Model {
 public:
  Decoder(ModelConfig config, std::shared_ptr<const WeightSource> source, const RankPart& part,
          DecoderWeights weights)
      : config_(std::move(config)),
        source_(std::move(source)),
        part_(part),
        value_columns_(part.heads.times(value_dim(config_))),
        state_columns_(part.state_heads.times(values_of_key_head(config_))),
        weights_(std::move(weights)),
        rope_(rope_frequencies(config_)) {}

  const ModelConfig& config() const override { return config_; }
  Status convert_dense(DenseFormat format, ThreadPool& threads, const ConversionProgress& progress) override {
    const std::vector<WeightMatrix*> matrices = convertible_matrices(weights_);
    NIBBLE_ASSIGN(converted_, nibble::convert_dense(matrices, format, *source_, threads, progress));
    return {};
  }

  OpRuns runs() const override { return runs_; }
  Status intact() const override { return source_->intact(); }
  std::int64_t mapped_bytes() const override { return mapped_bytes_; }

  Status reserve(const ForwardLimits& limits, ThreadPool& threads) override {
    if (part_.rank == 0) mapped_bytes_ = source_->map_cached(threads);  // one mapping serves all ranks
    NIBBLE_ASSIGN(const ModelTraits traits, traits_of(config_, {}));
    const ForwardRoomLimits room{.rows = limits.rows,
                                 .logit_rows = limits.logit_rows,
                                 .positions = limits.positions,
                                 .threads = limits.threads,
                                 .ranks = part_.ranks,
                                 .owners = part_.ranks / part_.sharers,
                                 .expert_ranks = part_.whole_experts ? part_.ranks : 1,
                                 .exchange = limits.exchange};
    NIBBLE_ASSIGN(memory_, Buffer::allocate(place_forward_room(traits, room, nullptr).bytes));
    room_ = place_forward_room(traits, room, memory_.data()).room;
    limits_ = limits;
    if (limits.exchange != ExchangeKind::none) {
      exchange_shape_ = exchange_shape(traits, part_, limits.exchange, limits.rows);
      exchange_.emplace(exchange_shape_, room_.arrived);
    }
    return {};
  }

  Status forward(OpContext& context, const ForwardInput& input, float* logits) override {
    const int rows = static_cast<int>(input.tokens.size());
    NIBBLE_CHECK(rows <= limits_.rows && static_cast<int>(input.logit_rows.size()) <= limits_.logit_rows);
    NIBBLE_CHECK((input.ranks == nullptr ? 1 : input.ranks->size()) == part_.ranks);
    NIBBLE_CHECK(part_.sharers == 1 || input.sharers->size() == part_.sharers);
    ranks_ = input.ranks;
    sharers_ = input.sharers;
    most_rows_ = std::max(input.most_rows, rows);
    if (rows == 0) return serve_others(context);

    {
      const TimedScope scope(context.times, "embedding");
      embedding(context, input.tokens, weights_.embedding, room_.residual);
      rope_angles(context, rope_, input.positions, room_.cos, room_.sin);
    }
    const float* delta = nullptr;
    for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
      const DecoderLayer& layer = weights_.layers[i];
      norm(context, layer.attention_norm, delta, rows);
      if (layer.delta) {
        NIBBLE_RETURN_IF_ERROR(delta_rule(context, *layer.delta, input, i));
      } else {
        NIBBLE_RETURN_IF_ERROR(attention(context, layer, input.kv[i], rows));
      }
      norm(context, layer.expert_norm, room_.delta, rows);
      if (layer.dense) {
        NIBBLE_RETURN_IF_ERROR(feed_forward(context, *layer.dense, part_.dense_width, rows, room_.delta));
      } else {
        NIBBLE_RETURN_IF_ERROR(experts(context, layer, rows));
        if (layer.shared) NIBBLE_RETURN_IF_ERROR(shared_expert(context, layer, rows));
      }
      delta = room_.delta;
    }
    return head(context, input.logit_rows, logits);
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
                           .eps = eps(),
                           .zero_centred = config_.zero_centred_norms});
  }

  // normed -> delta
  Status delta_rule(OpContext& context, const DeltaMixerWeights& weights, const ForwardInput& input,
                    std::size_t layer) {
    const int rows = static_cast<int>(input.tokens.size());
    if (own(part_.state_heads) > 0) {
      ++runs_.gated_delta;
      mix_by_delta(context, weights,
                   {.x = room_.normed,
                    .rows = rows,
                    .eps = eps(),
                    .sequences = input.state_rows,
                    .layer = input.states[layer],
                    .room = room_.delta_rule,
                    .workspace = shared()});
    }
    return project_heads(
        context,
        {.values = room_.delta_rule.mixed, .columns = state_columns_, .weight = weights.out, .rows = rows});
  }

  // normed -> delta
  Status attention(OpContext& context, const DecoderLayer& layer, const LayerKv& kv, int rows) {
    if (own(part_.heads) > 0 && layer.latent) {
      attend_to_latents(context, *layer.latent, kv, rows);
    } else if (own(part_.heads) > 0) {
      project(context, layer, rows);
      attend(context, layer, kv);
      if (config_.attention_output_gate) {
        gate_outputs(context, {.out = room_.attended_part,
                               .gates = room_.gates,
                               .rows = rows,
                               .width = own(part_.heads) * static_cast<int>(config_.head_dim)});
      }
    }
    return project_heads(context, {.values = room_.attended_part,
                                   .columns = value_columns_,
                                   .weight = layer.wo,
                                   .bias = layer.bo,
                                   .rows = rows});
  }

  struct OwnHeads {
    const float* values = nullptr;  // [rows, this rank's of `columns`]
    const Cuts& columns;
    const WeightMatrix& weight;
    const Bf16* bias = nullptr;
    int rows = 0;
  };
  // What all ranks' heads gave -> delta
  Status project_heads(OpContext& context, const OwnHeads& heads) {
    NIBBLE_RETURN_IF_ERROR(gather(context, heads.columns, heads.rows, heads.values, room_.attended));
    {
      const TimedScope scope(context.times, "attention output");
      linear(context, {.x = part_.sharers == 1 ? heads.values : room_.attended,
                       .rows = heads.rows,
                       .weight = heads.weight,
                       .bias = heads.bias,
                       .y = room_.delta_part,
                       .workspace = shared()});
    }
    return gather(context, part_.hidden, heads.rows, room_.delta_part, room_.delta);
  }

  // normed -> attended_part
  void attend_to_latents(OpContext& context, const LatentMixerWeights& weights, const LayerKv& kv, int rows) {
    ++runs_.latent_attention;
    mix_by_latents(context, weights,
                   {.x = room_.normed,
                    .rows = rows,
                    .cos = room_.cos,
                    .sin = room_.sin,
                    .sequences = kv.sequences,
                    .cache = kv.latent,
                    .q = room_.q,
                    .room = room_.latent,
                    .attention = {room_.attention, static_cast<std::size_t>(room_.attention_floats)},
                    .out = room_.attended_part,
                    .workspace = shared()});
  }

  // normed -> q, k, v, the first two turned
  void project(OpContext& context, const DecoderLayer& layer, int rows) {
    const TimedScope scope(context.times, "q, k, v");
    const bool gated = config_.attention_output_gate;
    linear(context, {.x = room_.normed,
                     .rows = rows,
                     .weight = layer.wq,
                     .bias = layer.bq,
                     .y = gated ? room_.q_gates : room_.q,
                     .workspace = shared()});
    if (gated) {
      split_gates(context, {.projected = room_.q_gates,
                            .rows = rows,
                            .heads = own(part_.heads),
                            .head_dim = static_cast<int>(config_.head_dim),
                            .q = room_.q,
                            .gates = room_.gates});
    }
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
    turn(context, room_.q, layer.q_norm, rows, own(part_.heads));
    turn(context, room_.k, layer.k_norm, rows, static_cast<int>(part_.kv_heads.count));
  }

  // Heads of q or k, normed where the model does that, and rotated.
  void turn(OpContext& context, float* x, const Bf16* weight, int rows, int heads) {
    const int head_dim = static_cast<int>(config_.head_dim);
    if (weight != nullptr) {
      head_rms_norm(context, {.x = x,
                              .weight = weight,
                              .rows = rows,
                              .heads = heads,
                              .head_dim = head_dim,
                              .eps = eps(),
                              .zero_centred = config_.zero_centred_norms});
    }
    rope(context, {.x = x,
                   .cos = room_.cos,
                   .sin = room_.sin,
                   .rows = rows,
                   .heads = heads,
                   .head_dim = head_dim,
                   .turned = static_cast<int>(config_.rotary_dim)});
  }

  // q, k, v -> attended
  void attend(OpContext& context, const DecoderLayer& layer, const LayerKv& kv) {
    const TimedScope scope(context.times, "attention");
    ++runs_.attention;
    kv_append(context, {.keys = room_.k, .values = room_.v, .sequences = kv.sequences, .cache = kv.cache});
    paged_attention(context, {.q = room_.q,
                              .heads = own(part_.heads),
                              .sequences = kv.sequences,
                              .cache = kv.cache,
                              .window = layer.window,
                              .sinks = layer.sinks.empty() ? nullptr : layer.sinks.data(),
                              .scale = 1.0f / std::sqrt(static_cast<float>(kv.cache.head_dim)),
                              .out = room_.attended_part,
                              .room = {room_.attention, static_cast<std::size_t>(room_.attention_floats)}});
  }

  // A rank without rows of its own has experts that others' rows want.
  Status serve_others(OpContext& context) {
    NIBBLE_CHECK(part_.sharers < part_.ranks && exchange_, "all ranks have rows, or none has");
    for (const DecoderLayer& layer : weights_.layers) {
      if (layer.dense) continue;
      ++runs_.experts;
      NIBBLE_RETURN_IF_ERROR(exchanged_experts(context, layer.experts, moe_args(0)));
    }
    return {};
  }

  MoeArgs moe_args(int rows) const {
    return {.x = room_.normed,
            .rows = rows,
            .top_k = static_cast<int>(config_.num_experts_per_tok),
            .expert_ids = room_.expert_ids,
            .expert_weights = room_.expert_weights,
            .out = room_.delta,
            .activations = room_.activations,
            .products = room_.products,
            .slots = room_.slots,
            .offsets = room_.offsets,
            .workspace = shared()};
  }

  // normed -> delta
  Status experts(OpContext& context, const DecoderLayer& layer, int rows) {
    const MoeArgs args = moe_args(rows);
    ++runs_.experts;
    route(context, layer, rows, args.top_k);
    if (exchange_) return exchanged_experts(context, layer.experts, args);
    if (part_.whole_experts) return own_experts(context, layer.experts, args);
    if (part_.ranks > 1) return rows_of_experts(context, layer.experts, args);
    const TimedScope scope(context.times, "experts");
    moe(context, layer.experts, args);
    return {};
  }

  // normed -> y. Every rank has some rows of h, which all need whole, and then of the result.
  Status feed_forward(OpContext& context, const GatedMlpWeights& weights, const Cuts& width, int rows,
                      float* y) {
    const GatedMlpArgs args{.x = room_.normed,
                            .rows = rows,
                            .y = part_.sharers == 1 ? y : room_.delta_part,
                            .gate = room_.shared_gate_part,
                            .up = room_.shared_up,
                            .workspace = shared()};
    {
      const TimedScope scope(context.times, "feed-forward");
      gated_mlp_inner(context, weights, args);
    }
    NIBBLE_RETURN_IF_ERROR(gather(context, width, rows, args.gate, room_.shared_gate));
    {
      const TimedScope scope(context.times, "feed-forward");
      gated_mlp_outer(context, weights, room_.shared_gate, args);
    }
    return gather(context, part_.hidden, rows, args.y, y);
  }

  // delta += share * expert(normed)
  Status shared_expert(OpContext& context, const DecoderLayer& layer, int rows) {
    NIBBLE_RETURN_IF_ERROR(feed_forward(context, *layer.shared, part_.shared_width, rows, room_.shared_out));
    const bool shares = layer.shared_share.rows > 0;
    if (shares) {
      linear(context, {.x = room_.normed,
                       .rows = rows,
                       .weight = layer.shared_share,
                       .y = room_.shared_logits,
                       .workspace = shared()});
    }
    add_shared(context, {.sum = room_.delta,
                         .shared = room_.shared_out,
                         .logits = shares ? room_.shared_logits : nullptr,
                         .rows = rows,
                         .hidden = hidden()});
    return {};
  }

  // Every rank has some rows of each expert: of h, which all need whole, and then of the sum.
  Status rows_of_experts(OpContext& context, const MoeWeights& weights, MoeArgs args) {
    args.out = room_.delta_part;
    args.activations = room_.activations_part;
    {
      const TimedScope scope(context.times, "experts");
      expert_activations(context, weights, args);
    }
    NIBBLE_RETURN_IF_ERROR(
        gather(context, part_.width, args.rows * args.top_k, room_.activations_part, room_.activations));
    args.activations = room_.activations;
    {
      const TimedScope scope(context.times, "experts");
      expert_products(context, weights, args);
      sum_choices(context, args, own(part_.hidden));
    }
    return gather(context, part_.hidden, args.rows, room_.delta_part, room_.delta);
  }

  // Every rank has other experts, and all rows: products travel as (row, choice), and each rank adds them in
  // the order of choices.
  Status own_experts(OpContext& context, const MoeWeights& weights, MoeArgs args) {
    args.first_expert = static_cast<int>(part_.experts.begin(part_.rank));
    {
      const TimedScope scope(context.times, "experts");
      expert_activations(context, weights, args);
      expert_products(context, weights, args);
    }
    {
      const TimedScope scope(context.times, "ranks");
      const int slots = args.rows * args.top_k;
      for (int slot = 0; slot < slots; ++slot) room_.owners[slot] = owner_of(args.expert_ids[slot]);
      NIBBLE_RETURN_IF_ERROR(gather_rows(*ranks_, {.owners = {room_.owners, static_cast<std::size_t>(slots)},
                                                   .width = hidden(),
                                                   .rows = args.products}));
    }
    const TimedScope scope(context.times, "experts");
    sum_choices(context, args, hidden());
    return {};
  }

  // Every rank sends its share of the rows, all of its own where it has such, to the ranks that have their
  // experts, and adds what comes back; ranks that share sequences gather the sums.
  Status exchanged_experts(OpContext& context, const MoeWeights& weights, const MoeArgs& all) {
    const int begin = share_begin(all.rows, part_.place), end = share_begin(all.rows, part_.place + 1);
    const int longest = (most_rows_ + part_.sharers - 1) / part_.sharers;
    for (int done = 0; done < longest; done += exchange_shape_.most_rows) {
      const int first = std::min(begin + done, end), count = std::min(exchange_shape_.most_rows, end - first);
      NIBBLE_RETURN_IF_ERROR(
          exchange_round(context, weights, all,
                         {.rows = count,
                          .x = all.x + std::int64_t{first} * hidden(),
                          .ids = all.expert_ids + first * all.top_k},
                         room_.results + std::int64_t{first - begin} * all.top_k * hidden()));
    }
    MoeArgs own = all;
    own.rows = end - begin;
    own.expert_weights = all.expert_weights + begin * all.top_k;
    own.products = room_.results;
    own.out = room_.delta + std::int64_t{begin} * hidden();
    {
      const TimedScope scope(context.times, "experts");
      sum_choices(context, own, hidden());
    }
    if (part_.sharers == 1) return {};
    const TimedScope scope(context.times, "ranks");
    for (int place = 0; place < part_.sharers; ++place) {
      std::fill(room_.owners + share_begin(all.rows, place), room_.owners + share_begin(all.rows, place + 1),
                static_cast<std::uint8_t>(place));
    }
    return gather_rows(*sharers_, {.owners = {room_.owners, static_cast<std::size_t>(all.rows)},
                                   .width = hidden(),
                                   .rows = room_.delta});
  }

  Status exchange_round(OpContext& context, const MoeWeights& weights, MoeArgs args, const TokenRows& mine,
                        float* results) {
    {
      const TimedScope scope(context.times, "ranks");
      NIBBLE_ASSIGN(args.rows, exchange_->dispatch(*ranks_, mine));
    }
    args.x = room_.arrived.x;
    args.expert_ids = room_.arrived.ids;
    args.top_k = exchange_shape_.ids_a_place();
    args.first_expert = static_cast<int>(part_.experts.begin(part_.rank));
    {
      const TimedScope scope(context.times, "experts");
      expert_activations(context, weights, args);
      expert_products(context, weights, args);
    }
    const TimedScope scope(context.times, "ranks");
    return exchange_->combine(*ranks_, args.products, results);
  }

  int share_begin(int rows, int place) const { return rows * place / part_.sharers; }

  std::uint8_t owner_of(std::int32_t expert) const {
    for (int rank = 0; rank < part_.ranks; ++rank) {
      if (expert >= part_.experts.begin(rank) && expert < part_.experts.end(rank))
        return static_cast<std::uint8_t>(rank);
    }
    return most_ranks;  // nobody
  }

  // normed -> expert_ids, expert_weights
  void route(OpContext& context, const DecoderLayer& layer, int rows, int top_k) {
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
                          .expert_weights = room_.expert_weights,
                          .rule = router_rule(config_, layer)});
  }

  // The last norm and the vocabulary, for the wanted rows only.
  Status head(OpContext& context, std::span<const int> logit_rows, float* logits) {
    float* part = part_.sharers == 1 ? logits : room_.logits_part;
    project_to_vocabulary(context, logit_rows, part);
    return gather(context, part_.vocabulary, static_cast<int>(logit_rows.size()), part, logits);
  }

  void project_to_vocabulary(OpContext& context, std::span<const int> logit_rows, float* logits) {
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
                           .eps = eps(),
                           .zero_centred = config_.zero_centred_norms});
    linear(context, {.x = room_.last_normed,
                     .rows = rows,
                     .weight = weights_.lm_head,
                     .y = logits,
                     .workspace = shared()});
  }

  // Every rank's columns of `rows` rows, side by side; `all` may be null where this rank needs none.
  Status gather(OpContext& context, const Cuts& columns, int rows, const float* mine, float* all) {
    if (part_.sharers == 1) return {};
    const TimedScope scope(context.times, "ranks");
    return gather_columns(*sharers_,
                          {.rows = rows,
                           .begins = std::span(columns.at).first(static_cast<std::size_t>(part_.sharers) + 1),
                           .mine = mine,
                           .all = all});
  }

  int own(const Cuts& cuts) const { return static_cast<int>(cuts.count(part_.place)); }
  std::span<std::byte> shared() const { return {room_.shared, room_.shared_bytes}; }
  int hidden() const { return static_cast<int>(config_.hidden_size); }
  float eps() const { return static_cast<float>(config_.rms_norm_eps); }

  ModelConfig config_;
  std::shared_ptr<const WeightSource> source_;  // owns the bytes that weights_ points into
  RankPart part_;
  Cuts value_columns_;                                  // of what heads give
  Cuts state_columns_;                                  // of what heads with a state give
  Communicator *ranks_ = nullptr, *sharers_ = nullptr;  // of the running forward
  int most_rows_ = 0;                                   // likewise
  Buffer converted_;                                    // what of weights_ is not in the source's format
  DecoderWeights weights_;
  RopeFrequencies rope_;
  std::int64_t mapped_bytes_ = 0;
  ForwardLimits limits_;
  Buffer memory_;  // of room_
  ForwardRoom room_;
  OpRuns runs_;
  ExchangeShape exchange_shape_;
  std::optional<TokenExchange> exchange_;  // of ranks that send tokens
};

}  // namespace

Result<std::unique_ptr<Model>> bind_decoder(const ModelConfig& config,
                                            std::shared_ptr<const WeightSource> source,
                                            const RankPart& part) {
  if (has_latents(config)) {
    if (!latent_attention_takes(config.latent.rank, config.latent.rotated_dim)) {
      return broken_model("config.json: kv_lora_rank " + std::to_string(config.latent.rank) +
                          " with qk_rope_head_dim " + std::to_string(config.latent.rotated_dim) +
                          " is not supported; attention takes multiples of " + std::to_string(kv_run) +
                          " up to " + std::to_string(max_latent_rank) + " and " +
                          std::to_string(max_latent_rotated));
    }
  } else if (!attention_takes_head_dim(config.head_dim)) {
    return broken_model("config.json: head_dim " + std::to_string(config.head_dim) +
                        " is not supported; attention takes multiples of 32 up to 256");
  }
  NIBBLE_ASSIGN(DecoderWeights weights, bind_decoder_weights(config, *source, part));
  return std::unique_ptr<Model>(
      std::make_unique<Decoder>(config, std::move(source), part, std::move(weights)));
}

}  // namespace nibble
