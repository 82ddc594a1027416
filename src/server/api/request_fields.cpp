#include "server/api/request_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "base/quote.h"
#include "server/api/characters.h"
#include "server/api/chat_messages.h"
#include "server/api/field_rules.h"
#include "server/api/messages_request.h"
#include "server/api/responses_request.h"
#include "server/api/token_limits.h"
#include "server/api/tool_fields.h"
#include "server/api/unserved_rules.h"

namespace nibble::api {
namespace {

using Kind = FieldType::Kind;
using sampling::any_count;

constexpr std::size_t most_bad_words = 1024;
constexpr std::size_t longest_bad_word = 256;  // characters

Refused read_tokens(const Reading& reading, const std::string& field, JsonValue value,
                    std::vector<TokenId>& tokens) {
  if (!value.is_array()) return bad_field(field, " must be an array of token ids");
  tokens.reserve(value.size());
  for (const JsonValue element : value.elements()) {
    TokenId token = 0;
    if (Refused refused = read_integer(field + "[" + std::to_string(tokens.size()) + "]", element, 0,
                                       reading.vocabulary - 1, token))
      return refused;
    tokens.push_back(token);
  }
  return {};
}

// Each once, so that no list is longer to look through than the vocabulary.
template <auto list>
Refused take_token_ids(Reading& reading, const std::string& field, const FieldValue& value) {
  std::vector<TokenId>& ids = reading.request.sampling.*list;
  if (Refused refused = read_tokens(reading, field, value.json, ids)) return refused;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return {};
}

Refused take_bad_words(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_array()) return bad_field(field, " must be an array of words");
  if (value.json.size() > most_bad_words)
    return bad_field(field, " takes at most " + std::to_string(most_bad_words) + " words");
  std::vector<std::string>& words = reading.request.sampling.bad_words;
  for (const JsonValue word : value.json.elements()) {
    const std::string where = field + "[" + std::to_string(words.size()) + "]";
    if (!word.is_string() || word.as_string().find_first_not_of(white_space) == std::string_view::npos)
      return bad_field(where, " must be a string that is not blank");
    if (characters(word.as_string()) > longest_bad_word)
      return bad_field(where, " must be at most " + std::to_string(longest_bad_word) + " characters");
    words.emplace_back(word.as_string());
  }
  return {};
}

Refused take_chat_template(Reading& reading, const std::string& field, const FieldValue& value) {
  if (asks_for_nothing(value.json)) return {};
  if (!value.json.is_string()) return bad_field(field, " must be a string");
  reading.request.chat_template = value.json.as_string();
  return {};
}

Refused take_skip_special_tokens(Reading& reading, const std::string&, const FieldValue& value) {
  reading.request.shows_special_tokens = !value.boolean;
  return {};
}

Refused take_logit_bias(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object from token ids to numbers");
  for (const auto& [name, bias] : value.json.members()) {
    TokenId token = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    const bool plain = name == "0" || (!name.empty() && name[0] >= '1' && name[0] <= '9');  // 05 is 5 again
    if (!plain || error != std::errc() || end != name.data() + name.size() || token >= reading.vocabulary) {
      return bad_field(field, " has the key " + quote(name) + ", which is no token id of this model");
    }
    double number = 0;
    if (Refused refused =
            read_number(field + "." + std::string(name), bias, sampling::logit_bias.range, number))
      return refused;
    reading.request.sampling.logit_bias.push_back({token, static_cast<float>(number)});
  }
  return {};
}

Refused take_stream_options(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object");
  reading.request.has_stream_options = true;
  const auto read = [&](std::string_view name, bool& target) -> Refused {
    const auto member = value.json.find(name);
    if (!member || member->is_null()) return {};
    return read_bool(field + "." + std::string(name), *member, target);
  };
  if (Refused refused = read("include_usage", reading.request.include_usage)) return refused;
  return read("continuous_usage_stats", reading.request.continuous_usage);
}

// A string, an array of strings, an array of token ids, or an array of such arrays.
Refused take_prompts(Reading& reading, const std::string& field, const FieldValue& given) {
  const JsonValue value = given.json;
  std::vector<Prompt>& prompts = reading.request.prompts;
  constexpr std::string_view wanted =
      " must be a string, an array of strings, an array of token ids or an array of those";
  if (value.is_string()) {
    prompts.emplace_back(std::string(value.as_string()));
    return {};
  }
  if (!value.is_array() || value.size() == 0) return bad_field(field, wanted);
  const JsonType kind = (*value.elements().begin()).type();
  if (kind == JsonType::integer || kind == JsonType::real) {
    std::vector<TokenId> tokens;
    if (Refused refused = read_tokens(reading, field, value, tokens)) return refused;
    prompts.emplace_back(std::move(tokens));
    return {};
  }
  if (value.size() > most_choices)
    return bad_field(field, " takes at most " + std::to_string(most_choices) + " prompts");
  for (const JsonValue element : value.elements()) {
    const std::string where = field + "[" + std::to_string(prompts.size()) + "]";
    if (element.type() != kind)
      return bad_field(where, " is of another kind than the first: prompt" + std::string(wanted));
    if (kind == JsonType::string) {
      prompts.emplace_back(std::string(element.as_string()));
    } else if (kind == JsonType::array) {
      std::vector<TokenId> tokens;
      if (Refused refused = read_tokens(reading, where, element, tokens)) return refused;
      prompts.emplace_back(std::move(tokens));
    } else {
      return bad_field(where, " is neither text nor token ids: prompt" + std::string(wanted));
    }
  }
  return {};
}

Refused take_reasoning_effort(Reading& reading, const std::string& field, const FieldValue& value) {
  constexpr std::array<std::string_view, 5> efforts = {"none", "minimal", "low", "medium", "high"};
  if (!value.json.is_string() ||
      std::find(efforts.begin(), efforts.end(), value.json.as_string()) == efforts.end()) {
    return bad_field(field, " must be none, minimal, low, medium or high");
  }
  reading.request.reasoning_effort = value.json.as_string();
  return {};
}

Refused take_template_variables(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object");
  reading.request.chat_template_kwargs = value.json;
  return {};
}

// {"type":"content","content":...}
Refused take_prediction(Reading& reading, const std::string& field, const FieldValue& value) {
  const auto type = value.json.find("type"), content = value.json.find("content");
  if (!type || !type->is_string() || type->as_string() != "content")
    return bad_field(field + ".type", " must be content");
  if (!content || content->is_null()) return bad_field(field + ".content", " must be there");
  return read_content(field + ".content", *content, reading.request.prediction);
}

Refused take_messages(Reading& reading, const std::string&, const FieldValue& value) {
  return read_messages(value.json, reading.request.messages);
}

constexpr FieldType stop_type =
    other(R"({"anyOf":[{"type":"string","minLength":1,"maxLength":4096},{"type":"array","maxItems":16,)"
          R"("items":{"type":"string","minLength":1,"maxLength":4096}}]})");
constexpr FieldType ids_type = other(R"({"type":"array","items":{"type":"integer","minimum":0}})");
constexpr FieldType bad_words_type = other(
    R"({"type":"array","maxItems":1024,"items":{"type":"string","maxLength":256,"pattern":"[^ \\t\\n\\v\\f\\r]"}})");
constexpr FieldType bias_type =
    other(R"({"type":"object","propertyNames":{"pattern":"^(0|[1-9][0-9]*)$"},)"
          R"("additionalProperties":{"type":"number","minimum":-100,"maximum":100}})");
constexpr FieldType stream_options_type = other(
    R"({"type":"object","properties":{"include_usage":{"type":["boolean","null"]},"continuous_usage_stats":{"type":["boolean","null"]}}})");
constexpr FieldType effort_type = other(R"({"enum":["none","minimal","low","medium","high"]})");
constexpr FieldType object_type = other(R"({"type":"object"})");
constexpr FieldType prompt_type = other(
    R"({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":128,"items":{"type":"string"}},)"
    R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},)"
    R"({"type":"array","minItems":1,"maxItems":128,"items":{"type":"array","minItems":1,)"
    R"("items":{"type":"integer","minimum":0}}}]})");
