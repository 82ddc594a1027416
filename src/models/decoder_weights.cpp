#include <algorithm>
#include <array>
#include <string>

#include "checkpoint/architecture.h"
#include "checkpoint/expected_tensors.h"
#include "formats/q8.h"
#include "models/decoder.h"
#include "ops/fixed_math.h"

namespace nibble {
namespace {

GatedUnit unit_of(const ModelConfig& config) {
  switch (config.activation) {
    case ExpertActivation::silu: return silu_unit;
    case ExpertActivation::clamped_swiglu: return gpt_oss_unit(static_cast<float>(config.swiglu_limit));
  }
  return silu_unit;
}

// Takes weights as an architecture lists them to their places, and remembers the first thing that went wrong.
class Binder {
 public:
  Binder(const ModelConfig& config, const WeightSource& source, const RankPart& part, DecoderWeights& weights)
      : config_(config), source_(source), part_(part), weights_(weights) {
    weights_.layers.resize(static_cast<std::size_t>(config.num_hidden_layers));
    for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
      weights_.layers[i].window = static_cast<int>(config.layers[i].window);
      weights_.layers[i].experts.unit = unit_of(config);
      if (config.layers[i].mixer == Mixer::gated_delta) {
        weights_.layers[i].delta.emplace();
        weights_.layers[i].delta->shape =
            with_key_heads(delta_shape(config), part.state_heads.count(part.place));
        weights_.layers[i].delta->by_key_head = config.delta.by_key_head;
      }
      if (config.layers[i].mixer == Mixer::latent) {
        LatentMixerWeights& latent = weights_.layers[i].latent.emplace();
        latent.scale = latent_score_scale(config);
        latent.heads = {.heads = static_cast<int>(part.heads.count(part.place)),
                        .plain = static_cast<int>(config.latent.plain_dim),
                        .value_dim = static_cast<int>(config.latent.value_dim)};
      }
      if (config.layers[i].feed_forward == FeedForward::dense) {
        weights_.layers[i].dense.emplace().unit = unit_of(config);
      } else if (config.shared_width > 0) {
        weights_.layers[i].shared.emplace().unit = unit_of(config);
      }
    }
  }

  void bind(const Weight& weight) {
    if (!status_.ok()) return;
    if (weight.layer < 0) return bind_model(weight);
    bind_layer(weight, weights_.layers[static_cast<std::size_t>(weight.layer)]);
  }

  const Status& status() const { return status_; }

 private:
  void bind_model(const Weight& weight) {
    switch (weight.role) {
      case WeightRole::embedding:
        weights_.embedding = bf16_matrix(weight);
        if (config_.tie_word_embeddings)
          weights_.lm_head = own_rows(weights_.embedding, rank_rows(part_.vocabulary));
        return;
      case WeightRole::final_norm: weights_.final_norm = vector(weight); return;
      case WeightRole::lm_head: weights_.lm_head = own_matrix(weight, rank_rows(part_.vocabulary)); return;
      default: NIBBLE_CHECK(false, weight.name);
    }
  }

