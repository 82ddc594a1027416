#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "checkpoint/architecture.h"
#include "models/cuda/decoder_cuda.h"
#include "models/rope_frequencies.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

GatedUnit unit_of(const ModelConfig& config) {
  return config.activation == ExpertActivation::clamped_swiglu
             ? gpt_oss_unit(static_cast<float>(config.swiglu_limit))
             : silu_unit;
}

template <class Granules>
Granules granules(DeviceArena& arena, std::int64_t experts, std::int64_t rows, std::int64_t cols) {
  const decltype(Granules::shape) shape{static_cast<int>(rows), static_cast<int>(cols)};
  Granules made{arena.take<std::uint8_t>(size(experts) * shape.bytes()), static_cast<int>(experts), shape};
  if constexpr (std::is_same_v<Granules, Nvfp4Granules>)
    made.tensor_scales = arena.take<PairFactors>(size(experts));
  return made;
}

// Takes weights as an architecture lists them to their places, and remembers the first thing that went wrong.
class Placer {
 public:
  Placer(const ModelConfig& config, const CudaPart& part, DecoderCudaWeights& weights, WeightPlacing& placing)
      : config_(config),
        part_(part),
        weights_(weights),
        placing_(placing),
        group_(config.num_attention_heads / config.num_key_value_heads),
        wide_group_(part.all_padded_heads / config.num_key_value_heads) {}

  void place(const Weight& weight) {
    if (!status_.ok()) return;
    status_ = weight.layer < 0 ? place_in_model(weight)
                               : place_in_layer(weight, weights_.layers[size(weight.layer)]);
  }
  const Status& status() const { return status_; }

 private:
  Status place_in_model(const Weight& weight) {
    const ExpectedTensor tensor = placed_tensor(weight);
    switch (weight.role) {
      case WeightRole::embedding:
        NIBBLE_RETURN_IF_ERROR(placing_.plain(tensor, weights_.embedding));
        if (!config_.tie_word_embeddings) return {};
        return placing_.dense({tensor, part_.vocabulary}, weights_.head.lm_head);
      case WeightRole::final_norm: return placing_.plain(tensor, weights_.head.norm);
      case WeightRole::lm_head: return placing_.dense({tensor, part_.vocabulary}, weights_.head.lm_head);
      default: NIBBLE_CHECK(false, weight.name);
    }
    return {};
  }

  Status place_in_layer(const Weight& weight, DecoderCudaLayer& layer) {
    switch (weight.role) {
      case WeightRole::mixer_norm: return placing_.plain(placed_tensor(weight), norm_of(layer.mixer));
      case WeightRole::feed_forward_norm:
        return placing_.plain(placed_tensor(weight), norm_of(layer.feed_forward));
      default: break;
    }
    if (auto* dense = std::get_if<DenseLayerWeights>(&layer.feed_forward)) {
      if (weight.part == WeightPart::dense_layers) return place_mlp(placing_, weight, dense->mlp);
    }
    if (weight.part == WeightPart::shared_expert) return place_shared_expert(placing_, weight, *layer.shared);
    if (const auto* delta = std::get_if<DeltaBlockWeights>(&layer.mixer)) {
      if (weight.part == WeightPart::linear_attention)
        return place_delta(placing_, weight, delta_heads(config_, part_), *delta);
    }
    if (auto* experts = std::get_if<ExpertsBlockWeights>(&layer.feed_forward)) {
      if (weight.part == WeightPart::experts) return place_expert(weight, *experts);
      if (weight.part == WeightPart::router) return place_router(weight, *experts);
    }
    if (const auto* latent = std::get_if<LatentBlockWeights>(&layer.mixer))
      return place_latent(placing_, weight, part_.heads, *latent);
    if (auto* attention = std::get_if<AttentionBlockWeights>(&layer.mixer))
      return place_attention(weight, *attention);
    NIBBLE_CHECK(false, weight.name);
    return {};
  }

