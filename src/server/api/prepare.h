// From a request's bytes to what the engine gets: parsing, template, tokenizer, limits. Takes time, so it
// runs on the work queue; reads only what never changes while a model is served.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "server/api/field_reader.h"
#include "server/api/generation.h"
#include "server/api/grammar_cache.h"
#include "server/api/request_memory.h"
#include "server/api/sampling_defaults.h"
#include "text/chat_prompt.h"

namespace nibble::api {

// What a model's folder gave beside its weights.
struct ServedText {
  Tokenizer tokenizer;
  std::optional<ChatPrompter> chat;  // nothing: the model has no chat template
  std::string tokenizer_info;        // JSON (text/tokenizer_info.h)
  SamplingDefaults sampling;
  // Of chat templates that requests bring: whether they are rendered, and the day that they are told.
  bool renders_client_templates = false;
  std::optional<Day> date;
  std::vector<Choice> plan_rows;  // of the plan that is told, behind the engine's: how answers are read
};

// A request that was read, and what it holds until it is prepared.
struct ParsedRequest {
  GenerationRequest request;
  RequestMemory::Share memory;
};

struct Preparer {
  const ServedText& text;
  const ModelInfo& model;
  const std::string& served_name;
  GrammarCache& grammars;

  // Of a body and its share of the memory, which the request takes over.
  std::variant<ParsedRequest, ApiError> parse(Endpoint endpoint, std::string body,
                                              RequestMemory::Share memory) const;
  // `before`: the conversation that a response goes on from; may be null.
  std::variant<PreparedRequest, ApiError> prepare(ParsedRequest parsed,
                                                  const std::vector<Message>* before = nullptr) const;
  // The answer's JSON.
  std::variant<std::string, ApiError> tokenize(std::string body, RequestMemory::Share memory) const;
  std::variant<std::string, ApiError> count_message_tokens(std::string body,
                                                           RequestMemory::Share memory) const;
  std::variant<std::string, ApiError> count_input_tokens(std::string body, RequestMemory::Share memory) const;
  std::variant<std::string, ApiError> detokenize(std::string body, RequestMemory::Share memory) const;

 private:
  Refused check_model(std::string_view name) const;
  std::variant<ChatPrompter, ApiError> client_template(const std::string& source) const;
  std::variant<ChatPrompt, ApiError> render(ChatRequest chat, const GenerationRequest& request) const;
  std::variant<ChatPrompt, ApiError> render_conversation(GenerationRequest& request,
                                                         const std::vector<Message>* before) const;
  std::variant<std::string, ApiError> count_tokens(Endpoint endpoint, std::string_view name, std::string body,
                                                   RequestMemory::Share memory) const;
  std::vector<TokenId> encode(std::string_view prompt, TextTokens how) const;
  PreparedPrompt prepared_prompt(Prompt prompt, const GenerationRequest& request) const;
  Refused compile_rules(PreparedRequest& prepared) const;
  Refused compile_format(const TextFormat& asked, PreparedRequest& prepared) const;
  std::variant<ChatPrompt, ApiError> render_messages(std::vector<Message> messages,
                                                     const GenerationRequest& request) const;
  // Without the oldest turns, as few of them as must go. Nothing: there is one turn alone.
  std::optional<std::variant<ChatPrompt, ApiError>> render_later_turns(
      const std::vector<Message>& messages, const GenerationRequest& request) const;
  Refused check_room(std::size_t prompt_tokens, const GenerationRequest& request) const;
};

// 503: too much is held already.
ApiError no_room();
ApiError no_such_model(std::string_view served);

}  // namespace nibble::api
