#include "server/api/generation_request.h"

#include <algorithm>

#include "server/api/messages_request.h"
#include "server/api/request_fields.h"
#include "server/api/responses_request.h"
#include "server/api/tool_fields.h"

namespace nibble::api {
namespace {

// What holds between fields.
Refused check_together(const Reading& reading) {
  GenerationRequest& request = reading.request;
  if (request.endpoint == Endpoint::responses) return check_responses(reading);
  if (request.endpoint == Endpoint::messages) return check_messages(reading);
  Sampling& sampling = request.sampling;
  const bool chat = request.endpoint == Endpoint::chat;
  if (chat && request.messages.empty())
    return bad_field("messages", " must be an array of at least one message");
  if (!chat && request.prompts.empty()) return bad_field("prompt", " must be there");
  if (request.has_stream_options && !request.stream)
    return bad_field("stream_options", " goes with stream: true only");
  if (request.prompt_logprobs >= 0 && request.stream)
    return bad_field("prompt_logprobs", " goes with stream: false only");
  if (request.continue_final_message && request.add_generation_prompt) {
    return bad_field("continue_final_message",
                     " needs add_generation_prompt: false, for the answer begins no message of its own");
  }
  if (reading.best_of && *reading.best_of != request.n) return bad_field("best_of", " must be equal to n");
  if (reading.top_logprobs.value_or(0) > 0 && !reading.wants_logprobs)
    return bad_field("top_logprobs", " needs logprobs: true");
  if (chat && reading.wants_logprobs) sampling.logprobs = reading.top_logprobs.value_or(0);
  if (sampling.constrained_logprobs && sampling.logprobs < 0)
    return bad_field("constrained_logprobs", " needs logprobs");
  if (reading.max_completion_tokens)
    sampling.max_tokens = reading.max_completion_tokens;  // the newer name wins
  if (!chat && !sampling.max_tokens) sampling.max_tokens = default_completion_tokens;
  if (request.format.kind != TextFormat::Kind::text && sampling.ignore_eos) {
    return bad_field("ignore_eos",
                     " cannot be had beside " + request.format.field + ", which says where the answer ends");
  }
  if (sampling.max_tokens == 0 && !request.echo)
    return bad_field("max_tokens", " may be 0 only with echo: true");
  if (sampling.max_tokens && sampling.min_tokens > *sampling.max_tokens)
    return bad_field("min_tokens", " must be at most max_tokens");
  if (static_cast<std::size_t>(request.n) * std::max<std::size_t>(request.prompts.size(), 1) > most_choices) {
    return bad_field("n", " times the number of prompts must be at most " + std::to_string(most_choices));
  }
  return {};
}

}  // namespace

std::variant<GenerationRequest, ApiError> parse_generation_request(Endpoint endpoint, std::string body,
                                                                   TokenId vocabulary) {
  Result<JsonDocument> document = JsonDocument::parse(std::move(body));
  if (!document.ok()) return bad_request(document.status().message(), "invalid_json");
  if (!document->root().is_object()) return bad_request("the body must be a JSON object", "invalid_json");
  GenerationRequest request{.endpoint = endpoint, .body = std::move(*document)};
  // A message's reasoning is shown where it is asked for.
  request.include_reasoning = endpoint != Endpoint::messages;
  Reading reading{.request = request, .vocabulary = vocabulary};
  for (const auto& [name, value] : request.body.root().members()) {
    const FieldRule* rule = find_field(endpoint, name);
    if (rule == nullptr) {
      constexpr std::size_t most_names = 64, longest_name = 256;  // that are worth naming
      if (request.ignored.size() < most_names && name.size() <= longest_name)
        request.ignored.emplace_back(name);
      continue;
    }
    if (value.is_null()) continue;  // as if it were absent
    if (Refused refused = read_field(*rule, reading, value)) return *refused;
  }
  if (Refused refused = check_together(reading)) return *refused;
  if (Refused refused = check_tool_choice(request)) return *refused;
  return request;
}

}  // namespace nibble::api
