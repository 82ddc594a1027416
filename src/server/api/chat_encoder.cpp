#include "server/api/chat_encoder.h"

#include "base/check.h"

namespace nibble::api {
namespace {

constexpr std::string_view chunk_object = "chat.completion.chunk";

void add_reasoning(JsonWriter& json, std::string_view reasoning) {
  json.member("reasoning_content", reasoning).member("reasoning", reasoning);  // both names are in use
}

// The calls that begin in these pieces, and what they add to those begun before; `first` is the number of the
// first new one. Of a stream each has its number, and its id and name only where it begins.
enum class Calls : bool { whole, streamed };
void add_calls(JsonWriter& json, std::span<const AnswerPiece> pieces, int first, Calls how) {
  int number = first - 1;
  bool any = false;
  for (std::size_t at = 0; at < pieces.size(); ++at) {
    const AnswerPiece& piece = pieces[at];
    const bool begins = piece.part == AnswerPart::call;
    if (!begins && piece.part != AnswerPart::arguments) continue;
    if (!any) json.key("tool_calls").begin_array();
    any = true;
    json.begin_object();
    if (begins) ++number;
    if (how == Calls::streamed) json.member("index", number);
    if (begins) json.member("id", std::string_view(piece.id)).member("type", "function");
    json.key("function").begin_object();
    if (begins) json.member("name", std::string_view(piece.text));
    std::string arguments = begins ? std::string() : piece.text;
    for (; at + 1 < pieces.size() && pieces[at + 1].part == AnswerPart::arguments; ++at)
      arguments += pieces[at + 1].text;
    json.member("arguments", std::string_view(arguments)).end_object().end_object();
  }
  if (any) json.end_array();
}

}  // namespace

void ChatEncoder::add_choice_end(JsonWriter& json, const ChoicePart& part) const {
  json.key("logprobs");
  if (form_.logprobs) {
    json.begin_object().key("content");
    add_token_logprobs(json, part.tokens, tokenizer_);
    json.key("refusal").null().end_object();
  } else {
    json.null();
  }
  add_finish_reason(json, part, form_);
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
    content.empty() && choice.new_calls() > 0 ? json.null() : json.value(content);
    json.key("refusal").null();
    const std::string reasoning = choice.text_of(AnswerPart::reasoning);
    if (!reasoning.empty()) add_reasoning(json, reasoning);
    add_calls(json, choice.pieces, 0, Calls::whole);
    json.end_object();
    add_choice_end(json, choice);
  }
  json.end_array();
  // The choices of a chat have one prompt.
  if (form_.token_ids) add_ids(json, "prompt_token_ids", choices.front().prompt_ids);
  if (choices.front().prompt) add_prompt_logprobs(json, *choices.front().prompt, tokenizer_);
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
  if (!content.empty() || (part.first && reasoning.empty() && part.new_calls() == 0)) {
    json.member("content", content);
  } else if (part.first && part.new_calls() > 0) {
    json.key("content").null();  // as OpenAI begins an answer that calls
  }
  add_calls(json, part.pieces, part.calls, Calls::streamed);
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
