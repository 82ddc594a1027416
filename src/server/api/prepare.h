// From a request's bytes to what the engine gets: parsing, template, tokenizer, limits. Takes time, so it
// runs on the work queue; reads only what never changes while a model is served.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "engine/engine.h"
#include "server/api/field_reader.h"
#include "server/api/generation.h"
#include "text/chat_prompt.h"

namespace nibble::api {

// What a model's folder gave beside its weights.
struct ServedText {
  Tokenizer tokenizer;
  std::optional<ChatPrompter> chat;  // nothing: the model has no chat template
};

struct Preparer {
  const ServedText& text;
  const ModelInfo& model;
  const std::string& served_name;

  std::variant<PreparedRequest, ApiError> generation(Endpoint endpoint, std::string body) const;
  // The answer's JSON.
  std::variant<std::string, ApiError> tokenize(std::string body) const;
  std::variant<std::string, ApiError> detokenize(std::string body) const;

 private:
  Refused check_model(std::string_view name) const;
  std::variant<ChatPrompt, ApiError> render(ChatRequest chat, const std::string& reasoning_effort) const;
  Refused check_room(const PreparedPrompt& prompt, const GenerationRequest& request) const;
};

ApiError no_such_model(std::string_view served);

}  // namespace nibble::api
