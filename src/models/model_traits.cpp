#include "models/model_traits.h"

#include <algorithm>
#include <array>

#include "base/quote.h"
#include "checkpoint/architecture.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/text_file.h"
#include "formats/mxfp4.h"
#include "models/delta_mixer.h"

namespace nibble {
namespace {

constexpr std::int64_t max_width = 1 << 20;
constexpr std::int64_t max_layers = 1024;
constexpr std::int64_t max_experts = 1 << 14;
constexpr std::int64_t max_vocab = 1 << 24;
constexpr std::int64_t max_positions = (std::int64_t{1} << 31) - 1;
constexpr std::size_t max_config_bytes = std::size_t{4} << 20;

// Bytes of a matrix as it is stored. An FP8 block is 128 x 128 with a float32 scale; the last of a row or
// column may be partial.
std::int64_t matrix_bytes(std::int64_t rows, std::int64_t cols, StoredFormat format) {
  switch (format) {
    case StoredFormat::bf16: return 2 * rows * cols;
    case StoredFormat::mxfp4: return rows * cols / 2 + rows * cols / mxfp4_block;
    case StoredFormat::nvfp4: return rows * cols / 2 + rows * cols / 16 + 8;
    case StoredFormat::fp8_block: return rows * cols + 4 * ((rows + 127) / 128) * ((cols + 127) / 128);
  }
  return 0;
}

// Matrices of one group, one after the other, `times` over.
struct Matrices {
  StoredFormat format = StoredFormat::bf16;
  std::int64_t times = 1;
  std::int64_t values = 0, bytes = 0;

