#include "text/tokenizer_info.h"

#include <optional>
#include <string_view>

#include "base/file.h"
#include "base/json_copy.h"

namespace nibble {
namespace {

constexpr std::size_t most_config_bytes = std::size_t{32} << 20;
constexpr std::size_t most_template_bytes = std::size_t{1} << 20;

// Paths of files, which mean something on the machine alone that wrote them.
bool is_path(std::string_view name) {
  return name == "vocab_file" || name == "merges_file" || name == "name_or_path" || name == "tokenizer_file";
}

}  // namespace

Result<std::string> tokenizer_info(const std::filesystem::path& model_dir) {
  std::error_code error;
  std::string config_text = "{}";
  if (const auto path = model_dir / "tokenizer_config.json"; std::filesystem::exists(path, error)) {
    NIBBLE_ASSIGN(config_text, read_file(path, most_config_bytes));
  }
  std::optional<std::string> chat_template;
  if (const auto path = model_dir / "chat_template.jinja"; std::filesystem::exists(path, error)) {
    NIBBLE_ASSIGN(chat_template, read_file(path, most_template_bytes));
  }
  NIBBLE_ASSIGN(const JsonDocument config, JsonDocument::parse(std::move(config_text)));
  if (!config.root().is_object()) return broken_model("tokenizer_config.json is no JSON object");
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  bool has_class = false;
  for (const auto& [name, value] : config.root().members()) {
    if (is_path(name) || (name == "chat_template" && chat_template)) continue;
    has_class |= name == "tokenizer_class";
    json.key(name);
    copy_json(value, json);
  }
  if (!has_class) json.member("tokenizer_class", "PreTrainedTokenizerFast");
  if (chat_template) json.member("chat_template", std::string_view(*chat_template));
  json.end_object();
  return text;
}

}  // namespace nibble
