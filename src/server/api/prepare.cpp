#include "server/api/prepare.h"

#include "base/json_writer.h"
#include "base/quote.h"
#include "server/api/chat_messages.h"
#include "server/api/field_reader.h"

namespace nibble::api {

ApiError no_such_model(std::string_view served) {
  return {.status = 404,
          .type = "not_found_error",
          .message = "there is no such model; the served one is " + quote(served),
          .param = "model",
          .code = "model_not_found"};
}

Refused Preparer::check_model(std::string_view name) const {
  if (name.empty() || name == served_name) return {};
  return no_such_model(served_name);
}

std::variant<ChatPrompt, ApiError> Preparer::render(ChatRequest chat,
                                                    const std::string& reasoning_effort) const {
  if (!text.chat) return bad_field("messages", ": this model has no chat template; use /v1/completions");
  chat.reasoning_effort = reasoning_effort;
  Result<ChatPrompt> rendered = text.chat->render(chat);
  if (rendered.ok()) return std::move(*rendered);
  const std::string& message = rendered.status().message();
  if (message.starts_with("reasoning_effort")) return bad_field("reasoning_effort", ": " + message);
  return bad_field("messages", ": " + message);
}

Refused Preparer::check_room(const PreparedPrompt& prompt, const GenerationRequest& request) const {
  const std::string field = request.endpoint == Endpoint::chat ? "messages" : "prompt";
  const int tokens = static_cast<int>(prompt.ids.size());
  if (tokens == 0) return bad_field(field, " has no tokens");
  const int most = model.max_model_len - (request.sampling.max_tokens == 0 ? 0 : 1);
  if (tokens <= most) return {};
  return ApiError{.message = "the prompt has " + std::to_string(tokens) + " tokens and the context holds " +
                             std::to_string(model.max_model_len) + "; shorten it",
                  .param = field,
                  .code = "context_length_exceeded"};
}

std::variant<PreparedRequest, ApiError> Preparer::generation(Endpoint endpoint, std::string body) const {
  auto parsed = parse_generation_request(endpoint, std::move(body), model.vocabulary);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  PreparedRequest prepared{
      .request = std::get<GenerationRequest>(std::move(parsed)), .prompts = {}, .stop = {}};
  GenerationRequest& request = prepared.request;
  if (Refused refused = check_model(request.model)) return std::move(*refused);
  if (endpoint == Endpoint::chat) {
    auto rendered = render({.messages = std::move(request.messages),
                            .add_generation_prompt = request.add_generation_prompt,
                            .template_variables = request.chat_template_kwargs},
                           request.reasoning_effort);
    if (auto* error = std::get_if<ApiError>(&rendered)) return std::move(*error);
    ChatPrompt& prompt = std::get<ChatPrompt>(rendered);
    prepared.prompts.push_back({.ids = std::move(prompt.ids), .format = prompt.format, .text = {}});
  }
  for (const Prompt& prompt : request.prompts) {
    PreparedPrompt made;
    if (const auto* given = std::get_if<std::string>(&prompt)) {
      made.ids = text.tokenizer.encode(*given);
      made.text = *given;
    } else {
      made.ids = std::get<std::vector<TokenId>>(prompt);
      if (request.echo) made.text = text.tokenizer.decode(made.ids);
    }
    prepared.prompts.push_back(std::move(made));
  }
  for (const PreparedPrompt& prompt : prepared.prompts) {
    if (Refused refused = check_room(prompt, request)) return std::move(*refused);
  }
  for (std::size_t i = 0; i < prepared.prompts.size() * static_cast<std::size_t>(request.n); ++i) {
    Result<StopStrings> stop = StopStrings::make(request.sampling.stop);
    if (!stop.ok()) return bad_field("stop", ": " + stop.status().message());
    prepared.stop.push_back(std::move(*stop));
  }
  return prepared;
}

// {"prompt"} or {"messages"}, which wins. `add_special_tokens` changes nothing: this tokenizer adds none of
// its own. Every field is checked, also where another one makes it idle.
std::variant<std::string, ApiError> Preparer::tokenize(std::string body) const {
  const Result<JsonDocument> document = JsonDocument::parse(std::move(body));
  if (!document.ok()) return bad_request(document.status().message(), "invalid_json");
  const JsonValue root = document->root();
  if (!root.is_object()) return bad_request("the body must be a JSON object", "invalid_json");
  const auto given = [&](std::string_view name) {
    const auto value = root.find(name);
    return value && !value->is_null() ? value : std::nullopt;
  };
  std::string model_name, prompt;
  ChatRequest chat;
  bool add_special_tokens = true, return_token_strs = false;
  for (const auto& [name, target] : {std::pair<const char*, std::string*>{"model", &model_name},
                                     std::pair<const char*, std::string*>{"prompt", &prompt}}) {
    if (const auto value = given(name)) {
      if (Refused refused = read_text(name, *value, *target)) return std::move(*refused);
    }
  }
  for (const auto& [name, target] :
       {std::pair<const char*, bool*>{"add_special_tokens", &add_special_tokens},
        std::pair<const char*, bool*>{"return_token_strs", &return_token_strs},
        std::pair<const char*, bool*>{"add_generation_prompt", &chat.add_generation_prompt}}) {
    if (const auto value = given(name)) {
      if (Refused refused = read_bool(name, *value, *target)) return std::move(*refused);
    }
  }
  if (Refused refused = check_model(model_name)) return std::move(*refused);
  std::vector<TokenId> ids;
  if (const auto messages = given("messages")) {
    if (Refused refused = read_messages(*messages, chat.messages)) return std::move(*refused);
    auto rendered = render(std::move(chat), {});
    if (auto* error = std::get_if<ApiError>(&rendered)) return std::move(*error);
    ids = std::move(std::get<ChatPrompt>(rendered).ids);
  } else {
    if (!given("prompt")) return bad_field("prompt", " must be a string");
    ids = text.tokenizer.encode(prompt);
  }
  std::string answer;
  JsonWriter json(answer);
  json.begin_object().member("count", ids.size()).key("tokens").begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
  if (return_token_strs) {
    json.key("token_strs").begin_array();
    for (const TokenId id : ids) json.value(text.tokenizer.bytes(id));
    json.end_array();
  }
  json.member("max_model_len", model.max_model_len).end_object();
  return answer;
}

std::variant<std::string, ApiError> Preparer::detokenize(std::string body) const {
  const Result<JsonDocument> document = JsonDocument::parse(std::move(body));
  if (!document.ok()) return bad_request(document.status().message(), "invalid_json");
  const auto tokens = document->root().find("tokens");
  if (!tokens || !tokens->is_array()) return bad_field("tokens", " must be an array of token ids");
  std::vector<TokenId> ids;
  for (const JsonValue value : tokens->elements()) {
    TokenId id = 0;
    if (Refused refused = read_integer("tokens[" + std::to_string(ids.size()) + "]", value, 0,
                                       text.tokenizer.vocabulary_size() - 1, id))
      return std::move(*refused);
    ids.push_back(id);
  }
  std::string answer;
  JsonWriter(answer)
      .begin_object()
      .member("prompt", std::string_view(text.tokenizer.decode(ids)))
      .end_object();
  return answer;
}

}  // namespace nibble::api
