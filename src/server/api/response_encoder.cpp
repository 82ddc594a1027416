#include "server/api/response_encoder.h"

#include <algorithm>

#include "base/check.h"
#include "server/api/generation_request.h"
#include "server/api/openai_form.h"
#include "server/api/reasoning_text.h"

namespace nibble::api {
namespace {

void add_response_usage(JsonWriter& json, const Usage& usage) {
  json.begin_object().member("input_tokens", usage.prompt_tokens);
  json.key("input_tokens_details")
      .begin_object()
      .member("cached_tokens", usage.cached_tokens)
      .member("cache_write_tokens", 0)
      .end_object();
  json.member("output_tokens", usage.completion_tokens);
  json.key("output_tokens_details")
      .begin_object()
      .member("reasoning_tokens", usage.reasoning_tokens)
      .end_object();
  json.member("total_tokens", usage.prompt_tokens + usage.completion_tokens).end_object();
}

void add_typed_text(JsonWriter& json, std::string_view type, std::string_view text) {
  json.begin_object().member("type", type).member("text", text).end_object();
}

}  // namespace

ResponseEncoder::ResponseEncoder(AnswerHead head, const GenerationRequest& request,
                                 const Tokenizer& tokenizer, const Clock& clock, Keep keep)
    : AnswerEncoder(std::move(head)),
      tokenizer_(tokenizer),
      clock_(clock),
      asked_{.instructions = request.instructions,
             .max_output_tokens = request.sampling.max_tokens,
             .temperature = request.sampling.temperature.value_or(1),
             .top_p = request.sampling.top_p.value_or(1),
             .logprobs = request.sampling.logprobs,
             .parallel_tool_calls = request.tool_use.parallel,
             .effort = request.reasoning_effort,
             .options = request.response},
      keep_(std::move(keep)) {
  asked_.options.input_items.clear();
  asked_.options.conversation.reset();
}

std::string_view ResponseEncoder::status() const {
  if (finish_ && leaves_off(*finish_)) return "incomplete";
  return finish_ == FinishReason::cancelled ? "cancelled" : "completed";
}

void ResponseEncoder::add_text_part(JsonWriter& json, const Item& item) const {
  if (item.part == AnswerPart::reasoning) {
    add_typed_text(json, asked_.options.summary ? "summary_text" : "reasoning_text", item.text);
    return;
  }
  json.begin_object().member("type", "output_text").key("annotations").begin_array().end_array();
  json.key("logprobs");
  add_token_logprobs(json, item.tokens, tokenizer_);
  json.member("text", item.text).end_object();
}

void ResponseEncoder::add_item(JsonWriter& json, const Item& item, std::string_view status) const {
  json.begin_object().member("id", item.id);
  const bool begun = status != "in_progress";
  if (item.part == AnswerPart::call) {
    json.member("type", "function_call").member("status", status).member("call_id", item.call_id);
    json.member("name", item.name).member("arguments", item.text).end_object();
    return;
  }
  if (item.part == AnswerPart::answer) {
    json.member("type", "message").member("status", status).member("role", "assistant");
    json.key("content").begin_array();
    if (begun) add_text_part(json, item);
    json.end_array().end_object();
    return;
  }
  json.member("type", "reasoning").key("summary").begin_array();
  if (begun && asked_.options.summary) add_text_part(json, item);
  json.end_array();
  if (!asked_.options.summary) {
    json.key("content").begin_array();
    if (begun) add_text_part(json, item);
    json.end_array();
  }
  if (begun && asked_.options.encrypted_reasoning)
    json.member("encrypted_content", wrapped_reasoning(item.text));
  json.member("status", status).end_object();
}

// What was asked, as it is told back.
void ResponseEncoder::add_asked(JsonWriter& json) const {
  const ResponseOptions& options = asked_.options;
  json.member("background", options.background).key("instructions");
  asked_.instructions ? json.value(*asked_.instructions) : json.null();
  json.key("max_output_tokens");
  asked_.max_output_tokens ? json.value(*asked_.max_output_tokens) : json.null();
  json.key("max_tool_calls").null().key("metadata").raw(options.metadata);
  json.member("model", std::string_view(head().model));
  json.member("parallel_tool_calls", asked_.parallel_tool_calls).key("previous_response_id");
  options.previous.empty() ? json.null() : json.value(options.previous);
  json.key("reasoning").begin_object().key("effort");
  asked_.effort.empty() ? json.null() : json.value(asked_.effort);
  json.key("summary").raw(options.summary_kind).end_object();
  json.member("service_tier", "default").member("store", options.store);
  json.member("temperature", asked_.temperature).key("text").raw(options.text);
  json.key("tool_choice").raw(options.tool_choice).key("tools").raw(options.tools);
  json.member("top_logprobs", std::max(asked_.logprobs, 0)).member("top_p", asked_.top_p);
  json.member("truncation", options.truncate ? "auto" : "disabled");
}

std::string ResponseEncoder::response(std::string_view status, const Usage* usage,
                                      const ApiError* error) const {
  std::string text;
  JsonWriter json(text);
  json.begin_object()
      .member("id", std::string_view(head().id))
      .member("object", "response")
      .member("created_at", head().created)
      .key("completed_at");
  if (status == "completed") {
    const auto now = clock_.wall_time().time_since_epoch();
    json.value(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  } else {
    json.null();
  }
  json.member("status", status).key("error");
  if (error != nullptr) {
    json.begin_object().member("code", "server_error").member("message", error->message).end_object();
  } else {
    json.null();
  }
  json.key("incomplete_details");
  status == "incomplete" ? json.begin_object().member("reason", "max_output_tokens").end_object()
                         : json.null();
  json.key("output").begin_array();
  for (const Item& item : items_) {
    const bool last = &item == &items_.back();
    add_item(json, item, last && status != "completed" ? "incomplete" : "completed");
  }
  json.end_array();
  add_asked(json);
  json.key("usage");
  usage != nullptr ? add_response_usage(json, *usage) : static_cast<void>(json.null());
  json.end_object();
  return text;
}

std::string ResponseEncoder::unfinished(std::string_view status) const {
  return response(status, nullptr, nullptr);
}

void ResponseEncoder::give(const std::string& json, bool failed) {
  if (!keep_) return;
  EndedResponse ended{.json = json, .answer = {.role = Role::assistant, .content = ""}, .failed = failed};
  for (const Item& item : items_) {
    if (item.part == AnswerPart::call) {
      ended.answer.tool_calls.push_back({.id = item.call_id, .name = item.name, .arguments = item.text});
    } else {
      (item.part == AnswerPart::answer ? *ended.answer.content : ended.answer.reasoning) += item.text;
    }
  }
  keep_(std::move(ended));
}

std::string ResponseEncoder::event(std::string_view type,
                                   const std::function<void(JsonWriter& json)>& members) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("type", type).member("sequence_number", next_event_++);
  members(json);
  json.end_object();
  return sse(type, text);
}

std::string ResponseEncoder::item_event(std::string_view type, std::string_view status) {
  return event(type, [&](JsonWriter& json) {
    json.member("output_index", items_.size() - 1).key("item");
    add_item(json, items_.back(), status);
  });
}

// Of the open item's one part.
std::string ResponseEncoder::place_event(std::string_view type,
                                         const std::function<void(JsonWriter& json)>& members) {
  const Item& item = items_.back();
  const bool summary = item.part == AnswerPart::reasoning && asked_.options.summary;
  return event(type, [&](JsonWriter& json) {
    json.member("item_id", item.id).member("output_index", items_.size() - 1);
    if (item.part != AnswerPart::call) json.member(summary ? "summary_index" : "content_index", 0);
    members(json);
  });
}

// Of the response as a whole, before it has ended.
std::string ResponseEncoder::state_event(std::string_view type, std::string_view status) {
  told_progress_ = type == "response.in_progress";
  return event(type, [&](JsonWriter& json) { json.key("response").raw(unfinished(status)); });
}

std::string ResponseEncoder::begin(const Usage&) {
  const bool waits = asked_.options.background;
  std::string events = state_event("response.created", waits ? "queued" : "in_progress");
  return events += waits ? state_event("response.queued", "queued")
                         : state_event("response.in_progress", "in_progress");
}

std::string ResponseEncoder::open_item(AnswerPart part) {
  const std::string_view kind = part == AnswerPart::answer ? "msg_" : "rs_";
  const std::string own = head().id.substr(head().id.find('_') + 1);
  items_.push_back({.part = part,
                    .id = std::string(kind) + own + "_" + std::to_string(items_.size()),
                    .text = {},
                    .name = {},
                    .call_id = {},
                    .tokens = {}});
  open_ = true;
  const bool summary = part == AnswerPart::reasoning && asked_.options.summary;
  std::string events = item_event("response.output_item.added", "in_progress");
  return events +=
         place_event(summary ? "response.reasoning_summary_part.added" : "response.content_part.added",
                     [&](JsonWriter& json) {
                       json.key("part");
                       add_text_part(json, items_.back());
                     });
}

// A call has no parts.
std::string ResponseEncoder::open_call(const AnswerPiece& call) {
  const std::string own = head().id.substr(head().id.find('_') + 1);
  const std::string place = std::to_string(items_.size());
  items_.push_back({.part = AnswerPart::call,
                    .id = "fc_" + own + "_" + place,
                    .text = {},
                    .name = call.text,
                    .call_id = call.id,
                    .tokens = {}});
  open_ = true;
  return item_event("response.output_item.added", "in_progress");
}

namespace {

std::string_view text_event(AnswerPart part, bool summary, bool done) {
  if (part == AnswerPart::answer) return done ? "response.output_text.done" : "response.output_text.delta";
  if (part == AnswerPart::call)
    return done ? "response.function_call_arguments.done" : "response.function_call_arguments.delta";
  if (summary) return done ? "response.reasoning_summary_text.done" : "response.reasoning_summary_text.delta";
  return done ? "response.reasoning_text.done" : "response.reasoning_text.delta";
}

}  // namespace

std::string ResponseEncoder::add_text(const std::string& text, std::span<const TokenRecord> tokens) {
  Item& item = items_.back();
  item.text += text;
  item.tokens.insert(item.tokens.end(), tokens.begin(), tokens.end());
  return place_event(text_event(item.part, asked_.options.summary, false), [&](JsonWriter& json) {
    json.member("delta", text);
    if (item.part != AnswerPart::answer) return;
    json.key("logprobs");
    add_token_logprobs(json, tokens, tokenizer_);
  });
}

std::string ResponseEncoder::close_item() {
  if (!open_) return {};
  open_ = false;
  const Item& item = items_.back();
  const std::string_view left = finish_ && leaves_off(*finish_) ? "incomplete" : "completed";
  if (item.part == AnswerPart::call) {
    const std::string done = place_event(text_event(item.part, false, true), [&](JsonWriter& json) {
      json.member("name", item.name).member("arguments", item.text);
    });
    return done + item_event("response.output_item.done", left);
  }
  const bool summary = item.part == AnswerPart::reasoning && asked_.options.summary;
  std::string events = place_event(text_event(item.part, summary, true), [&](JsonWriter& json) {
    json.member("text", item.text);
    if (item.part != AnswerPart::answer) return;
    json.key("logprobs");
    add_token_logprobs(json, item.tokens, tokenizer_);
  });
  events += place_event(summary ? "response.reasoning_summary_part.done" : "response.content_part.done",
                        [&](JsonWriter& json) {
                          json.key("part");
                          add_text_part(json, item);
                        });
  return events + item_event("response.output_item.done", left);
}

std::string ResponseEncoder::part(const ChoicePart& part, const Usage&) {
  std::string events;
  if (next_event_ > 0 && !told_progress_) events += state_event("response.in_progress", "in_progress");
  std::span<const TokenRecord> tokens = part.tokens;
  for (const AnswerPiece& piece : part.pieces) {
    if (piece.part == AnswerPart::call) {
      events += close_item();
      events += open_call(piece);
      continue;
    }
    const AnswerPart kind = piece.part == AnswerPart::arguments ? AnswerPart::call : piece.part;
    if (!open_ || items_.back().part != kind) {
      events += close_item();
      events += open_item(piece.part);
    }
    // The tokens are those of the answer's text.
    const bool told = piece.part == AnswerPart::answer;
    events += add_text(piece.text, told ? tokens : std::span<const TokenRecord>());
    if (told) tokens = {};
  }
  if (!tokens.empty() && open_ && items_.back().part == AnswerPart::answer) events += add_text("", tokens);
  if (part.finish) finish_ = part.finish;
  return events;
}

std::string ResponseEncoder::end(const Usage& usage) {
  std::string events = close_item();
  const std::string json = response(status(), &usage, nullptr);
  give(json, false);
  const std::string type = "response." + std::string(status());
  return events + event(type, [&](JsonWriter& writer) { writer.key("response").raw(json); });
}

std::string ResponseEncoder::whole(std::span<const ChoicePart> choices, const Usage& usage) {
  part(choices.front(), usage);
  std::string json = response(status(), &usage, nullptr);
  give(json, false);
  return json;
}

std::string ResponseEncoder::stream_failure(const ApiError& error) {
  const std::string json = response("failed", nullptr, &error);
  give(json, true);
  return event("response.failed", [&](JsonWriter& writer) { writer.key("response").raw(json); });
}

std::string ResponseEncoder::failure(const ApiError& error) {
  if (asked_.options.background) give(response("failed", nullptr, &error), true);
  return error.json();
}

}  // namespace nibble::api