  // q's heads, each with its gate if it has one, k's and v's lie one after the other in one matrix.
  std::int64_t q_rows_a_head() const { return (config_.attention_output_gate ? 2 : 1) * config_.head_dim; }
  int key_row() const { return static_cast<int>(part_.padded_heads.count * q_rows_a_head()); }
  int value_row() const { return key_row() + static_cast<int>(part_.kv_heads.count * config_.head_dim); }
  Run queries_of(const Run& heads) const {
    return {heads.begin * q_rows_a_head(), heads.count * q_rows_a_head()};
  }
  Run rows_of(const Run& heads) const {
    return {heads.begin * config_.head_dim, heads.count * config_.head_dim};
  }

  template <class Kinds>
  static Bf16* norm_of(const Kinds& kinds) {
    return std::visit([](const auto& weights) { return weights.norm; }, kinds);
  }

  Status place_router(const Weight& weight, const ExpertsBlockWeights& experts) {
    const ExpectedTensor tensor = placed_tensor(weight);
    switch (weight.role) {
      case WeightRole::router_correction: {
        NIBBLE_ASSIGN(const std::vector<float> correction, placing_.floats(tensor));
        cuda_check(cudaMemcpy(experts.router_correction, correction.data(), correction.size() * sizeof(float),
                              cudaMemcpyHostToDevice));
        return {};
      }
      case WeightRole::router: return placing_.dense(tensor, experts.router);
      case WeightRole::router_bias: return placing_.plain(tensor, experts.router_bias);
      default: NIBBLE_CHECK(false, weight.name);
    }
    return {};
  }

  Status place_attention(const Weight& weight, AttentionBlockWeights& attention) {
    if (weight.is_matrix() && weight.format != TensorFormat::bf16) return place_blocks(weight, attention);
    // A rank that shares a head of keys has a part of its queries, which are then no fewer than they may be.
    const std::int64_t own_group = std::min(group_, part_.heads.count);
    const std::int64_t own_apart = std::min(wide_group_, part_.padded_heads.count);
    const std::int64_t part = own_group * q_rows_a_head(), apart = own_apart * q_rows_a_head();
    const Run q_rows = queries_of(part_.heads), kv_rows = rows_of(part_.kv_heads);
    const ExpectedTensor tensor = placed_tensor(weight);
    switch (weight.role) {
      case WeightRole::query: return placing_.spread_rows({tensor, q_rows}, part, apart, attention.qkv.tiles);
      case WeightRole::key: return placing_.dense({tensor, kv_rows}, attention.qkv.tiles, key_row());
      case WeightRole::value: return placing_.dense({tensor, kv_rows}, attention.qkv.tiles, value_row());
      case WeightRole::query_bias: return placing_.spread({tensor, q_rows}, part, apart, attention.qkv_bias);
      case WeightRole::key_bias: return placing_.plain({tensor, kv_rows}, attention.qkv_bias + key_row());
      case WeightRole::value_bias: return placing_.plain({tensor, kv_rows}, attention.qkv_bias + value_row());
      case WeightRole::query_norm: return placing_.plain(tensor, attention.q_norm);
      case WeightRole::key_norm: return placing_.plain(tensor, attention.k_norm);
      case WeightRole::sinks:
        return placing_.spread_floats({tensor, part_.heads}, own_group, own_apart, attention.sinks);
      case WeightRole::attention_output:
        return placing_.spread_columns(tensor, group_ * config_.head_dim, wide_group_ * config_.head_dim,
                                       attention.wo.tiles);
      case WeightRole::attention_output_bias: return placing_.plain(tensor, attention.wo_bias);
      default: NIBBLE_CHECK(false, weight.name);
    }
    return {};
  }

  Status place_blocks(const Weight& weight, const AttentionBlockWeights& attention) {
    const Run q_rows = queries_of(part_.heads), kv_rows = rows_of(part_.kv_heads);
    switch (weight.role) {
      case WeightRole::query: return placing_.dense(weight, q_rows, *attention.qkv.blocks, 0);
      case WeightRole::key: return placing_.dense(weight, kv_rows, *attention.qkv.blocks, key_row());
      case WeightRole::value: return placing_.dense(weight, kv_rows, *attention.qkv.blocks, value_row());
      case WeightRole::attention_output:
        return placing_.dense(weight, {0, config_.hidden_size}, *attention.wo.blocks, 0);
      default: NIBBLE_CHECK(false, weight.name);
    }
    return {};
  }