constexpr FieldType messages_type = other(
    R"({"type":"array","minItems":1,"items":{"type":"object","required":["role"],"properties":{)"
    R"("role":{"enum":["system","developer","user","assistant","tool"]},)"
    R"("content":{"anyOf":[{"type":["string","null"]},{"type":"array","items":{"anyOf":[)"
    R"({"type":"object","required":["type","text"],"properties":{"type":{"const":"text"},"text":{"type":"string"}}},)"
    R"({"type":"object","required":["type","refusal"],"properties":{"type":{"const":"refusal"},"refusal":{"type":"string"}}})"
    R"(]}}]},"name":{"type":["string","null"]},"reasoning_content":{"type":["string","null"]},)"
    R"("reasoning":{"type":["string","null"]},"tool_calls":{"anyOf":[{"enum":[null,[]]},{"type":"array","items":{"type":"object"}}]},"function_call":{"enum":[null,[]]},)"
    R"("tool_call_id":{"anyOf":[{"type":["string","null"]},{"enum":[[]]}]},"audio":{"type":"null"}}}})");

constexpr FieldType prediction_type = other(
    R"({"type":"object","required":["type","content"],"properties":{"type":{"const":"content"},)"
    R"("content":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object","required":["type","text"],)"
    R"("properties":{"type":{"const":"text"},"text":{"type":"string"}}}}]}}})");