  void bind_layer(const Weight& weight, DecoderLayer& layer) {
    if (weight.part == WeightPart::linear_attention) return bind_delta(weight, *layer.delta);
    switch (weight.role) {
      case WeightRole::mixer_norm: layer.attention_norm = vector(weight); return;
      case WeightRole::query_down: layer.latent->query_down = matrix_of(weight, weight.name); return;
      case WeightRole::query_down_norm: layer.latent->query_norm = vector(weight); return;
      case WeightRole::latent_down: layer.latent->latent_down = matrix_of(weight, weight.name); return;
      case WeightRole::latent_norm: layer.latent->latent_norm = vector(weight); return;
      case WeightRole::latent_heads:
        layer.latent->heads.kv = own_matrix(
            weight, rank_rows(part_.heads).times(config_.latent.plain_dim + config_.latent.value_dim));
        return;
      case WeightRole::query:
        if (layer.latent) {
          layer.latent->query = own_matrix(weight, query_rows());
          return;
        }
        layer.wq = own_matrix(weight, query_rows().times(config_.attention_output_gate ? 2 : 1));
        return;
      case WeightRole::key: layer.wk = own_matrix(weight, kv_rows()); return;
      case WeightRole::value: layer.wv = own_matrix(weight, kv_rows()); return;
      case WeightRole::query_bias: layer.bq = own_vector(weight, query_rows().begin); return;
      case WeightRole::key_bias: layer.bk = own_vector(weight, kv_rows().begin); return;
      case WeightRole::value_bias: layer.bv = own_vector(weight, kv_rows().begin); return;
      case WeightRole::query_norm: layer.q_norm = vector(weight); return;
      case WeightRole::key_norm: layer.k_norm = vector(weight); return;
      case WeightRole::sinks: layer.sinks = floats(weight); return;
      case WeightRole::attention_output: layer.wo = own_matrix(weight, rank_rows(part_.hidden)); return;
      case WeightRole::attention_output_bias:
        layer.bo = own_vector(weight, part_.hidden.begin(part_.place));
        return;
      case WeightRole::feed_forward_norm: layer.expert_norm = vector(weight); return;
      case WeightRole::router: layer.router = bf16_matrix(weight); return;
      case WeightRole::router_bias: layer.router_bias = vector(weight); return;
      case WeightRole::expert_gate_up: layer.experts.gate_up = experts(weight, width_rows().times(2)); return;
      case WeightRole::expert_gate: layer.experts.gate = experts(weight, width_rows()); return;
      case WeightRole::expert_up: layer.experts.up = experts(weight, width_rows()); return;
      case WeightRole::expert_gates_ups: {
        const std::int64_t width = weight.shape[1] / 2, first = width_rows().begin, last = width_rows().end;
        layer.experts.gate = experts(weight, {first, last});
        layer.experts.up = experts(weight, {width + first, width + last});
        return;
      }
      case WeightRole::router_correction: layer.correction = wide_floats(weight); return;
      case WeightRole::dense_gate:
        layer.dense->gate = own_matrix(weight, rank_rows(part_.dense_width));
        return;
      case WeightRole::dense_up: layer.dense->up = own_matrix(weight, rank_rows(part_.dense_width)); return;
      case WeightRole::dense_down: layer.dense->down = own_matrix(weight, rank_rows(part_.hidden)); return;
      case WeightRole::shared_gate:
        layer.shared->gate = own_matrix(weight, rank_rows(part_.shared_width));
        return;
      case WeightRole::shared_up:
        layer.shared->up = own_matrix(weight, rank_rows(part_.shared_width));
        return;
      case WeightRole::shared_down: layer.shared->down = own_matrix(weight, rank_rows(part_.hidden)); return;
      case WeightRole::shared_share: layer.shared_share = bf16_matrix(weight); return;
      case WeightRole::expert_down: layer.experts.down = experts(weight, down_rows()); return;
      case WeightRole::expert_gate_up_bias:
        layer.experts.gate_up_bias_stride = weight.shape[1];
        layer.experts.gate_up_bias =
            own_vector(weight, first_expert() * weight.shape[1] + 2 * width_rows().begin);
        return;
      case WeightRole::expert_down_bias:
        layer.experts.down_bias_stride = weight.shape[1];
        layer.experts.down_bias = own_vector(weight, first_expert() * weight.shape[1] + down_rows().begin);
        return;
      default: NIBBLE_CHECK(false, weight.name);
    }
  }

  // Rows of a matrix that are this rank's.
  struct Rows {
    std::int64_t begin = 0, end = 0;
    Rows times(std::int64_t factor) const { return {begin * factor, end * factor}; }
    Rows behind(std::int64_t first) const { return {first + begin, first + end}; }
  };

