#include "server/api/message_encoder.h"

#include "base/check.h"
#include "base/json.h"
#include "base/json_copy.h"

namespace nibble::api {
namespace {

std::string event(std::string_view type, std::string_view json) { return sse(type, json); }

// Tokens that came from the cache are no input tokens here: the two are added up by clients.
void add_usage_members(JsonWriter& json, const Usage& usage) {
  json.member("input_tokens", usage.prompt_tokens - usage.cached_tokens)
      .member("cache_creation_input_tokens", 0)
      .member("cache_read_input_tokens", usage.cached_tokens)
      .member("output_tokens", usage.completion_tokens);
}

void add_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  add_usage_members(json, usage);
  json.end_object();
}

void add_block(JsonWriter& json, AnswerPart part, std::string_view text) {
  json.begin_object();
  if (part == AnswerPart::reasoning) {
    // Nothing is signed: a thinking block that comes back is read as it stands.
    json.member("type", "thinking").member("thinking", text).member("signature", "");
  } else {
    json.member("type", "text").member("text", text);
  }
  json.end_object();
}

void begin_call(JsonWriter& json, const AnswerPiece& call) {
  json.begin_object().member("type", "tool_use").member("id", std::string_view(call.id));
  json.member("name", std::string_view(call.text));
}

struct DeltaNames {
  std::string_view type, member;
};
DeltaNames delta_names(AnswerPart part) {
  switch (part) {
    case AnswerPart::reasoning: return {"thinking_delta", "thinking"};
    case AnswerPart::arguments: return {"input_json_delta", "partial_json"};
    default: return {"text_delta", "text"};
  }
}

// What a tool gets must be an object; arguments that are none are told as they came.
void add_input(JsonWriter& json, const std::string& arguments) {
  json.key("input");
  const Result<JsonDocument> document = JsonDocument::parse(arguments.empty() ? "{}" : arguments);
  if (document.ok() && document->root().is_object()) return copy_json(document->root(), json);
  json.begin_object().member("arguments", arguments).end_object();
}

void begin_message(JsonWriter& json, const AnswerHead& head) {
  json.begin_object()
      .member("id", std::string_view(head.id))
      .member("type", "message")
      .member("role", "assistant")
      .member("model", std::string_view(head.model));
}

}  // namespace

void MessageEncoder::add_stop(JsonWriter& json, const ChoicePart& part, const Usage& usage) const {
  NIBBLE_CHECK(part.finish.has_value());
  std::string_view reason = "end_turn";
  if (!part.stop_string.empty()) {
    reason = "stop_sequence";
  } else if (leaves_off(*part.finish)) {
    const bool full = part.finish == FinishReason::length && usage.completion_tokens < max_tokens_;
    reason = full ? "model_context_window_exceeded" : "max_tokens";
  } else if (part.calls + part.new_calls() > 0) {
    reason = "tool_use";
  }
  json.member("stop_reason", reason).key("stop_sequence");
  part.stop_string.empty() ? json.null() : json.value(part.stop_string);
}

std::string MessageEncoder::whole(std::span<const ChoicePart> choices, const Usage& usage) {
  const ChoicePart& choice = choices.front();
  std::string text;
  JsonWriter json(text);
  begin_message(json, head());
  json.key("content").begin_array();
  for (std::size_t i = 0; i < choice.pieces.size(); ++i) {
    const AnswerPiece& piece = choice.pieces[i];
    if (piece.part != AnswerPart::call) {
      add_block(json, piece.part, piece.text);
      continue;
    }
    const bool has_arguments =
        i + 1 < choice.pieces.size() && choice.pieces[i + 1].part == AnswerPart::arguments;
    begin_call(json, piece);
    add_input(json, has_arguments ? choice.pieces[++i].text : std::string());
    json.end_object();
  }
  json.end_array();
  add_stop(json, choice, usage);
  add_usage(json, usage);
  json.end_object();
  return text;
}

std::string MessageEncoder::close_block() {
  if (!open_) return {};
  std::string events;
  // Clients wait for a signature at the end of thinking; it is as empty as the block's.
  if (open_ == AnswerPart::reasoning) events = delta(R"({"type":"signature_delta","signature":""})");
  open_.reset();
  std::string text;
  JsonWriter(text).begin_object().member("type", "content_block_stop").member("index", block_++).end_object();
  return events + event("content_block_stop", text);
}

std::string MessageEncoder::delta(std::string_view delta) const {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("type", "content_block_delta").member("index", block_);
  json.key("delta").raw(delta).end_object();
  return event("content_block_delta", text);
}

std::string MessageEncoder::part(const ChoicePart& part, const Usage& usage) {
  std::string events;
  if (!begun_) {
    // With the first token, for only then is it known how much of the prompt was cached.
    begun_ = true;
    std::string text;
    JsonWriter json(text);
    json.begin_object().member("type", "message_start").key("message");
    begin_message(json, head());
    json.key("content").begin_array().end_array();
    json.key("stop_reason").null().key("stop_sequence").null();
    add_usage(json, usage);
    json.end_object().end_object();
    events += event("message_start", text) + event("ping", R"({"type":"ping"})");
  }
  for (const AnswerPiece& piece : part.pieces) {
    const bool calls = piece.part == AnswerPart::call;
    // A call's block goes on with its arguments.
    const AnswerPart kind = piece.part == AnswerPart::arguments ? AnswerPart::call : piece.part;
    if (open_ != kind || calls) {
      events += close_block();
      open_ = kind;
      std::string text;
      JsonWriter json(text);
      json.begin_object().member("type", "content_block_start").member("index", block_).key("content_block");
      if (calls) {
        begin_call(json, piece);
        ++calls_;
        json.key("input").begin_object().end_object().end_object();
      } else {
        add_block(json, piece.part, "");
      }
      json.end_object();
      events += event("content_block_start", text);
    }
    if (calls) continue;
    const DeltaNames names = delta_names(piece.part);
    std::string text;
    JsonWriter(text).begin_object().member("type", names.type).member(names.member, piece.text).end_object();
    events += delta(text);
  }
  if (part.finish) {
    last_.calls = calls_;
    last_.finish = part.finish;
    last_.stop_string = part.stop_string;
  }
  return events;
}

std::string MessageEncoder::end(const Usage& usage) {
  std::string events = close_block();
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("type", "message_delta").key("delta").begin_object();
  add_stop(json, last_, usage);
  json.end_object();
  add_usage(json, usage);
  json.end_object();
  return events + event("message_delta", text) + event("message_stop", R"({"type":"message_stop"})");
}

std::string MessageEncoder::stream_failure(const ApiError& error) {
  return event("error", error.anthropic_json());
}

}  // namespace nibble::api