constexpr Where both = Where::both, chat = Where::chat, completions = Where::completions;

constexpr FieldRule rules[] = {
    {"add_generation_prompt", chat, boolean(), "false: the prompt ends with the last message.",
     keep<&GenerationRequest::add_generation_prompt>},
    {"add_special_tokens", completions, boolean(),
     "false: the tokens that the tokenizer's file puts around a text, such as <s>, are left out.",
     keep<&TextTokens::add_special>},
    {"allowed_token_ids", both, ids_type, "The answer has no other tokens; empty: it may have all.",
     take_token_ids<&Sampling::allowed_token_ids>},
    {"bad_words", both, bad_words_type,
     "At most 1024 words of up to 256 characters that the answer may not have.", take_bad_words},
    {"best_of", completions, integer(1, most_choices), "Must be equal to n.", keep<&Reading::best_of>},
    {"cache_salt", both, text(0, 256),
     "Prefixes are shared only with requests of the same salt; 256 characters at most.",
     keep<&GenerationRequest::cache_salt>},
    {"chat_template", chat, other(R"({"type":"string"})"),
     "A Jinja template in place of the model's own; refused unless the server trusts them.",
     take_chat_template},
    {"chat_template_kwargs", chat, object_type, "Further variables of the model's chat template.",
     take_template_variables},
    {"constrained_logprobs", both, boolean(),
     "true: logprobs are of the tokens that the format, or the tools' schemas, allow.",
     keep<&Sampling::constrained_logprobs>},
    {"continue_final_message", chat, boolean(),
     "true, with add_generation_prompt false: the answer goes on with the last message's text.",
     keep<&GenerationRequest::continue_final_message>},
    {"echo", completions, boolean(),
     "The prompt stands before the answer, with its log-probabilities if asked.",
     keep<&GenerationRequest::echo>},
    shared<&Sampling::frequency_penalty>(sampling::frequency_penalty),
    {sampling::ignore_eos.name, both, boolean(), sampling::ignore_eos.about, keep<&Sampling::ignore_eos>},
    {"include_reasoning", chat, boolean(), "false: the answer comes without its reasoning.",
     keep<&GenerationRequest::include_reasoning>},
    {sampling::logit_bias.name, both, bias_type, sampling::logit_bias.about, take_logit_bias},
    {"logprobs", chat, boolean(), "Log-probabilities of the answer's tokens, of the raw distribution.",
     keep<&Reading::wants_logprobs>},
    {"logprobs", completions, integer(0, most_top_logprobs),
     "Log-probabilities of the tokens and of as many likeliest ones, of the raw distribution.",
     keep<&Sampling::logprobs>},
    {"max_completion_tokens", both, integer(1, any_count), "Longest answer; wins over max_tokens.",
     keep<&Reading::max_completion_tokens>},
    {"max_tokens", chat, integer(1, any_count), "Longest answer; cut to the room that the context leaves.",
     keep<&Sampling::max_tokens>},
    {"max_tokens", completions, integer(0, any_count),
     "Longest answer; cut to the room that the context leaves. 16 if absent; 0 goes with echo.",
     keep<&Sampling::max_tokens>},
    {"messages", chat, messages_type, "The conversation so far.", take_messages},
    shared<&Sampling::min_p>(sampling::min_p),
    shared<&Sampling::min_tokens>(sampling::min_tokens),
    {"model", both, text(1, 0), "The served model, or absent.", keep<&GenerationRequest::model>},
    {"n", both, integer(1, most_choices), "Choices of each prompt.", keep<&GenerationRequest::n>},
    {"parse_special", completions, boolean(),
     "true: control tokens spelled in the prompt's text count as such. Only for texts that nobody else "
     "wrote.",
     keep<&TextTokens::parse_special>},
    {"parallel_tool_calls", chat, boolean(), "false: the answer ends before a second call.",
     take_parallel_tool_calls},
    {"prediction", chat, prediction_type,
     "What the answer likely says: where the plan checks drafts, its tokens come several a step as far as "
     "the "
     "answer agrees. It changes no answer.",
     take_prediction},
    shared<&Sampling::presence_penalty>(sampling::presence_penalty),
    {"prompt", completions, prompt_type, "Text, token ids, or a list of either.", take_prompts},
    {"prompt_logprobs", both, integer(0, most_top_logprobs),
     "Log-probabilities of the prompt's tokens and of as many likeliest ones; not streamed.",
     keep<&GenerationRequest::prompt_logprobs>},
    {"reasoning_effort", chat, effort_type, "How long a reasoning model thinks.", take_reasoning_effort},
    shared<&Sampling::repetition_penalty>(sampling::repetition_penalty),
    {"return_token_ids", both, boolean(), "Token ids of prompt and answer.",
     keep<&GenerationRequest::return_token_ids>},
    shared<&Sampling::seed>(sampling::seed),
    {"skip_special_tokens", both, boolean(),
     "false: the answer's text shows control tokens, but for those that end it or part its messages.",
     take_skip_special_tokens},
    {"stop", both, stop_type, "At most 16 texts of up to 4096 characters that end the answer; not shown.",
     take_stop},
    {"stop_token_ids", both, ids_type, "Token ids that end the answer.",
     take_token_ids<&Sampling::stop_token_ids>},
    {"stream", both, boolean(), "Server-sent events, as tokens come.", keep<&GenerationRequest::stream>},
    {"stream_options", both, stream_options_type, "Only with stream.", take_stream_options},
    shared<&Sampling::temperature>(sampling::temperature),
    shared<&Sampling::top_k>(sampling::top_k),
    {"tool_choice", chat, tool_choice_type,
     "auto: the answer may call tools; none: it may not; required, or a function: it is a call.",
     take_tool_choice},
    {"tools", chat, tools_type, "Functions that the answer may call.", take_tools},
    {"top_logprobs", chat, integer(0, most_top_logprobs),
     "Likeliest tokens reported beside each; needs logprobs.", keep<&Reading::top_logprobs>},
    shared<&Sampling::top_p>(sampling::top_p),
};

