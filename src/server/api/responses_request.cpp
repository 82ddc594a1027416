#include "server/api/responses_request.h"

#include <algorithm>
#include <array>

#include "base/json_copy.h"
#include "base/quote.h"
#include "server/api/field_rules.h"
#include "server/api/response_items.h"
#include "server/api/tool_fields.h"
#include "server/api/tool_forms.h"
#include "server/api/unserved_rules.h"

namespace nibble::api {
namespace {

constexpr Where here = Where::responses;

std::string json_text(JsonValue value) {
  std::string text;
  JsonWriter json(text);
  copy_json(value, json);
  return text;
}

template <bool ResponseOptions::*option>
Refused keep_option(Reading& reading, const std::string&, const FieldValue& value) {
  reading.request.response.*option = value.boolean;
  return {};
}

Refused take_input(Reading& reading, const std::string& field, const FieldValue& value) {
  GenerationRequest& request = reading.request;
  request.response_input = {.value = value.json, .referred = referred_items(value.json), .sources = {}};
  // What it refers to is found where responses are stored, and read then.
  if (!request.response_input.referred.empty()) return {};
  return read_input_items(field, value.json, request.messages, request.response.input_items,
                          [](std::string_view) { return std::nullopt; });
}

Refused take_instructions(Reading& reading, const std::string&, const FieldValue& value) {
  reading.request.instructions = value.text;
  return {};
}

Refused take_previous(Reading& reading, const std::string&, const FieldValue& value) {
  reading.request.response.previous = value.text;
  return {};
}

// The rest of what can be included belongs to tools that nothing here runs: there is none of it.
Refused take_include(Reading& reading, const std::string& field, const FieldValue& value) {
  constexpr std::array<std::string_view, 6> of_hosted_tools = {"file_search_call.results",
                                                               "web_search_call.results",
                                                               "web_search_call.action.sources",
                                                               "message.input_image.image_url",
                                                               "computer_call_output.output.image_url",
                                                               "code_interpreter_call.outputs"};
  if (!value.json.is_array()) return bad_field(field, " must be an array of names");
  int number = 0;
  for (const JsonValue element : value.json.elements()) {
    const std::string where = field + "[" + std::to_string(number++) + "]";
    std::string name;
    if (Refused refused = read_text(where, element, name)) return refused;
    if (name == "reasoning.encrypted_content") {
      reading.request.response.encrypted_reasoning = true;
    } else if (name == "message.output_text.logprobs") {
      reading.wants_logprobs = true;
    } else if (std::find(of_hosted_tools.begin(), of_hosted_tools.end(), name) == of_hosted_tools.end()) {
      return bad_field(where, " " + quote(name) +
                                  " is not known; reasoning.encrypted_content and "
                                  "message.output_text.logprobs are served");
    }
  }
  return {};
}

Refused take_metadata(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object");
  constexpr std::size_t most = 16;
  if (value.json.size() > most) return bad_field(field, " takes at most 16 members");
  for (const auto& [name, member] : value.json.members()) {
    if (!member.is_string() || name.size() > 256 || member.as_string().size() > 2048)
      return bad_field(field, " must have short names and strings of at most 512 characters");
  }
  reading.request.response.metadata = json_text(value.json);
  return {};
}

Refused take_reasoning(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object");
  for (const auto& [name, member] : value.json.members()) {
    const std::string where = field + "." + std::string(name);
    if (member.is_null()) continue;
    std::string text;
    if (name == "effort") {
      if (Refused refused = read_text(where, member, text)) return refused;
      if (text == "xhigh" || text == "max") text = "high";  // the most that a template knows
      constexpr std::array<std::string_view, 5> efforts = {"none", "minimal", "low", "medium", "high"};
      if (std::find(efforts.begin(), efforts.end(), text) == efforts.end())
        return bad_field(where, " must be none, minimal, low, medium or high");
      reading.request.reasoning_effort = text;
    } else if (name == "summary" || name == "generate_summary") {
      if (Refused refused = read_text(where, member, text)) return refused;
      if (text != "auto" && text != "concise" && text != "detailed")
        return bad_field(where, " must be auto, concise or detailed");
      reading.request.response.summary = true;
      // Nothing here shortens reasoning: what is told is all of it.
      reading.request.response.summary_kind = R"("detailed")";
    }
  }
  return {};
}

Refused take_format(Reading& reading, const std::string& field, JsonValue format) {
  const auto named = format.find("type");
  const std::string_view type = named && named->is_string() ? named->as_string() : "";
  TextFormat& wanted = reading.request.format;
  wanted.field = "text.format";
  if (type == "text") {
    wanted.kind = TextFormat::Kind::text;
  } else if (type == "json_object") {
    wanted.kind = TextFormat::Kind::json_object;
  } else if (type == "json_schema") {
    wanted.kind = TextFormat::Kind::json_schema;
    const auto name = format.find("name");
    if (!name) return bad_field(field + ".name", " must be there");
    if (Refused refused = read_text(field + ".name", *name, wanted.name)) return refused;
    wanted.schema = format.find("schema");
    if (!wanted.schema || !wanted.schema->is_object())
      return bad_field(field + ".schema", " must be an object");
    if (const auto strict = format.find("strict"); strict && !strict->is_null()) {
      if (Refused refused = read_bool(field + ".strict", *strict, wanted.strict)) return refused;
    }
  } else {
    return bad_field(field + ".type", " must be text, json_object or json_schema");
  }
  return {};
}

Refused take_text(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object");
  std::string told;
  JsonWriter json(told);
  json.begin_object();
  if (!value.json.find("format")) json.key("format").raw(R"({"type":"text"})");
  for (const auto& [name, member] : value.json.members()) {
    const std::string where = field + "." + std::string(name);
    if (name == "format" && !member.is_null()) {
      if (Refused refused = take_format(reading, where, member)) return refused;
    } else if (name == "verbosity" && !member.is_null()) {
      std::string text;
      if (Refused refused = read_text(where, member, text)) return refused;
      if (text != "low" && text != "medium" && text != "high")
        return bad_field(where, " must be low, medium or high");
    }
    json.key(name);
    copy_json(member, json);
  }
  json.end_object();
  reading.request.response.text = std::move(told);
  return {};
}

Refused take_tool_choice(Reading& reading, const std::string& field, const FieldValue& value) {
  ToolUse& use = reading.request.tool_use;
  const std::string_view word = value.json.is_string() ? value.json.as_string() : "";
  const auto type = value.json.find("type");
  if (word == "auto") {
    use.choice = ToolUse::Choice::automatic;
  } else if (word == "none") {
    use.choice = ToolUse::Choice::none;
  } else if (word == "required") {
    use.choice = ToolUse::Choice::required;
  } else if (type && type->is_string() && type->as_string() == "function") {
    use.choice = ToolUse::Choice::named;
    const auto name = value.json.find("name");
    if (!name) return bad_field(field + ".name", " must be there");
    if (Refused refused = read_text(field + ".name", *name, use.allowed.emplace_back())) return refused;
  } else if (type && type->is_string() && type->as_string() == "allowed_tools") {
    if (Refused refused = read_allowed_tools(field, value.json, "", use)) return refused;
  } else if (type && type->is_string()) {
    return bad_field(field + ".type",
                     " " + quote(type->as_string()) +
                         " is not served: nibble runs no tools; function and allowed_tools are");
  } else {
    return bad_field(field, R"( must be auto, none, required, {"type":"function","name":...} or )"
                            R"({"type":"allowed_tools",...})");
  }
  reading.request.response.tool_choice = json_text(value.json);
  return {};
}

Refused take_tools(Reading& reading, const std::string& field, const FieldValue& value) {
  if (Refused refused = read_tools(field, value.json, responses_tools, reading.request.tool_use))
    return refused;
  reading.request.response.tools = json_text(value.json);
  return {};
}

Refused take_parallel(Reading& reading, const std::string&, const FieldValue& value) {
  reading.request.tool_use.parallel = value.boolean;
  return {};
}

Refused take_truncation(Reading& reading, const std::string& field, const FieldValue& value) {
  const std::string_view word = value.json.is_string() ? value.json.as_string() : "";
  reading.request.response.truncate = word == "auto";
  if (word == "auto" || word == "disabled") return {};
  return bad_field(field, " must be auto or disabled");
}

constexpr FieldType input_type = other(
    R"({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"object","properties":{)"
    R"("type":{"enum":["message","function_call","function_call_output","reasoning","item_reference",null]}}}}]})");
constexpr FieldType include_type = other(R"({"type":"array","items":{"type":"string"}})");
constexpr FieldType metadata_type =
    other(R"({"type":"object","maxProperties":16,"additionalProperties":{"type":"string","maxLength":512}})");
constexpr FieldType reasoning_type = other(
    R"({"type":"object","properties":{"effort":{"enum":["none","minimal","low","medium","high","xhigh","max",null]},)"
    R"("summary":{"enum":["auto","concise","detailed",null]}}})");
constexpr FieldType format_type = other(
    R"({"type":"object","properties":{"format":{"type":["object","null"],"required":["type"],"properties":{)"
    R"("type":{"enum":["text","json_object","json_schema"]}}},"verbosity":{"enum":["low","medium","high",null]}}})");
constexpr FieldType choice_type =
    other(R"({"anyOf":[{"enum":["auto","none","required"]},{"type":"object","required":["type","name"],)"
          R"("properties":{"type":{"const":"function"},"name":{"type":"string"}}},{"type":"object",)"
          R"("required":["type","mode","tools"],"properties":{"type":{"const":"allowed_tools"},)"
          R"("mode":{"enum":["auto","required"]},"tools":{"type":"array","minItems":1}}}]})");
constexpr FieldType tools_type =
    other(R"({"type":"array","items":{"type":"object","required":["type","name"],"properties":{)"
          R"("type":{"const":"function"},"name":{"type":"string","minLength":1}}}})");

constexpr FieldRule rules[] = {
    {"background", here, boolean(), "The answer is made while nobody waits for it; needs store.",
     keep_option<&ResponseOptions::background>},
    {"cache_salt", here, text(0, 256),
     "Prefixes are shared only with requests of the same salt; 256 characters at most.",
     keep<&GenerationRequest::cache_salt>},
    {"context_management", here, nothing, not_served_about, not_served},
    {"conversation", here, nothing, "Not served: use previous_response_id.", not_served},
    {"include", here, include_type, "Reasoning to bring back, log-probabilities.", take_include},
    {"input", here, input_type, "A text, or the items of a conversation.", take_input},
    {"instructions", here, text(0, 0), "A system message before all else; of this response alone.",
     take_instructions},
    {"max_output_tokens", here, integer(1, sampling::any_count),
     "Longest answer; cut to the room that the context leaves.", keep<&Sampling::max_tokens>},
    {"max_tool_calls", here, any_number, "Accepted without effect: it counts tools that the server runs.",
     no_effect},
    {"metadata", here, metadata_type, "Told back.", take_metadata},
    {"model", here, text(1, 0), "The served model, or absent.", keep<&GenerationRequest::model>},
    {"moderation", here, nothing, not_served_about, not_served},
    {"parallel_tool_calls", here, boolean(), "Several calls in one answer.", take_parallel},
    {"previous_response_id", here, text(1, 256), "The stored response that this one goes on from.",
     take_previous},
    {"prompt", here, nothing, "Not served: there are no stored prompts.", not_served},
    {"prompt_cache_key", here, any_text, "Accepted without effect: equal beginnings are always shared.",
     no_effect},
    {"prompt_cache_options", here, any_object, no_effect_about, no_effect_object},
    {"prompt_cache_retention", here, any_text, no_effect_about, no_effect},
    {"reasoning", here, reasoning_type, "How long a reasoning model thinks, and how that is told.",
     take_reasoning},
    {"safety_identifier", here, any_text, no_effect_about, no_effect},
    shared<&Sampling::seed>(sampling::seed, here),
    {"service_tier", here, any_text, no_effect_about, no_effect},
    {"store", here, boolean(), "false: the response cannot be asked for or gone on from.",
     keep_option<&ResponseOptions::store>},
    {"stream", here, boolean(), "Server-sent events, as tokens come.", keep<&GenerationRequest::stream>},
    {"stream_options", here, any_object, no_effect_about, no_effect_object},
    shared<&Sampling::temperature>(sampling::temperature, here),
    {"text", here, format_type, "What the answer's text is.", take_text},
    {"tool_choice", here, choice_type, "Which tools may be called.", take_tool_choice},
    {"tools", here, tools_type, "Functions that the client runs.", take_tools},
    shared<&Sampling::top_k>(sampling::top_k, here),
    {"top_logprobs", here, integer(0, most_top_logprobs), "Likeliest tokens reported beside each.",
     keep<&Reading::top_logprobs>},
    shared<&Sampling::top_p>(sampling::top_p, here),
    {"truncation", here, other(R"({"enum":["auto","disabled"]})"),
     "auto: the oldest turns of a conversation beyond the context fall away; else it is refused.",
     take_truncation},
    {"user", here, any_text, no_effect_about, no_effect},
};

}  // namespace

std::span<const FieldRule> responses_fields() { return rules; }

Refused check_responses(const Reading& reading) {
  GenerationRequest& request = reading.request;
  const bool goes_on = !request.response.previous.empty() && !request.response_input.value;
  if (request.messages.empty() && request.response_input.referred.empty() && !goes_on)
    return bad_field("input", " must be a string or an array of items, or absent with previous_response_id");
  if (reading.wants_logprobs || reading.top_logprobs.value_or(0) > 0)
    request.sampling.logprobs = reading.top_logprobs.value_or(0);
  if (request.response.background && !request.response.store)
    return bad_field("background", " needs store: the response has to be asked for later");
  return {};
}

}  // namespace nibble::api
