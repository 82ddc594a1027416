#include "checkpoint/model_config.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/quote.h"
#include "checkpoint/architectures.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/text_file.h"

namespace nibble {
namespace {

struct Architecture {
  std::string_view name;
  Result<ModelConfig> (*parse)(const ConfigFields& fields);
};
constexpr std::array architectures = {
    Architecture{"GptOssForCausalLM", parse_gpt_oss_config},
};

// Generous for a config.json, far below what could hurt.
constexpr JsonLimits config_limits{.max_bytes = std::size_t{4} << 20, .max_depth = 32, .max_values = 1 << 18};

Result<JsonDocument> parse_object(std::string text) {
  Result<JsonDocument> document = JsonDocument::parse(std::move(text), config_limits);
  if (!document.ok()) return broken_model(document.status().message());
  if (!document->root().is_object()) return broken_model("not a JSON object");
  return document;
}

Result<const Architecture*> find_architecture(const ConfigFields& fields) {
  const std::optional<JsonValue> names = fields.find("architectures");
  if (!names) return fields.missing("architectures");
  if (!names->is_array() || names->size() != 1 || !(*names->elements().begin()).is_string()) {
    return fields.must_be("architectures", "a list of one name", *names);
  }
  const std::string_view name = (*names->elements().begin()).as_string();
  std::string supported;
  for (const Architecture& architecture : architectures) {
    if (architecture.name == name) return &architecture;
    supported += (supported.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return broken_model("the architecture " + quote(name) + " is not supported; supported are: " + supported);
}

// Adds the ids of eos_token_id: one, or a list of them.
Status add_eos_ids(const ConfigFields& fields, ModelConfig& config) {
  const std::optional<JsonValue> value = fields.find("eos_token_id");
  if (!value) return {};
  const auto add = [&](const JsonValue& id) {
    if (!id.is_integer() || id.as_integer() < 0 || id.as_integer() >= config.vocab_size) return false;
    config.eos_token_ids.push_back(static_cast<TokenId>(id.as_integer()));
    return true;
  };
  const std::string what =
      "an id below vocab_size (" + std::to_string(config.vocab_size) + ") or a list of such ids";
  if (!value->is_array()) {
    if (!add(*value)) return fields.must_be("eos_token_id", what, *value);
    return {};
  }
  for (const JsonValue& id : value->elements()) {
    if (!add(id)) return fields.must_be("eos_token_id", what, id);
  }
  return {};
}

}  // namespace

std::string_view layer_type_name(LayerType type) {
  return type == LayerType::full_attention ? "full_attention" : "sliding_attention";
}

Result<ModelConfig> parse_model_config(std::string config_text, std::string generation_text) {
  const auto in_file = [](const char* file, const Status& status) { return status.with_context(file); };
  Result<JsonDocument> document = parse_object(std::move(config_text));
  if (!document.ok()) return in_file("config.json", document.status());
  const ConfigFields fields(document->root());
  const Result<const Architecture*> architecture = find_architecture(fields);
  if (!architecture.ok()) return in_file("config.json", architecture.status());
  Result<ModelConfig> config = (*architecture)->parse(fields);
  if (!config.ok()) return in_file("config.json", config.status());
  config->architecture = (*architecture)->name;
  if (const Status status = add_eos_ids(fields, *config); !status.ok()) return in_file("config.json", status);

  if (!generation_text.empty()) {
    Result<JsonDocument> generation = parse_object(std::move(generation_text));
    if (!generation.ok()) return in_file("generation_config.json", generation.status());
    const Status status = add_eos_ids(ConfigFields(generation->root()), *config);
    if (!status.ok()) return in_file("generation_config.json", status);
  }
  std::vector<TokenId>& ids = config->eos_token_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.empty()) {
    return broken_model(
        "neither config.json nor generation_config.json names an eos_token_id: no answer would end");
  }
  return config;
}

Result<ModelConfig> read_model_config(const std::filesystem::path& folder) {
  NIBBLE_ASSIGN(std::string config, read_text_file(folder / "config.json", config_limits.max_bytes));
  std::string generation;
  std::error_code ignored;
  if (std::filesystem::exists(folder / "generation_config.json", ignored)) {
    NIBBLE_ASSIGN(generation, read_text_file(folder / "generation_config.json", config_limits.max_bytes));
  }
  Result<ModelConfig> parsed = parse_model_config(std::move(config), std::move(generation));
  if (!parsed.ok()) return parsed.status().with_context(quote(folder.native()));
  return parsed;
}

}  // namespace nibble