  Status place_expert(const Weight& weight, ExpertsBlockWeights& layer) {
    return std::visit(
        [&](auto& formats) {
          return std::visit([&](auto& experts) { return place_expert_in(weight, experts); }, formats);
        },
        layer.experts);
  }

  template <class Experts>
  Status place_expert_in(const Weight& weight, Experts& experts) {
    const std::int64_t first = part_.stored_experts().begin;
    switch (weight.role) {
      case WeightRole::expert_gates_ups:
      case WeightRole::expert_gate_up: return placing_.experts({weight}, first, experts.gate_up);
      case WeightRole::expert_gate: gate_ = weight; return {};
      case WeightRole::expert_up:
        NIBBLE_CHECK(gate_ && gate_->layer == weight.layer, "a gate comes before its up");
        return placing_.experts({*gate_, weight}, first, experts.gate_up);
      case WeightRole::expert_down: return placing_.experts({weight}, first, experts.down);
      default: break;
    }
    if constexpr (requires { experts.down_bias; }) return place_expert_bias(weight, experts);
    NIBBLE_CHECK(false, weight.name);
    return {};
  }

  template <class Granules>
  Status place_expert_bias(const Weight& weight, const MoeCudaWeightsOf<Granules>& experts) {
    switch (weight.role) {
      case WeightRole::expert_gate_up_bias:
        return placing_.plain({placed_tensor(weight), part_.stored_experts()},
                              const_cast<Bf16*>(experts.gate_up_bias));
      case WeightRole::expert_down_bias:
        return placing_.plain({placed_tensor(weight), part_.stored_experts()},
                              const_cast<Bf16*>(experts.down_bias));
      default: NIBBLE_CHECK(false, weight.name);
    }
    return {};
  }

  const ModelConfig& config_;
  const CudaPart& part_;
  DecoderCudaWeights& weights_;
  WeightPlacing& placing_;
  std::int64_t group_, wide_group_;  // query heads of one head of keys, in the checkpoint and here
  std::optional<Weight> gate_;       // of the layer whose experts come
  Status status_;
};

// What of a layer's experts the list of weights names.
struct ExpertTraits {
  bool router = false, gate_up = false, down = false;
  TensorFormat format = TensorFormat::bf16;
};
ExpertTraits traits_of_experts(const ModelConfig& config) {
  ExpertTraits traits{.format = expert_format(config)};
  visit_weights(config, [&](const Weight& weight) {
    traits.router |= weight.role == WeightRole::router_bias;
    traits.gate_up |= weight.role == WeightRole::expert_gate_up_bias;
    traits.down |= weight.role == WeightRole::expert_down_bias;
  });
  return traits;
}

template <class Granules>
MoeCudaWeightsOf<Granules> lay_out_layer(const ModelConfig& config, const ExpertTraits& traits,
                                         std::int64_t experts, DeviceArena& arena) {
  const std::int64_t hidden = config.hidden_size, width = config.intermediate_size;
  MoeCudaWeightsOf<Granules> layer{.gate_up = granules<Granules>(arena, experts, 2 * width, hidden),
                                   .down = granules<Granules>(arena, experts, hidden, width),
                                   .unit = unit_of(config)};
  if (traits.gate_up) layer.gate_up_bias = arena.take<Bf16>(size(experts * 2 * width));
  if (traits.down) layer.down_bias = arena.take<Bf16>(size(experts * hidden));
  return layer;
}

template <class Codes>
BlockMoeWeightsOf<Codes> lay_out_block_layer(const ModelConfig& config, std::int64_t experts,
                                             DeviceArena& arena) {
  const std::int64_t hidden = config.hidden_size, width = config.intermediate_size;
  return {.gate_up = lay_out_blocks<Codes>(arena, experts, 2 * width, hidden),
          .down = lay_out_blocks<Codes>(arena, experts, hidden, width),
          .unit = unit_of(config)};
}

