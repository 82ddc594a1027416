#include "server/api/chat_encoder.h"

#include "base/check.h"

namespace nibble::api {
namespace {

constexpr std::string_view chunk_object = "chat.completion.chunk";

void add_reasoning(JsonWriter& json, std::string_view reasoning) {
  json.member("reasoning_content", reasoning).member("reasoning", reasoning);  // both names are in use
}

}  // namespace

// A call's beginning has its id, type and name; what adds to it has its index and more of its arguments.
void ChatEncoder::add_calls(JsonWriter& json, const ChoicePart& part, bool streamed) const {
  bool any = false;
  int call = part.calls_before - 1;
  for (std::size_t i = 0; i < part.pieces.size(); ++i) {
    const AnswerPiece& piece = part.pieces[i];
    if (piece.part != AnswerPart::call && piece.part != AnswerPart::arguments) continue;
    if (!any) json.key("tool_calls").begin_array();
    any = true;
    if (piece.part == AnswerPart::call) ++call;
    json.begin_object();
    if (streamed) json.member("index", call);
    if (piece.part == AnswerPart::call)
      json.member("id", call_id("call_", head(), part.index, call)).member("type", "function");
    json.key("function").begin_object();
    std::string_view arguments = piece.part == AnswerPart::arguments ? std::string_view(piece.text) : "";
    if (piece.part == AnswerPart::call) {
      json.member("name", piece.text);
      if (i + 1 < part.pieces.size() && part.pieces[i + 1].part == AnswerPart::arguments)
        arguments = part.pieces[++i].text;
    }
    json.member("arguments", arguments);
    json.end_object().end_object();
  }
  if (any) json.end_array();
}

void ChatEncoder::add_choice_end(JsonWriter& json, const ChoicePart& part) const {
  json.key("logprobs");
  if (form_.logprobs) {
    json.begin_object().key("content");
    add_token_logprobs(json, part.tokens, tokenizer_);
    json.key("refusal").null().end_object();
  } else {
    json.null();
  }
  add_finish_reason(json, part);
  if (form_.token_ids) add_ids(json, "token_ids", part.token_ids);
  json.end_object();
}

std::string ChatEncoder::whole(std::span<const ChoicePart> choices, const Usage& usage) {
  std::string text;
  JsonWriter json(text);
  begin_openai(json, head(), "chat.completion");
  for (const ChoicePart& choice : choices) {
    NIBBLE_CHECK(choice.finish.has_value());
    json.begin_object().member("index", choice.index).key("message").begin_object();
    const std::string content = choice.text_of(AnswerPart::answer);
    json.member("role", "assistant").key("content");
    content.empty() && choice.calls() > 0 ? json.null() : json.value(content);
    json.key("refusal").null();
    add_calls(json, choice, /*streamed=*/false);
    const std::string reasoning = choice.text_of(AnswerPart::reasoning);
    if (!reasoning.empty()) add_reasoning(json, reasoning);
    json.end_object();
    add_choice_end(json, choice);
  }
  json.end_array();
  // The choices of a chat have one prompt.
  if (form_.token_ids) add_ids(json, "prompt_token_ids", choices.front().prompt_ids);
  add_usage(json, usage);
  json.end_object();
  return text;
}

std::string ChatEncoder::part(const ChoicePart& part, const Usage& usage) {
  const std::string content = part.text_of(AnswerPart::answer);
  const std::string reasoning = part.text_of(AnswerPart::reasoning);
  std::string text;
  JsonWriter json(text);
  begin_openai(json, head(), chunk_object);
  json.begin_object().member("index", part.index).key("delta").begin_object();
  if (part.first) json.member("role", "assistant");
  if (!reasoning.empty()) add_reasoning(json, reasoning);
  if (!content.empty() || (part.first && reasoning.empty())) json.member("content", content);
  add_calls(json, part, /*streamed=*/true);
  json.end_object();
  add_choice_end(json, part);
  json.end_array();
  if (form_.token_ids && !part.prompt_ids.empty()) add_ids(json, "prompt_token_ids", part.prompt_ids);
  add_chunk_usage(json, form_.usage, usage);
  json.end_object();
  return sse(text);
}

std::string ChatEncoder::end(const Usage& usage) { return openai_end(head(), chunk_object, form_, usage); }

}  // namespace nibble::api
