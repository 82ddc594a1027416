#include "models/model_traits.h"

#include <algorithm>
#include <array>

#include "checkpoint/architecture.h"
#include "checkpoint/expected_tensors.h"
#include "models/delta_mixer.h"
#include "models/dense_conversion.h"

namespace nibble {
namespace {

// What 63 bits and a planner can hold, checked before any product of sizes is used.
Status check_size(const ModelTraits& traits) {
  constexpr double most = 1e15;
  const double experts = 6.0 * static_cast<double>(traits.expert_layers) *
                         static_cast<double>(traits.experts) * static_cast<double>(traits.hidden) *
                         static_cast<double>(traits.expert_width);
  const double attention = 16.0 * static_cast<double>(traits.layers) * static_cast<double>(traits.hidden) *
                           static_cast<double>(traits.heads) * static_cast<double>(traits.query_dim);
  const double dense = 3.0 * static_cast<double>(traits.layers) * static_cast<double>(traits.hidden) *
                       static_cast<double>(traits.shared_width + traits.dense_width);
  if (experts < most && attention < most && dense < most) return {};
  return broken_model("config.json describes more than a petabyte of weights");
}

// Of a config whose weights are listed (checkpoint/architecture.h), in the order of WeightPart.
struct PartTraits {
  std::string_view name;
  WeightUse use;
};
constexpr std::array<PartTraits, 9> part_traits = {{{"attention", WeightUse::every_token},
                                                    {"linear attention", WeightUse::every_token},
                                                    {"dense layers", WeightUse::every_token},
                                                    {"router", WeightUse::every_token},
                                                    {"shared expert", WeightUse::every_token},
                                                    {"experts", WeightUse::by_expert},
                                                    {"norms", WeightUse::every_token},
                                                    {"embedding", WeightUse::one_row},
                                                    {"lm_head", WeightUse::last_token}}};

StoredFormat stored_format(TensorFormat format) {
  switch (format) {
    case TensorFormat::bf16: return StoredFormat::bf16;
    case TensorFormat::mxfp4_blocks:
    case TensorFormat::mxfp4_packed: return StoredFormat::mxfp4;
    case TensorFormat::fp8_block: return StoredFormat::fp8_block;
    case TensorFormat::fp8_row: return StoredFormat::fp8_row;
    case TensorFormat::nvfp4:
    case TensorFormat::nvfp4_packed: return StoredFormat::nvfp4;
    case TensorFormat::int4_packed: return StoredFormat::int4;
  }
  return StoredFormat::bf16;
}

std::int64_t stored_bytes(const Weight& weight) {
  std::int64_t bytes = 0;
  visit_stored(weight, weight.own_experts > 0 ? weight.name_of(0) : weight.name,
               [&](const ExpectedTensor& tensor) {
                 if (!tensor.optional) bytes += tensor.bytes();
               });
  return bytes * std::max<std::int64_t>(weight.own_experts, 1);
}

void add_weight(const Weight& weight, WeightGroup& group) {
  const std::int64_t times = std::max<std::int64_t>(weight.own_experts, 1);
  if (weight.is_matrix()) group.values += times * weight.shape.count();
  group.bytes += stored_bytes(weight);
  group.split = group.split || (weight.is_matrix() && weight.split != SplitAxis::none);
}

void add_convertible(const Weight& weight, WeightGroup& group) {
  MatrixCut cut = weight.split == SplitAxis::none ? MatrixCut::none : MatrixCut::rows;
  if (weight.role == WeightRole::key || weight.role == WeightRole::value) cut = MatrixCut::kv_heads;
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
  for (ConvertibleMatrices& each : group.convertible) {
    if (each.rows != rows || each.cols != cols || each.cut != cut) continue;
    ++each.count;
    return;
  }
  group.convertible.push_back({.rows = rows, .cols = cols, .cut = cut, .count = 1});
}

// What --quantization does to a weight. A tied embedding is lm_head too, of which it makes a copy.
void add_conversion(const Weight& weight, WeightGroup& group, ModelTraits& traits) {
  const bool is_dense = weight.is_matrix() && weight.part != WeightPart::experts;
  if (!is_dense && weight.role != WeightRole::delta_convolution) return;
  StoredMatrices stays = stays_as_stored(weight);
  if (stays.why.empty()) return add_convertible(weight, group);
  if (weight.role == WeightRole::embedding && traits.tied) {
    Weight head = weight;
    head.role = WeightRole::lm_head;
    if (stays_as_stored(head).why.empty()) add_convertible(head, group);
  }
  if (stays.name.empty()) stays.name = part_traits[static_cast<std::size_t>(weight.part)].name;
  std::vector<StoredMatrices>& all = traits.as_stored;
  if (std::find(all.begin(), all.end(), stays) == all.end()) all.push_back(stays);
}

// Of weights in groups that ranks divide (models/cuda/cuda_part.h).
bool is_whole_on_gpus(const Weight& weight) {
  if (weight.part == WeightPart::shared_expert) return true;
  switch (weight.role) {
    case WeightRole::embedding:
    case WeightRole::attention_output:
    case WeightRole::query_down:
    case WeightRole::latent_down:
    case WeightRole::delta_b_a:
    case WeightRole::delta_b:
    case WeightRole::delta_a:
    case WeightRole::delta_output:
    case WeightRole::dense_down: return true;
    default: return false;
  }
}

// Of layers with a gated delta rule.
void add_states(const ModelConfig& config, ModelTraits& traits) {
  traits.delta = delta_shape(config);
  const DeltaShape& shape = traits.delta;
  const std::int64_t state = std::int64_t{shape.value_heads} * shape.key_dim * shape.value_dim;
  // In the mean half of a chunk is open: its rows are read, and a state is brought forward once a chunk.
  const std::int64_t open_row = shape.keys() + shape.values() + 2 * std::int64_t{shape.value_heads};
  traits.snapshot_bytes = traits.linear_layers * delta_snapshot_bytes(shape);
  traits.state_token_bytes = traits.linear_layers * 4 *
                             (state + 2 * state / delta_chunk + (delta_chunk / 2 + 1) * open_row +
                              std::int64_t{shape.taps} * shape.channels());
  traits.linear_flops = traits.linear_layers * 6 * state;
}

}  // namespace

Result<ModelTraits> traits_of(const ModelConfig& config, std::string name) {
  ModelTraits traits{.name = std::move(name),
                     .architecture = config.architecture,
                     .runs = true,
                     .dtype = config.dtype,
                     .layers = config.num_hidden_layers,
                     .hidden = config.hidden_size,
                     .vocabulary = config.vocab_size,
                     .max_positions = config.max_position_embeddings,
                     .tied = config.tie_word_embeddings,
                     .heads = config.num_attention_heads,
                     .kv_heads = config.num_key_value_heads,
                     .query_dim = config.head_dim,
                     .value_dim = config.head_dim,
                     .normed_heads = config.query_key_norm,
                     .gated_heads = config.attention_output_gate,
                     .experts = config.num_local_experts,
                     .experts_per_token = config.num_experts_per_tok,
                     .expert_width = config.intermediate_size,
                     .shared_width = config.shared_width,
                     .dense_width = config.dense_width};
  if (config.latent.rank > 0) {
    const LatentNumbers& latent = config.latent;
    traits.attention = AttentionKind::latent;
    traits.value_dim = latent.value_dim;
    traits.latent = {.query_rank = latent.query_rank, .rank = latent.rank, .rotated_dim = latent.rotated_dim};
  }
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const LayerCache cache = layer_cache(config, layer);
    traits.expert_layers +=
        config.layers[static_cast<std::size_t>(layer)].feed_forward == FeedForward::experts;
    if (cache.values == 0) {
      ++traits.linear_layers;
      continue;
    }
    traits.kv_values = cache.values;
    traits.window = std::max(traits.window, cache.window);
    ++(cache.window > 0 ? traits.window_layers : traits.full_layers);
  }
  NIBBLE_RETURN_IF_ERROR(check_size(traits));
  if (traits.linear_layers > 0) add_states(config, traits);
  std::array<WeightGroup, part_traits.size()> groups = {};
  for (WeightGroup& each : groups) each.split = false;
  visit_weights(config, [&](const Weight& weight) {
    add_weight(weight, groups[static_cast<std::size_t>(weight.part)]);
    add_conversion(weight, groups[static_cast<std::size_t>(weight.part)], traits);
    if (is_whole_on_gpus(weight)) traits.whole_on_gpus += stored_bytes(weight);
    if (weight.role == WeightRole::query) traits.dense_format = stored_format(weight.format);
    if (weight.role == WeightRole::expert_down) traits.expert_format = stored_format(weight.format);
  });
  for (std::size_t part = 0; part < groups.size(); ++part) {
    if (groups[part].bytes == 0) continue;
    groups[part].name = part_traits[part].name;
    groups[part].use = part_traits[part].use;
    traits.weights.push_back(groups[part]);
  }
  if (config.tie_word_embeddings) {
    WeightGroup& head = traits.weights.back();
    head.name = "embedding, lm_head";
    head.use = WeightUse::last_token;
  }
  return traits;
}

Result<ModelTraits> read_model_traits(const std::filesystem::path& folder, std::string name) {
  NIBBLE_ASSIGN(const ModelConfig config, read_model_config(folder));
  return traits_of(config, std::move(name));
}

}  // namespace nibble
