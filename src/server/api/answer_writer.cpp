#include "server/api/answer_writer.h"

#include <algorithm>

#include "base/check.h"
#include "base/json_writer.h"
#include "base/utf8.h"
#include "server/api/characters.h"

namespace nibble::api {
namespace {

void add_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage")
      .begin_object()
      .member("prompt_tokens", usage.prompt_tokens)
      .member("completion_tokens", usage.completion_tokens)
      .member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().member("cached_tokens", usage.cached_tokens).end_object();
  json.key("completion_tokens_details")
      .begin_object()
      .member("reasoning_tokens", usage.reasoning_tokens)
      .end_object();
  json.end_object();
}

void add_reasoning(JsonWriter& json, std::string_view reasoning) {
  json.member("reasoning_content", reasoning).member("reasoning", reasoning);  // both names are in use
}

}  // namespace

std::string AnswerWriter::spelling(TokenId token) const { return to_valid_utf8(tokenizer_.bytes(token)); }

void AnswerWriter::begin(JsonWriter& json, bool stream) const {
  const bool chat = head_.endpoint == Endpoint::chat;
  const std::string_view object = !chat    ? "text_completion"
                                  : stream ? "chat.completion.chunk"
                                           : "chat.completion";
  json.begin_object()
      .member("id", std::string_view(head_.id))
      .member("object", object)
      .member("created", head_.created)
      .member("model", std::string_view(head_.model))
      .key("choices")
      .begin_array();
}

void AnswerWriter::add_token(JsonWriter& json, TokenId token, std::string_view bytes, float logprob) const {
  json.member("token", std::string_view(spelling(token))).member("logprob", logprob);
  json.key("bytes").begin_array();
  for (const char byte : bytes) json.value(static_cast<int>(static_cast<unsigned char>(byte)));
  json.end_array();
}

void AnswerWriter::add_chat_logprobs(JsonWriter& json, const ChoicePart& part) const {
  json.key("logprobs").begin_object().key("content").begin_array();
  for (const TokenRecord& record : part.tokens) {
    json.begin_object();
    add_token(json, record.token, record.shown, record.logprob.value_or(0));
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& other : record.top) {
      json.begin_object();
      add_token(json, other.id, tokenizer_.bytes(other.id), other.logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("refusal").null().end_object();
}

void AnswerWriter::add_completion_logprobs(JsonWriter& json, const ChoicePart& part) const {
  json.key("logprobs").begin_object();
  json.key("tokens").begin_array();
  for (const TokenRecord& record : part.tokens) json.value(std::string_view(spelling(record.token)));
  json.end_array().key("token_logprobs").begin_array();
  for (const TokenRecord& record : part.tokens) record.logprob ? json.value(*record.logprob) : json.null();
  json.end_array().key("top_logprobs").begin_array();
  for (const TokenRecord& record : part.tokens) {
    if (!record.logprob) {
      json.null();
      continue;
    }
    // Two tokens can be spelled alike once their bytes are text; the likelier one has the name. The chosen
    // one is told too where it is not among the likeliest.
    std::vector<std::string> names;
    const auto add = [&](TokenId token, float logprob) {
      std::string name = spelling(token);
      if (std::find(names.begin(), names.end(), name) != names.end()) return;
      json.key(name).value(logprob);
      names.push_back(std::move(name));
    };
    json.begin_object();
    for (const TokenLogprob& other : record.top) add(other.id, other.logprob);
    add(record.token, *record.logprob);
    json.end_object();
  }
  json.end_array().key("text_offset").begin_array();
  std::size_t offset = part.text_offset;
  for (const TokenRecord& record : part.tokens) {
    json.value(offset);
    offset += characters(spelling(record.token));
  }
  json.end_array().end_object();
}

void AnswerWriter::add_choice_end(JsonWriter& json, const ChoicePart& part) const {
  if (!form_.logprobs) {
    json.key("logprobs").null();
  } else if (head_.endpoint == Endpoint::chat) {
    add_chat_logprobs(json, part);
  } else {
    add_completion_logprobs(json, part);
  }
  json.key("finish_reason");
  part.finish_reason ? json.value(*part.finish_reason) : json.null();
  if (form_.token_ids) {
    if (head_.endpoint == Endpoint::completions && !part.prompt_ids.empty())
      add_ids(json, "prompt_token_ids", part.prompt_ids);
    add_ids(json, "token_ids", part.token_ids);
  }
  json.end_object();
}

void AnswerWriter::add_ids(JsonWriter& json, std::string_view name, std::span<const TokenId> ids) const {
  json.key(name).begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
}

std::string AnswerWriter::whole(std::span<const ChoicePart> choices, const Usage& usage) const {
  std::string text;
  JsonWriter json(text);
  begin(json, false);
  for (const ChoicePart& choice : choices) {
    NIBBLE_CHECK(choice.finish_reason.has_value());
    json.begin_object().member("index", choice.index);
    if (head_.endpoint == Endpoint::chat) {
      json.key("message")
          .begin_object()
          .member("role", "assistant")
          .member("content", std::string_view(choice.text));
      json.key("refusal").null();
      if (!choice.reasoning.empty()) add_reasoning(json, choice.reasoning);
      json.end_object();
    } else {
      json.member("text", std::string_view(choice.text));
    }
    add_choice_end(json, choice);
  }
  json.end_array();
  // The choices of a chat have one prompt.
  if (form_.token_ids && head_.endpoint == Endpoint::chat)
    add_ids(json, "prompt_token_ids", choices.front().prompt_ids);
  add_usage(json, usage);
  json.end_object();
  return text;
}

std::string AnswerWriter::chunk(const ChoicePart& part, bool first, ChunkUsage shown,
                                const Usage& usage) const {
  std::string text;
  JsonWriter json(text);
  begin(json, true);
  json.begin_object().member("index", part.index);
  if (head_.endpoint == Endpoint::chat) {
    json.key("delta").begin_object();
    if (first) json.member("role", "assistant");
    if (!part.reasoning.empty()) add_reasoning(json, part.reasoning);
    if (!part.text.empty() || (first && part.reasoning.empty()))
      json.member("content", std::string_view(part.text));
    json.end_object();
  } else {
    json.member("text", std::string_view(part.text));
  }
  add_choice_end(json, part);
  json.end_array();
  if (form_.token_ids && head_.endpoint == Endpoint::chat && !part.prompt_ids.empty())
    add_ids(json, "prompt_token_ids", part.prompt_ids);
  if (shown == ChunkUsage::null) json.key("usage").null();
  if (shown == ChunkUsage::so_far) add_usage(json, usage);
  json.end_object();
  return text;
}

std::size_t AnswerWriter::spelled_characters(std::span<const TokenRecord> tokens) const {
  std::size_t count = 0;
  for (const TokenRecord& record : tokens) count += characters(spelling(record.token));
  return count;
}

std::string AnswerWriter::usage_chunk(const Usage& usage) const {
  std::string text;
  JsonWriter json(text);
  begin(json, true);
  json.end_array();
  add_usage(json, usage);
  json.end_object();
  return text;
}

std::string sse(std::string_view json) {
  NIBBLE_CHECK(json.find_first_of("\r\n") == std::string_view::npos);
  std::string text = "data: ";
  text.append(json).append("\n\n");
  return text;
}

}  // namespace nibble::api