  void bind_delta(const Weight& weight, DeltaMixerWeights& delta) {
    const DeltaNumbers& whole = config_.delta;
    const std::int64_t served = whole.value_heads / whole.key_heads;
    const Rows key_heads = rank_rows(part_.state_heads), value_heads = key_heads.times(served),
               values = value_heads.times(whole.value_dim);
    switch (weight.role) {
      case WeightRole::delta_qkv_z:
        delta.qkv_z = own_matrix(weight, key_heads.times(2 * (whole.key_dim + served * whole.value_dim)));
        return;
      case WeightRole::delta_b_a: delta.b_a = own_matrix(weight, key_heads.times(2 * served)); return;
      case WeightRole::delta_qkv:
        if (part_.sharers == 1) {
          delta.qkv.push_back(matrix_of(weight, weight.name));
          return;
        }
        for (const Rows& rows : own_channels()) delta.qkv.push_back(own_matrix(weight, rows));
        return;
      case WeightRole::delta_z: delta.z = own_matrix(weight, values); return;
      case WeightRole::delta_b: delta.b = own_matrix(weight, value_heads); return;
      case WeightRole::delta_a: delta.a = own_matrix(weight, value_heads); return;
      case WeightRole::delta_output: delta.out = own_matrix(weight, rank_rows(part_.hidden)); return;
      case WeightRole::delta_convolution: delta.convolution = filters(weight); return;
      case WeightRole::delta_bias: delta.bias = own_floats(weight, value_heads); return;
      case WeightRole::delta_norm: delta.norm = wide_floats(weight); return;
      case WeightRole::delta_log_rate:
        for (const float log : own_floats(weight, value_heads))
          delta.rate.push_back(static_cast<float>(fixed_exp_double(std::clamp(double{log}, -80.0, 80.0))));
        return;
      default: NIBBLE_CHECK(false, weight.name);
    }
  }

  // Of what is convolved: the queries of all heads, then their keys, then values.
  std::array<Rows, 3> own_channels() const {
    const DeltaNumbers& whole = config_.delta;
    const std::int64_t keys = whole.key_heads * whole.key_dim;
    const Rows own_keys = rank_rows(part_.state_heads).times(whole.key_dim);
    return {own_keys, own_keys.behind(keys),
            rank_rows(part_.state_heads)
                .times(whole.value_heads / whole.key_heads * whole.value_dim)
                .behind(2 * keys)};
  }
  Rows rank_rows(const Cuts& cuts) const { return {cuts.begin(part_.place), cuts.end(part_.place)}; }
  Rows query_rows() const { return rank_rows(part_.heads).times(config_.head_dim); }
  Rows kv_rows() const {
    return Rows{part_.kv_heads.begin, part_.kv_heads.begin + part_.kv_heads.count}.times(config_.head_dim);
  }
  Rows width_rows() const {
    return part_.whole_experts ? Rows{0, part_.own_width()} : rank_rows(part_.width);
  }
  Rows down_rows() const {
    return part_.whole_experts ? Rows{0, part_.own_expert_rows()} : rank_rows(part_.hidden);
  }
  std::int64_t first_expert() const { return part_.whole_experts ? part_.experts.begin(part_.rank) : 0; }
  std::int64_t end_expert(std::int64_t all) const {
    return part_.whole_experts ? part_.experts.end(part_.rank) : all;
  }

  WeightMatrix own_rows(const WeightMatrix& matrix, const Rows& rows) {
    return status_.ok() ? rows_of(matrix, rows.begin, rows.end) : matrix;
  }
  WeightMatrix own_matrix(const Weight& weight, const Rows& rows) {
    NIBBLE_CHECK(weight.split != SplitAxis::none, weight.name);
    return own_rows(matrix_of(weight, weight.name), rows);
  }
  const Bf16* own_vector(const Weight& weight, std::int64_t first) {
    const Bf16* whole = vector(weight);
    return whole == nullptr ? nullptr : whole + first;
  }

  // A vector, or one for each expert.
  const Bf16* vector(const Weight& weight) { return data<Bf16>(tensors_of(weight, weight.name)[0]); }

  // One a head.
  std::vector<float> floats(const Weight& weight) {
    std::vector<float> values;
    const Bf16* stored = vector(weight);
    const Rows heads = rank_rows(part_.heads);
    for (std::int64_t i = heads.begin; stored != nullptr && i < heads.end; ++i)
      values.push_back(stored[i].to_float());
    return values;
  }

