#include "app/prompt_file.h"

#include <algorithm>
#include <charconv>

#include "base/quote.h"

namespace nibble {
namespace {

Result<std::vector<TokenId>> read_ids(JsonValue value) {
  constexpr std::string_view kWanted = "prompt_ids must be an array of token ids";
  if (!value.is_array()) return invalid_argument(std::string(kWanted));
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  for (const JsonValue element : value.elements()) {
    if (!element.is_integer() || element.as_integer() < 0 || element.as_integer() > INT32_MAX) {
      return invalid_argument(std::string(kWanted));
    }
    ids.push_back(static_cast<TokenId>(element.as_integer()));
  }
  return ids;
}

Result<Message> read_message(JsonValue value) {
  if (!value.is_object()) return invalid_argument("a message must be an object");
  const auto role = value.find("role");
  const auto content = value.find("content");
  if (!role || !role->is_string() || !content || !content->is_string()) {
    return invalid_argument("a message needs a role and a content, both strings");
  }
  const std::optional<Role> known = parse_role(role->as_string());
  if (!known) {
    return invalid_argument("the role " + quote(role->as_string()) +
                            " is unknown; use system, developer, user, assistant or tool");
  }
  for (const auto& [name, member] : value.members()) {
    if (name != "role" && name != "content") {
      return invalid_argument("a message has the unknown member " + quote(name) +
                              "; it takes role and content");
    }
  }
  Message message;
  message.role = *known;
  message.content = std::string(content->as_string());
  return message;
}

Result<std::vector<Message>> read_messages(JsonValue value) {
  if (!value.is_array() || value.size() == 0) {
    return invalid_argument("messages must be an array of at least one message");
  }
  std::vector<Message> messages;
  for (const JsonValue element : value.elements()) {
    NIBBLE_ASSIGN(Message message, read_message(element));
    messages.push_back(std::move(message));
  }
  return messages;
}

// Whether the member says what the prompt is; then it is read into `spec`.
Result<bool> read_prompt_member(std::string_view name, JsonValue value, PromptSpec& spec) {
  if (name == "prompt") {
    if (!value.is_string()) return invalid_argument("prompt must be a string");
    spec.kind = PromptSpec::Kind::text;
    spec.text = value.as_string();
  } else if (name == "prompt_ids") {
    spec.kind = PromptSpec::Kind::ids;
    NIBBLE_ASSIGN(spec.ids, read_ids(value));
  } else if (name == "messages") {
    spec.kind = PromptSpec::Kind::messages;
    NIBBLE_ASSIGN(spec.messages, read_messages(value));
  } else {
    return false;
  }
  return true;
}

Result<PromptSpec> parse_line(std::string_view line, const GenerationParams& defaults) {
  NIBBLE_ASSIGN(const JsonDocument document, JsonDocument::parse(std::string(line)));
  const JsonValue root = document.root();
  if (!root.is_object()) return invalid_argument("not a JSON object");
  PromptSpec spec;
  spec.params = defaults;
  int prompts = 0;
  for (const auto& [name, value] : root.members()) {
    if (name == "case") {
      if (!value.is_string()) return invalid_argument("case must be a string");
      spec.case_name = value.as_string();
      continue;
    }
    NIBBLE_ASSIGN(const bool prompt, read_prompt_member(name, value, spec));
    prompts += prompt ? 1 : 0;
    if (prompt) continue;
    NIBBLE_ASSIGN(const bool sampling, read_sampling_member(name, value, spec.params));
    if (!sampling) {
      return invalid_argument("unknown member " + quote(name) +
                              "; a line takes prompt, prompt_ids or messages, case, " +
                              sampling_member_names());
    }
  }
  if (prompts != 1) return invalid_argument("give exactly one of prompt, prompt_ids and messages");
  return spec;
}

}  // namespace

Result<std::vector<PromptSpec>> parse_prompts(std::string_view content, std::string_view name,
                                              const GenerationParams& defaults) {
  std::vector<PromptSpec> specs;
  std::size_t number = 0;
  while (!content.empty()) {
    ++number;
    const std::size_t end = std::min(content.find('\n'), content.size());
    const std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = "line " + std::to_string(number) + " of " + std::string(name);
    Result<PromptSpec> spec = parse_line(line, defaults);
    if (!spec.ok()) return invalid_argument(where + ": " + spec.status().message());
    spec->where = where;
    specs.push_back(std::move(*spec));
  }
  return specs;
}

Result<std::vector<TokenId>> parse_token_ids(std::string_view text) {
  std::vector<TokenId> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    while (at != end && *at == ' ') ++at;
    TokenId id = 0;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0) break;
    ids.push_back(id);
    at = stop;
    while (at != end && *at == ' ') ++at;
    if (at == end) return ids;
    if (*at++ != ',') break;
  }
  return invalid_argument("not a list of token ids; write it as 1,2,3");
}

}  // namespace nibble