ExpertsBlockWeights lay_out_experts(const ModelConfig& config, const ExpertTraits& traits,
                                    const CudaPart& part, DeviceArena& arena) {
  const std::int64_t hidden = config.hidden_size, experts = config.num_local_experts;
  ExpertsBlockWeights weights;
  weights.norm = arena.take<Bf16>(size(hidden));
  weights.router = lay_out_tiles(arena, experts, hidden);
  if (traits.router) weights.router_bias = arena.take<Bf16>(size(experts));
  if (config.router_score == RouterScore::sigmoid)
    weights.router_correction = arena.take<float>(size(experts));
  switch (traits.format) {
    case TensorFormat::nvfp4:
    case TensorFormat::nvfp4_packed:
      weights.experts = lay_out_layer<Nvfp4Granules>(config, traits, part.stored_experts().count, arena);
      break;
    case TensorFormat::bf16:
      weights.experts = lay_out_block_layer<Bf16Codes>(config, part.stored_experts().count, arena);
      break;
    case TensorFormat::fp8_block:
      weights.experts = lay_out_block_layer<E4m3Codes>(config, part.stored_experts().count, arena);
      break;
    case TensorFormat::mxfp4_blocks:
    case TensorFormat::mxfp4_packed:
      weights.experts = lay_out_layer<Mxfp4Granules>(config, traits, part.stored_experts().count, arena);
      break;
    case TensorFormat::fp8_row:
      weights.experts = BlockMoeWeightsOf<E4m3Codes>{
          .gate_up =
              lay_out_fp8_rows(arena, part.stored_experts().count, 2 * config.intermediate_size, hidden),
          .down = lay_out_fp8_rows(arena, part.stored_experts().count, hidden, config.intermediate_size),
          .unit = unit_of(config)};
      break;
    case TensorFormat::int4_packed:
      weights.experts = lay_out_layer<Int4Granules>(config, traits, part.stored_experts().count, arena);
      break;
  }
  return weights;
}

}  // namespace

DecoderCudaWeights DecoderCudaWeights::lay_out(const ModelConfig& config, const CudaPart& part,
                                               DeviceArena& arena) {
  const std::int64_t hidden = config.hidden_size;
  const ExpertTraits traits = traits_of_experts(config);
  DecoderCudaWeights weights;
  weights.embedding = arena.take<Bf16>(size(config.vocab_size * hidden));
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const LayerDescription& described = config.layers[size(layer)];
    DecoderCudaLayer& made = weights.layers.emplace_back();
    if (described.mixer == Mixer::gated_delta) {
      made.mixer = lay_out_delta_weights(config, part, layer, arena);
    } else if (described.mixer == Mixer::latent) {
      made.mixer = lay_out_latent_weights(config, part, layer, arena);
    } else {
      made.mixer = lay_out_attention_weights(config, part, layer, arena);
    }
    if (described.feed_forward == FeedForward::dense) {
      made.feed_forward = lay_out_dense_layer(config, part, layer, arena);
      continue;
    }
    made.feed_forward = lay_out_experts(config, traits, part, arena);
    if (config.shared_width > 0) made.shared = lay_out_shared_expert(config, layer, arena);
  }
  weights.head.norm = arena.take<Bf16>(size(hidden));
  weights.head.lm_head = lay_out_tiles(arena, part.vocabulary.count, hidden);
  weights.inv_freq = arena.take<float>(size(config.rotary_dim / 2));
  return weights;
}

Status place_decoder_weights(const ModelConfig& config, const CudaPart& part, DecoderCudaWeights& weights,
                             WeightPlacing& placing) {
  Placer placer(config, part, weights, placing);
  visit_weights(config, [&](const Weight& weight) { placer.place(weight); });
  NIBBLE_RETURN_IF_ERROR(placer.status());
  const RopeFrequencies rope = rope_frequencies(config);
  cuda_check(cudaMemcpy(weights.inv_freq, rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float),
                        cudaMemcpyHostToDevice));
  return placing.finish();
}

}  // namespace nibble
