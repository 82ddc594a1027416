// Kimi's tokenizer: ranks of tiktoken with 256 control tokens behind them. tokenizer_config.json names those
// that mean something; the others have reserved names, as the model's own code gives them.
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/quote.h"
#include "text/rank_file.h"
#include "text/split_scanners.h"

namespace nibble {
namespace {

constexpr std::size_t kControls = 256;
constexpr std::string_view kClass = "TikTokenTokenizer";

struct NamedControl {
  std::string spelling;
  bool special;
};

Result<std::map<std::size_t, NamedControl>> named_controls(JsonValue config) {
  const std::optional<JsonValue> tokens = config.find("added_tokens_decoder");
  if (!tokens || !tokens->is_object()) return broken_model("it has no added_tokens_decoder");
  std::map<std::size_t, NamedControl> named;
  for (const auto& [key, token] : tokens->members()) {
    std::size_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return broken_model("added_tokens_decoder has the key " + quote(key) + ", which is no token id");
    }
    const std::optional<JsonValue> content = token.find("content");
    if (!content || !content->is_string() || content->as_string().empty()) {
      return broken_model("added_tokens_decoder gives token " + std::to_string(id) + " no content");
    }
    const std::optional<JsonValue> special = token.find("special");
    named.insert(
        {id, {std::string(content->as_string()), !special || !special->is_bool() || special->as_bool()}});
  }
  return named;
}

// Of tokenizer_config.json, of which the pattern is known by the name of the tokenizer's class.
Result<std::vector<ControlToken>> controls_behind(std::size_t ranks, JsonValue config) {
  if (!config.is_object()) return broken_model("it is no JSON object");
  const std::optional<JsonValue> name = config.find("tokenizer_class");
  if (!name || !name->is_string() || name->as_string() != kClass) {
    return broken_model(
        "its tokenizer_class is not " + std::string(kClass) +
        ", Kimi's, so the pattern that splits text is not known; a tokenizer.json would say it");
  }
  NIBBLE_ASSIGN(const auto named, named_controls(config));
  std::vector<ControlToken> controls;
  std::map<std::string, std::size_t> spelled;
  for (std::size_t id = ranks; id < ranks + kControls; ++id) {
    const auto known = named.find(id);
    controls.push_back(
        known != named.end()
            ? ControlToken{static_cast<TokenId>(id), known->second.spelling, known->second.special}
            : ControlToken{static_cast<TokenId>(id), "<|reserved_token_" + std::to_string(id) + "|>"});
    const std::string& spelling = controls.back().spelling;
    if (const auto [other, is_new] = spelled.insert({spelling, id}); !is_new) {
      return broken_model("added_tokens_decoder spells tokens " + std::to_string(other->second) + " and " +
                          std::to_string(id) + " both " + quote(spelling));
    }
  }
  for (const auto& [id, control] : named) {
    if (id >= ranks && id < ranks + kControls) continue;
    return broken_model("added_tokens_decoder names token " + std::to_string(id) + ", which is none of the " +
                        std::to_string(kControls) + " behind the " + std::to_string(ranks) + " ranks");
  }
  return controls;
}

}  // namespace

Result<TokenizerParts> read_kimi_tokenizer(std::string_view ranks, std::string tokenizer_config) {
  NIBBLE_ASSIGN(RankFile file, read_rank_file(ranks));
  const auto in_config = [](const Status& status) {
    return status.with_context("tokenizer_config.json beside it");
  };
  const Result<JsonDocument> config = JsonDocument::parse(std::move(tokenizer_config));
  if (!config.ok()) return in_config(config.status());
  Result<std::vector<ControlToken>> controls = controls_behind(file.plain.size(), config->root());
  if (!controls.ok()) return in_config(controls.status());
  return parts_of_ranks(std::move(file), std::move(controls).value(), kKimiPattern, "Kimi");
}

}  // namespace nibble
