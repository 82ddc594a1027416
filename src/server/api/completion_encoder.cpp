#include "server/api/completion_encoder.h"

#include <algorithm>

#include "base/check.h"
#include "server/api/characters.h"

namespace nibble::api {
namespace {

constexpr std::string_view object = "text_completion";

}  // namespace

void CompletionEncoder::add_logprobs(JsonWriter& json, const ChoicePart& part) const {
  json.begin_object().key("tokens").begin_array();
  for (const TokenRecord& record : part.tokens) json.value(spelling(tokenizer_, record.token));
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
      std::string name = spelling(tokenizer_, token);
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
    offset += characters(spelling(tokenizer_, record.token));
  }
  json.end_array().end_object();
}

void CompletionEncoder::add_choice(JsonWriter& json, const ChoicePart& part) const {
  json.begin_object().member("index", part.index).member("text", part.text_of(AnswerPart::answer));
  json.key("logprobs");
  form_.logprobs ? add_logprobs(json, part) : static_cast<void>(json.null());
  add_finish_reason(json, part, form_);
  if (part.prompt) add_prompt_logprobs(json, *part.prompt, tokenizer_);
  if (form_.token_ids) {
    if (!part.prompt_ids.empty()) add_ids(json, "prompt_token_ids", part.prompt_ids);
    add_ids(json, "token_ids", part.token_ids);
  }
  json.end_object();
}

std::string CompletionEncoder::whole(std::span<const ChoicePart> choices, const Usage& usage) {
  std::string text;
  JsonWriter json(text);
  begin_openai(json, head(), object);
  for (const ChoicePart& choice : choices) {
    NIBBLE_CHECK(choice.finish.has_value());
    add_choice(json, choice);
  }
  json.end_array();
  add_usage(json, usage);
  json.end_object();
  return text;
}

std::string CompletionEncoder::part(const ChoicePart& part, const Usage& usage) {
  std::string text;
  JsonWriter json(text);
  begin_openai(json, head(), object);
  add_choice(json, part);
  json.end_array();
  add_chunk_usage(json, form_.usage, usage);
  json.end_object();
  return sse(text);
}

std::string CompletionEncoder::end(const Usage& usage) { return openai_end(head(), object, form_, usage); }

}  // namespace nibble::api