  // All of a vector that files have in bf16 or f32.
  std::vector<float> wide_floats(const Weight& weight) {
    const ConstTensor tensor = found(tensors_of(weight, weight.name)[0]);
    std::vector<float> values;
    if (!status_.ok()) return values;
    if (tensor.dtype == DType::f32) {
      const auto stored = tensor.as<float>();
      values.assign(stored.begin(), stored.end());
    } else {
      for (const Bf16 value : tensor.as<Bf16>()) values.push_back(value.to_float());
    }
    return values;
  }

  std::vector<float> own_floats(const Weight& weight, const Rows& rows) {
    const std::vector<float> all = wide_floats(weight);
    if (!status_.ok()) return {};
    return {all.begin() + rows.begin, all.begin() + rows.end};
  }

  // [channels, 1, taps] as [taps, channels], those of this rank.
  std::vector<float> filters(const Weight& weight) {
    const Bf16* stored = vector(weight);
    std::vector<float> values;
    if (stored == nullptr) return values;
    for (std::int64_t tap = 0; tap < weight.shape[2]; ++tap) {
      for (const Rows& own : own_channels()) {
        for (std::int64_t channel = own.begin; channel < own.end; ++channel)
          values.push_back(stored[channel * weight.shape[2] + tap].to_float());
      }
    }
    return values;
  }

  Bf16Matrix bf16_matrix(const Weight& weight) {
    NIBBLE_CHECK(weight.format == TensorFormat::bf16, weight.name);
    return {data<Bf16>(tensors_of(weight, weight.name)[0]), static_cast<int>(weight.shape[0]),
            static_cast<int>(weight.shape[1])};
  }

  WeightMatrix matrix_of(const Weight& weight, const std::string& name) {
    const std::vector<ExpectedTensor> parts = tensors_of(weight, name);
    const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
    switch (weight.format) {
      case TensorFormat::bf16:
        return Bf16Matrix{data<Bf16>(parts[0]), static_cast<int>(rows), static_cast<int>(cols)};
      case TensorFormat::mxfp4_packed: return Mxfp4Checkpoint{bytes(parts[0]), bytes(parts[1]), rows, cols};
      case TensorFormat::fp8_block:
        return Fp8BlockMatrix{data<E4m3>(parts[0]), outer_scales(parts[1]), rows, cols};
      case TensorFormat::fp8_row:
        return Fp8RowMatrix{data<E4m3>(parts[0]), outer_scales(parts[1]), rows, cols};
      case TensorFormat::nvfp4:
        return Nvfp4Matrix{bytes(parts[0]), data<E4m3>(parts[1]), one_float(parts[2]), rows, cols};
      case TensorFormat::nvfp4_packed:
        return Nvfp4Matrix{bytes(parts[0]), data<E4m3>(parts[1]), 1.0f / one_float(parts[2]), rows, cols};
      case TensorFormat::int4_packed: return Int4Matrix{bytes(parts[0]), data<Bf16>(parts[1]), rows, cols};
      case TensorFormat::mxfp4_blocks: break;
    }
    NIBBLE_CHECK(false, weight.name);
    return {};
  }

  // This rank's experts', each for itself or in one tensor; of each, the rank's rows.
  std::vector<WeightMatrix> experts(const Weight& weight, const Rows& own) {
    std::vector<WeightMatrix> views;
    const std::int64_t last = end_expert(weight.own_experts > 0 ? weight.own_experts : weight.shape[0]);
    for (std::int64_t expert = first_expert(); weight.own_experts > 0 && expert < last; ++expert)
      views.push_back(own_rows(matrix_of(weight, weight.name_of(expert)), own));
    if (weight.own_experts > 0) return views;
    const std::vector<ExpectedTensor> parts = tensors_of(weight, weight.name);
    if (weight.is_bare) {
      const Bf16* stacked = data<Bf16>(parts[0]);
      const std::int64_t rows = weight.shape[1], cols = weight.shape[2];
      for (std::int64_t expert = first_expert(); status_.ok() && expert < last; ++expert) {
        views.push_back(own_rows(
            Bf16Matrix{stacked + expert * rows * cols, static_cast<int>(rows), static_cast<int>(cols)}, own));
      }
      return views;
    }
    NIBBLE_CHECK(weight.format == TensorFormat::mxfp4_blocks, weight.name);
    const std::uint8_t* blocks = data<std::uint8_t>(parts[0]);
    const std::uint8_t* scales = data<std::uint8_t>(parts[1]);
    if (!status_.ok()) return views;
    const std::int64_t rows = weight.shape[1], cols = weight.shape[2], of_expert = rows * cols / mxfp4_block;
    for (std::int64_t expert = first_expert(); expert < last; ++expert) {
      const Mxfp4Checkpoint whole{blocks + expert * of_expert * mxfp4_block_bytes,
                                  scales + expert * of_expert, rows, cols};
      views.push_back(own_rows(whole, own));
    }
    return views;
  }