  Matrices& add(std::int64_t rows, std::int64_t cols) {
    values += times * rows * cols;
    bytes += times * matrix_bytes(rows, cols, format);
    return *this;
  }
  // Vectors are stored as bfloat16 and count as no products.
  Matrices& vector(std::int64_t size, std::int64_t element_bytes = 2) {
    bytes += times * size * element_bytes;
    return *this;
  }
};

WeightGroup group(std::string_view name, const Matrices& of, WeightUse use, bool split) {
  return {.name = name, .values = of.values, .bytes = of.bytes, .use = use, .split = split};
}

void add_vocabulary(ModelTraits& traits, bool convertible) {
  const Matrices one = Matrices{}.add(traits.vocabulary, traits.hidden);
  if (!traits.tied) traits.weights.push_back(group("embedding", one, WeightUse::one_row, true));
  WeightGroup head = group(traits.tied ? "embedding, lm_head" : "lm_head", one, WeightUse::last_token, true);
  head.convertible = convertible;
  traits.weights.push_back(head);
}

// gate, up and down of `count` experts in every expert layer.
Matrices expert_matrices(const ModelTraits& traits, std::int64_t count, std::int64_t width,
                         StoredFormat format) {
  return Matrices{.format = format, .times = traits.expert_layers * count}
      .add(width, traits.hidden)
      .add(width, traits.hidden)
      .add(traits.hidden, width);
}

// What 63 bits and a planner can hold, checked before any product of sizes is used.
Status check_size(const ModelTraits& traits) {
  constexpr double most = 1e15;
  const double experts = 6.0 * static_cast<double>(traits.expert_layers) *
                         static_cast<double>(traits.experts) * static_cast<double>(traits.hidden) *
                         static_cast<double>(traits.expert_width);
  const double attention = 16.0 * static_cast<double>(traits.layers) * static_cast<double>(traits.hidden) *
                           static_cast<double>(traits.heads) * static_cast<double>(traits.query_dim);
  if (experts < most && attention < most) return {};
  return broken_model("config.json describes more than a petabyte of weights");
}

Status read_shape(const ConfigFields& fields, ModelTraits& traits) {
  NIBBLE_ASSIGN(traits.layers, fields.integer("num_hidden_layers", 1, max_layers));
  NIBBLE_ASSIGN(traits.hidden, fields.integer("hidden_size", 1, max_width));
  NIBBLE_ASSIGN(traits.vocabulary, fields.integer("vocab_size", 1, max_vocab));
  NIBBLE_ASSIGN(traits.max_positions, fields.integer("max_position_embeddings", 1, max_positions));
  NIBBLE_ASSIGN(traits.tied, fields.boolean_or("tie_word_embeddings", false));
  NIBBLE_ASSIGN(traits.heads, fields.integer("num_attention_heads", 1, 4096));
  NIBBLE_ASSIGN(traits.kv_heads, fields.integer("num_key_value_heads", 1, 4096));
  return {};
}

Status read_dense_format(const ConfigFields& fields, ModelTraits& traits) {
  const std::optional<JsonValue> quantization = fields.find("quantization_config");
  if (!quantization) return {};
  if (!quantization->is_object()) return fields.must_be("quantization_config", "an object", *quantization);
  NIBBLE_ASSIGN(const std::string method,
                ConfigFields(*quantization, "quantization_config").string("quant_method"));
  if (method != "fp8") {
    return broken_model("quantization_config.quant_method " + quote(method) +
                        " is not planned for; of this architecture bf16 and \"fp8\" are");
  }
  traits.expert_format = traits.dense_format = StoredFormat::fp8_block;
  return {};
}

void add_norms(ModelTraits& traits, std::int64_t values) {
  traits.weights.push_back(group("norms", Matrices{}.vector(values), WeightUse::every_token, false));
}

// Multi-head latent attention: queries through one bottleneck, keys and values through another.
Status add_latent_attention(const ConfigFields& fields, ModelTraits& traits) {
  NIBBLE_ASSIGN(const std::int64_t q_rank, fields.integer("q_lora_rank", 1, max_width));
  NIBBLE_ASSIGN(const std::int64_t kv_rank, fields.integer("kv_lora_rank", 1, max_width));
  NIBBLE_ASSIGN(const std::int64_t plain, fields.integer("qk_nope_head_dim", 1, 4096));
  NIBBLE_ASSIGN(const std::int64_t rotated, fields.integer("qk_rope_head_dim", 1, 4096));
  NIBBLE_ASSIGN(traits.value_dim, fields.integer("v_head_dim", 1, 4096));
  traits.attention = AttentionKind::latent;
  traits.query_dim = plain + rotated;
  traits.kv_values = kv_rank + rotated;
  NIBBLE_RETURN_IF_ERROR(check_size(traits));
  const Matrices matrices = Matrices{.format = traits.dense_format, .times = traits.layers}
                                .add(q_rank, traits.hidden)
                                .add(traits.heads * traits.query_dim, q_rank)
                                .add(kv_rank + rotated, traits.hidden)
                                .add(traits.heads * (plain + traits.value_dim), kv_rank)
                                .add(traits.hidden, traits.heads * traits.value_dim);
  traits.weights.push_back(group("attention", matrices, WeightUse::every_token, true));
  add_norms(traits, traits.layers * (2 * traits.hidden + q_rank + kv_rank) + traits.hidden);
  return {};
}

Result<ModelTraits> read_deepseek_v3(const ConfigFields& fields) {
  ModelTraits traits;
  NIBBLE_RETURN_IF_ERROR(read_shape(fields, traits));
  NIBBLE_RETURN_IF_ERROR(read_dense_format(fields, traits));
  NIBBLE_ASSIGN(traits.experts, fields.integer("n_routed_experts", 1, max_experts));
  NIBBLE_ASSIGN(traits.experts_per_token, fields.integer("num_experts_per_tok", 1, traits.experts));
  NIBBLE_ASSIGN(traits.expert_width, fields.integer("moe_intermediate_size", 1, max_width));
  NIBBLE_ASSIGN(const std::int64_t dense_layers,
                fields.integer_or("first_k_dense_replace", 0, traits.layers, 0));
  NIBBLE_ASSIGN(const std::int64_t dense_width, fields.integer("intermediate_size", 1, max_width));
  NIBBLE_ASSIGN(const std::int64_t shared, fields.integer_or("n_shared_experts", 0, 64, 0));
  traits.full_layers = traits.layers;
  traits.expert_layers = traits.layers - dense_layers;
  NIBBLE_RETURN_IF_ERROR(add_latent_attention(fields, traits));
  const Matrices dense = Matrices{.format = traits.dense_format, .times = dense_layers}
                             .add(dense_width, traits.hidden)
                             .add(dense_width, traits.hidden)
                             .add(traits.hidden, dense_width);
  traits.weights.push_back(group("dense layers", dense, WeightUse::every_token, true));
  // The correction bias is float32.
  const Matrices router =
      Matrices{.times = traits.expert_layers}.add(traits.experts, traits.hidden).vector(traits.experts, 4);
  traits.weights.push_back(group("router", router, WeightUse::every_token, false));
  traits.weights.push_back(
      group("shared expert", expert_matrices(traits, 1, shared * traits.expert_width, traits.dense_format),
            WeightUse::every_token, true));
  traits.weights.push_back(
      group("experts", expert_matrices(traits, traits.experts, traits.expert_width, traits.expert_format),
            WeightUse::by_expert, true));
  add_vocabulary(traits, false);
  return traits;
}

// Of a config whose weights are listed (checkpoint/architecture.h), in the order of WeightPart.
struct PartTraits {
  std::string_view name;
  WeightUse use;
};
constexpr std::array<PartTraits, 8> part_traits = {{{"attention", WeightUse::every_token},
                                                    {"linear attention", WeightUse::every_token},
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
    case TensorFormat::nvfp4:
    case TensorFormat::nvfp4_packed: return StoredFormat::nvfp4;
  }
  return StoredFormat::bf16;
}

void add_weight(const Weight& weight, WeightGroup& group) {
  const std::int64_t times = std::max<std::int64_t>(weight.own_experts, 1);
  if (weight.is_matrix()) group.values += times * weight.shape.count();
  visit_stored(weight, weight.own_experts > 0 ? weight.name_of(0) : weight.name,
               [&](const ExpectedTensor& tensor) {
                 if (!tensor.optional) group.bytes += times * tensor.bytes();
               });
  group.split = group.split || (weight.is_matrix() && weight.split != SplitAxis::none);
  if (weight.role == WeightRole::query || weight.role == WeightRole::lm_head)
    group.convertible = weight.format == TensorFormat::bf16;
}

// Of layers with a gated delta rule.
void add_states(const ModelConfig& config, ModelTraits& traits) {
  traits.delta = delta_shape(config);
  const DeltaShape& shape = traits.delta;
  const std::int64_t state = std::int64_t{shape.value_heads} * shape.key_dim * shape.value_dim;
  // In the mean half of a chunk is open: its rows are read, and a state is brought forward once a chunk.
  const std::int64_t open_row = shape.keys() + shape.values() + 2 * std::int64_t{shape.value_heads};
  traits.state_bytes = traits.linear_layers * delta_state_bytes(shape);
  traits.state_token_bytes = traits.linear_layers * 4 *
                             (state + 2 * state / delta_chunk + (delta_chunk / 2 + 1) * open_row +
                              std::int64_t{shape.taps} * shape.channels());
  traits.linear_flops = traits.linear_layers * 6 * state;
}

struct PlannedArchitecture {
  std::string_view name;
  Result<ModelTraits> (*read)(const ConfigFields& fields);
};
constexpr PlannedArchitecture planned[] = {
    {"DeepseekV3ForCausalLM", read_deepseek_v3},
};

Result<std::string> architecture_of(const ConfigFields& fields) {
  const std::optional<JsonValue> names = fields.find("architectures");
  if (!names) return fields.missing("architectures");
  if (!names->is_array() || names->size() != 1 || !(*names->elements().begin()).is_string())
    return fields.must_be("architectures", "a list of one name", *names);
  return std::string((*names->elements().begin()).as_string());
}

Result<ModelTraits> read_planned(const ConfigFields& fields, const std::string& architecture) {
  std::string known = architecture_names();
  for (const PlannedArchitecture& each : planned) {
    if (each.name == architecture) return each.read(fields);
    known += ", " + std::string(each.name);
  }
  return broken_model("the architecture " + quote(architecture) + " is not known; known are: " + known);
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
                     .expert_layers = config.num_hidden_layers,
                     .shared_width = config.shared_width};
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const LayerCache cache = layer_cache(config, layer);
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
    head.convertible = true;
  }
  return traits;
}

Result<ModelTraits> read_model_traits(const std::filesystem::path& folder, std::string name) {
  NIBBLE_ASSIGN(std::string text, read_text_file(folder / "config.json", max_config_bytes));
  Result<JsonDocument> document = JsonDocument::parse(
      std::move(text), {.max_bytes = max_config_bytes, .max_depth = 32, .max_values = 1 << 18});
  const auto in_file = [&](const Status& status) {
    return broken_model(status.message()).with_context("config.json").with_context(quote(folder.native()));
  };
  if (!document.ok()) return in_file(document.status());
  if (!document->root().is_object()) return in_file(broken_model("not a JSON object"));
  const ConfigFields fields(document->root());
  const Result<std::string> architecture = architecture_of(fields);
  if (!architecture.ok()) return in_file(architecture.status());
  if (find_architecture(*architecture) != nullptr) {
    NIBBLE_ASSIGN(const ModelConfig config, read_model_config(folder));
    return traits_of(config, std::move(name));
  }
  Result<ModelTraits> traits = read_planned(fields, *architecture);
  if (!traits.ok()) return in_file(traits.status());
  traits->name = std::move(name);
  traits->architecture = *architecture;
  return traits;
}

}  // namespace nibble
