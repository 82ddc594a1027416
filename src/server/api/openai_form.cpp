#include "server/api/openai_form.h"

#include "server/api/generation_request.h"

namespace nibble::api {
namespace {

void add_token(JsonWriter& json, std::string_view spelled, std::string_view bytes, float logprob) {
  json.member("token", spelled).member("logprob", logprob);
  json.key("bytes").begin_array();
  for (const char byte : bytes) json.value(static_cast<int>(static_cast<unsigned char>(byte)));
  json.end_array();
}

std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::length:
    case FinishReason::cut: return "length";
    case FinishReason::cancelled: return "abort";
    default: return "stop";
  }
}

}  // namespace

OpenAiForm openai_form(const GenerationRequest& request) {
  using enum OpenAiForm::ChunkUsage;
  return {.logprobs = request.sampling.logprobs >= 0,
          .token_ids = request.return_token_ids,
          .named_call = request.tool_use.choice == ToolUse::Choice::named,
          .usage = !request.include_usage     ? none
                   : request.continuous_usage ? so_far
                                              : null};
}

void begin_openai(JsonWriter& json, const AnswerHead& head, std::string_view object) {
  json.begin_object()
      .member("id", std::string_view(head.id))
      .member("object", object)
      .member("created", head.created)
      .member("model", std::string_view(head.model))
      .key("choices")
      .begin_array();
}

void add_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage")
      .begin_object()
      .member("prompt_tokens", usage.prompt_tokens)
      .member("completion_tokens", usage.completion_tokens)
      .member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().member("cached_tokens", usage.cached_tokens).end_object();
  json.key("completion_tokens_details").begin_object().member("reasoning_tokens", usage.reasoning_tokens);
  if (usage.prediction) {
    json.member("accepted_prediction_tokens", usage.prediction->accepted)
        .member("rejected_prediction_tokens", usage.prediction->rejected);
  }
  json.end_object().end_object();
}

void add_chunk_usage(JsonWriter& json, OpenAiForm::ChunkUsage shown, const Usage& usage) {
  if (shown == OpenAiForm::ChunkUsage::null) json.key("usage").null();
  if (shown == OpenAiForm::ChunkUsage::so_far) add_usage(json, usage);
}

void add_finish_reason(JsonWriter& json, const ChoicePart& part, const OpenAiForm& form) {
  json.key("finish_reason");
  const bool calls =
      part.finish == FinishReason::stop && part.calls + part.new_calls() > 0 && !form.named_call;
  part.finish ? json.value(calls ? "tool_calls" : reason_name(*part.finish)) : json.null();
}

void add_ids(JsonWriter& json, std::string_view name, std::span<const TokenId> ids) {
  json.key(name).begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
}

void add_token_logprobs(JsonWriter& json, std::span<const TokenRecord> tokens, const Tokenizer& tokenizer) {
  json.begin_array();
  for (const TokenRecord& record : tokens) {
    json.begin_object();
    add_token(json, spelling(tokenizer, record.token), record.shown, record.logprob.value_or(0));
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& other : record.top) {
      json.begin_object();
      add_token(json, spelling(tokenizer, other.id), tokenizer.bytes(other.id), other.logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void add_prompt_logprobs(JsonWriter& json, const PromptLogprobs& prompt, const Tokenizer& tokenizer) {
  const auto add = [&](TokenLogprob token, std::size_t rank) {
    json.key(std::to_string(token.id)).begin_object().member("logprob", token.logprob).member("rank", rank);
    json.member("decoded_token", std::string_view(spelling(tokenizer, token.id))).end_object();
  };
  json.key("prompt_logprobs").begin_array();
  for (std::size_t i = 0; i < prompt.ids.size(); ++i) {
    if (i == 0) {
      json.null();
      continue;
    }
    const TokenId own = prompt.ids[i];
    const auto likeliest = std::span(prompt.top).subspan(i * prompt.count, prompt.count);
    std::size_t rank = static_cast<std::size_t>(prompt.ranks[i]);
    for (std::size_t at = 0; at < likeliest.size(); ++at) {
      if (likeliest[at].id == own) rank = at + 1;
    }
    json.begin_object();
    add({own, prompt.logprobs[i]}, rank);
    for (std::size_t at = 0; at < prompt.told; ++at) {
      if (likeliest[at].id != own) add(likeliest[at], at + 1);
    }
    json.end_object();
  }
  json.end_array();
}

std::string openai_end(const AnswerHead& head, std::string_view object, const OpenAiForm& form,
                       const Usage& usage) {
  std::string events;
  if (form.usage != OpenAiForm::ChunkUsage::none) {
    std::string text;
    JsonWriter json(text);
    begin_openai(json, head, object);
    json.end_array();
    add_usage(json, usage);
    json.end_object();
    events = sse(text);
  }
  return events += "data: [DONE]\n\n";
}

}  // namespace nibble::api