  OuterScales outer_scales(const ExpectedTensor& expected) {
    const ConstTensor tensor = found(expected);
    if (tensor.dtype == DType::bf16) return {.narrow = reinterpret_cast<const Bf16*>(tensor.data)};
    return {.floats = reinterpret_cast<const float*>(tensor.data)};
  }

  // 1 once something is wrong.
  float one_float(const ExpectedTensor& expected) {
    const float* value = data<float>(expected);
    return value == nullptr ? 1.0f : *value;
  }

  static std::vector<ExpectedTensor> tensors_of(const Weight& weight, const std::string& name) {
    std::vector<ExpectedTensor> tensors;
    visit_stored(weight, name, [&](ExpectedTensor tensor) { tensors.push_back(std::move(tensor)); });
    return tensors;
  }

  // Empty once something is wrong, as what follows points to nothing.
  ConstTensor found(const ExpectedTensor& expected) {
    if (!status_.ok()) return {};
    const Result<ConstTensor> tensor = required_tensor(expected, source_);
    if (tensor.ok()) return *tensor;
    status_ = tensor.status();
    return {};
  }
  template <class T>
  const T* data(const ExpectedTensor& expected) {
    const ConstTensor tensor = found(expected);
    return status_.ok() ? tensor.as<T>().data() : nullptr;
  }
  // Of codes and scales that come in more than one type of a byte.
  const std::uint8_t* bytes(const ExpectedTensor& expected) {
    return reinterpret_cast<const std::uint8_t*>(found(expected).data);
  }

  const ModelConfig& config_;
  const WeightSource& source_;
  const RankPart& part_;
  DecoderWeights& weights_;
  Status status_;
};

}  // namespace

Result<DecoderWeights> bind_decoder_weights(const ModelConfig& config, const WeightSource& source,
                                            const RankPart& part) {
  DecoderWeights weights;
  Binder binder(config, source, part, weights);
  visit_weights(config, [&](const Weight& weight) { binder.bind(weight); });
  NIBBLE_RETURN_IF_ERROR(binder.status());
  return weights;
}

std::vector<WeightMatrix*> convertible_matrices(DecoderWeights& weights) {
  std::vector<WeightMatrix*> matrices;
  const auto add = [&](WeightMatrix& matrix) {
    const Bf16Matrix* dense = std::get_if<Bf16Matrix>(&matrix);
    if (dense != nullptr && dense->rows > 0 && dense->cols % q8_block == 0) matrices.push_back(&matrix);
  };
  const auto add_mlp = [&](std::optional<GatedMlpWeights>& mlp) {
    if (!mlp) return;
    for (WeightMatrix* each : {&mlp->gate, &mlp->up, &mlp->down}) add(*each);
  };
  for (DecoderLayer& layer : weights.layers) {
    for (WeightMatrix* each : {&layer.wq, &layer.wk, &layer.wv, &layer.wo}) add(*each);
    if (layer.latent) {
      LatentMixerWeights& latent = *layer.latent;
      for (WeightMatrix* each : {&latent.query_down, &latent.query, &latent.latent_down}) add(*each);
    }
    if (layer.delta) {
      DeltaMixerWeights& delta = *layer.delta;
      for (WeightMatrix* each : {&delta.qkv_z, &delta.z, &delta.out}) add(*each);
      for (WeightMatrix& each : delta.qkv) add(each);
    }
    add_mlp(layer.dense);
    add_mlp(layer.shared);
  }
  add(weights.lm_head);
  return matrices;
}

}  // namespace nibble
