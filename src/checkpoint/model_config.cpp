#include "checkpoint/model_config.h"

#include <algorithm>

#include "base/json.h"
#include "base/quote.h"
#include "checkpoint/architecture.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/text_file.h"

namespace nibble {
namespace {

// Generous for a config.json, far below what could hurt.
constexpr JsonLimits config_limits{.max_bytes = std::size_t{4} << 20, .max_depth = 32, .max_values = 1 << 18};

Result<JsonDocument> parse_object(std::string text) {
  Result<JsonDocument> document = JsonDocument::parse(std::move(text), config_limits);
  if (!document.ok()) return broken_model(document.status().message());
  if (!document->root().is_object()) return broken_model("not a JSON object");
  return document;
}

Result<const Architecture*> architecture_of(const ConfigFields& fields) {
  const std::optional<JsonValue> names = fields.find("architectures");
  if (!names) return fields.missing("architectures");
  if (!names->is_array() || names->size() != 1 || !(*names->elements().begin()).is_string()) {
    return fields.must_be("architectures", "a list of one name", *names);
  }
  const std::string_view name = (*names->elements().begin()).as_string();
  if (const Architecture* architecture = find_architecture(name)) return architecture;
  return broken_model("the architecture " + quote(name) +
                      " is not supported; supported are: " + architecture_names());
}

// What an object says of formats; a scheme without a method where there is none.
Result<QuantizationScheme> quantization_in(const ConfigFields& fields, const char* name,
                                           std::string_view only_method) {
  const std::optional<JsonValue> object = fields.find(name);
  if (!object) return QuantizationScheme{};
  if (!object->is_object()) return fields.must_be(name, "an object", *object);
  const ConfigFields inner(*object, name);
  const std::optional<JsonValue> method = inner.find("quant_method");
  if (!only_method.empty() && method && method->is_string() && method->as_string() != only_method) {
    return broken_model(std::string(name) + ".quant_method must be " + quote(only_method) + ", not " +
                        quote(method->as_string()));
  }
  return read_quantization(inner);
}

// Configs of models that see as well as read keep the text's fields in an object of their own.
std::optional<ConfigFields> text_fields(const ConfigFields& fields) {
  const std::optional<JsonValue> text = fields.find("text_config");
  if (!text || !text->is_object()) return std::nullopt;
  return ConfigFields(*text, "text_config");
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

Result<ModelConfig> parse_model_config(std::string config_text, std::string generation_text,
                                       std::string quantization_text) {
  const auto in_file = [](const char* file, const Status& status) { return status.with_context(file); };
  Result<JsonDocument> document = parse_object(std::move(config_text));
  if (!document.ok()) return in_file("config.json", document.status());
  const ConfigFields fields(document->root());
  const Result<const Architecture*> architecture = architecture_of(fields);
  if (!architecture.ok()) return in_file("config.json", architecture.status());
  Result<QuantizationScheme> quantization =
      quantization_in(fields, "quantization_config", (*architecture)->only_method);
  if (!quantization.ok()) return in_file("config.json", quantization.status());
  const std::optional<ConfigFields> text = text_fields(fields);
  if (quantization->method.empty() && text) {
    quantization = quantization_in(*text, "quantization_config", (*architecture)->only_method);
    if (!quantization.ok()) return in_file("config.json", quantization.status());
  }
  if (quantization->method.empty() && !quantization_text.empty()) {
    const Result<JsonDocument> beside = parse_object(std::move(quantization_text));
    if (!beside.ok()) return in_file("hf_quant_config.json", beside.status());
    quantization =
        quantization_in(ConfigFields(beside->root()), "quantization", (*architecture)->only_method);
    if (!quantization.ok()) return in_file("hf_quant_config.json", quantization.status());
  }
  Result<ModelConfig> config = (*architecture)->parse(fields, std::move(quantization).value());
  if (!config.ok()) return in_file("config.json", config.status());
  config->architecture = (*architecture)->name;
  if (const Status status = add_eos_ids(fields, *config); !status.ok()) return in_file("config.json", status);
  if (text) {
    if (const Status status = add_eos_ids(*text, *config); !status.ok())
      return in_file("config.json", status);
  }

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
  const auto read_if_there = [&](const char* name) -> Result<std::string> {
    std::error_code ignored;
    if (!std::filesystem::exists(folder / name, ignored)) return std::string();
    return read_text_file(folder / name, config_limits.max_bytes);
  };
  NIBBLE_ASSIGN(std::string generation, read_if_there("generation_config.json"));
  NIBBLE_ASSIGN(std::string quantization, read_if_there("hf_quant_config.json"));
  Result<ModelConfig> parsed =
      parse_model_config(std::move(config), std::move(generation), std::move(quantization));
  if (!parsed.ok()) return parsed.status().with_context(quote(folder.native()));
  return parsed;
}

}  // namespace nibble