bool belongs(const FieldRule& rule, Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::chat: return rule.where == both || rule.where == chat;
    case Endpoint::completions: return rule.where == both || rule.where == completions;
    case Endpoint::responses: return rule.where == Where::responses;
    case Endpoint::messages: return rule.where == Where::messages;
  }
  return false;
}

void write_type(const FieldType& type, JsonWriter& json) {
  const auto named = [&](std::string_view name) {
    json.key("type").begin_array().value(name).value("null").end_array();
  };
  switch (type.kind) {
    case Kind::boolean: named("boolean"); break;
    case Kind::text:
      named("string");
      if (type.least_characters > 0) json.member("minLength", type.least_characters);
      if (type.most_characters > 0) json.member("maxLength", type.most_characters);
      break;
    case Kind::integer:
      named("integer");
      json.member("minimum", type.least);
      json.member("maximum", type.most);
      break;
    case Kind::number:
      named("number");
      json.member(type.bound == Bound::above ? "exclusiveMinimum" : "minimum", type.low);
      json.member("maximum", type.high);
      break;
    case Kind::other: break;
  }
}

void write_property(const FieldRule& rule, bool required, JsonWriter& json) {
  json.key(rule.name).begin_object();
  if (rule.type.kind != Kind::other) {
    write_type(rule.type, json);
  } else if (required) {
    json.key("allOf").begin_array().raw(rule.type.schema).end_array();
  } else {
    json.key("anyOf").begin_array().raw(rule.type.schema).raw(R"({"type":"null"})").end_array();
  }
  json.member("description", rule.about).end_object();
}

// The tables with an endpoint's fields.
std::vector<std::span<const FieldRule>> tables_of(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::responses: return {responses_fields()};
    case Endpoint::messages: return {messages_fields()};
    default: return {rules, format_fields(), unserved_fields()};
  }
}

std::vector<std::string_view> required_fields(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::chat: return {"messages"};
    case Endpoint::completions: return {"prompt"};
    case Endpoint::responses: return {"input"};
    case Endpoint::messages: return {"max_tokens", "messages"};
  }
  return {};
}

}  // namespace

Refused take_stop(Reading& reading, const std::string& field, const FieldValue& value) {
  std::vector<std::string>& stop = reading.request.sampling.stop;
  const auto add = [&](const std::string& where, JsonValue text) -> Refused {
    if (!text.is_string() || text.as_string().empty())
      return bad_field(where, " must be a string that is not empty");
    if (characters(text.as_string()) > sampling::most_stop_characters)
      return bad_field(where,
                       " must be at most " + std::to_string(sampling::most_stop_characters) + " characters");
    stop.emplace_back(text.as_string());
    return {};
  };
  if (!value.json.is_array()) return add(field, value.json);
  if (value.json.size() > sampling::most_stop_strings)
    return bad_field(field, " takes at most " + std::to_string(sampling::most_stop_strings) + " strings");
  for (const JsonValue element : value.json.elements()) {
    if (Refused refused = add(field + "[" + std::to_string(stop.size()) + "]", element)) return refused;
  }
  return {};
}

const FieldRule* find_field(Endpoint endpoint, std::string_view name) {
  for (const std::span<const FieldRule> rows : tables_of(endpoint)) {
    for (const FieldRule& rule : rows) {
      if (rule.name == name && belongs(rule, endpoint)) return &rule;
    }
  }
  return nullptr;
}

Refused read_field(const FieldRule& rule, Reading& reading, JsonValue value) {
  const std::string field(rule.name);
  const FieldType& type = rule.type;
  FieldValue read{.json = value};
  Refused refused;
  switch (type.kind) {
    case Kind::boolean: refused = read_bool(field, value, read.boolean); break;
    case Kind::integer: refused = read_integer(field, value, type.least, type.most, read.integer); break;
    case Kind::number:
      refused = read_number(field, value, {type.low, type.high, type.bound}, read.number);
      break;
    case Kind::text:
      if (!value.is_string()) return bad_field(field, " must be a string");
      read.text = value.as_string();
      if (characters(read.text) < type.least_characters) return bad_field(field, " must not be empty");
      if (type.most_characters > 0 && characters(read.text) > type.most_characters)
        return bad_field(field, " must be at most " + std::to_string(type.most_characters) + " characters");
      break;
    case Kind::other: break;
  }
  if (refused) return refused;
  return rule.take(reading, field, read);
}

void write_request_schema(Endpoint endpoint, JsonWriter& json, RequestUse use) {
  std::vector<std::string_view> required = required_fields(endpoint);
  if (use == RequestUse::count) std::erase(required, "max_tokens");
  json.begin_object().member("type", "object");
  json.key("required").begin_array();
  for (const std::string_view name : required) json.value(name);
  json.end_array();
  json.key("properties").begin_object();
  for (const std::span<const FieldRule> rows : tables_of(endpoint)) {
    for (const FieldRule& rule : rows) {
      if (!belongs(rule, endpoint)) continue;
      write_property(rule, std::find(required.begin(), required.end(), rule.name) != required.end(), json);
    }
  }
  json.end_object().end_object();
}

}  // namespace nibble::api
