#include "server/api/messages_request.h"

#include <array>

#include "base/json_copy.h"
#include "base/quote.h"
#include "server/api/field_rules.h"
#include "server/api/tool_forms.h"
#include "server/api/unserved_rules.h"

namespace nibble::api {
namespace {

constexpr Where here = Where::messages;

// The member's text, or what is wrong with it.
Refused member_text(const std::string& where, JsonValue object, std::string_view name, std::string& text) {
  const auto member = object.find(name);
  const std::string field = where + "." + std::string(name);
  if (!member) return bad_field(field, " must be there");
  return read_text(field, *member, text);
}

Refused block_type(const std::string& where, JsonValue block, std::string_view& type) {
  const auto named = block.find("type");
  if (!named || !named->is_string()) return bad_field(where, " must be an object with a type");
  type = named->as_string();
  return {};
}

Refused unserved_block(const std::string& where, std::string_view type) {
  return bad_field(where + ".type", " " + quote(type) + " is not served: this model reads text alone");
}

// A text, or blocks of text, joined; blocks that begin with `left_out` are none of it.
Refused read_texts(const std::string& field, JsonValue value, std::string& text,
                   std::string_view left_out = {}) {
  if (value.is_string()) {
    text += value.as_string();
    return {};
  }
  if (!value.is_array()) return bad_field(field, " must be a string or an array of text blocks");
  int number = 0;
  for (const JsonValue block : value.elements()) {
    const std::string where = field + "[" + std::to_string(number++) + "]";
    std::string_view type;
    if (Refused refused = block_type(where, block, type)) return refused;
    if (type != "text") return unserved_block(where, type);
    std::string more;
    if (Refused refused = member_text(where, block, "text", more)) return refused;
    if (left_out.empty() || !more.starts_with(left_out)) text += more;
  }
  return {};
}

Refused read_tool_result(const std::string& where, JsonValue block, std::vector<Message>& messages) {
  Message result{.role = Role::tool, .content = ""};
  if (Refused refused = member_text(where, block, "tool_use_id", result.tool_call_id)) return refused;
  if (const auto content = block.find("content"); content && !content->is_null()) {
    if (Refused refused = read_texts(where + ".content", *content, *result.content)) return refused;
  }
  if (const auto failed = block.find("is_error"); failed && !failed->is_null()) {
    bool is_error = false;
    if (Refused refused = read_bool(where + ".is_error", *failed, is_error)) return refused;
    if (is_error) *result.content = "Error: " + *result.content;  // templates have no other place for it
  }
  messages.push_back(std::move(result));
  return {};
}

Refused read_tool_use(const std::string& where, JsonValue block, Message& message) {
  ToolCall call;
  if (Refused refused = member_text(where, block, "id", call.id)) return refused;
  if (Refused refused = member_text(where, block, "name", call.name)) return refused;
  const auto input = block.find("input");
  if (!input || !input->is_object()) return bad_field(where + ".input", " must be an object");
  JsonWriter json(call.arguments);
  copy_json(*input, json);
  message.tool_calls.push_back(std::move(call));
  return {};
}

// A user's blocks: results of tools become messages of their own, in their place among the texts.
Refused read_user_blocks(const std::string& field, JsonValue value, std::vector<Message>& messages) {
  bool open = false;  // the last message is this one's text
  int number = 0;
  for (const JsonValue block : value.elements()) {
    const std::string where = field + "[" + std::to_string(number++) + "]";
    std::string_view type;
    if (Refused refused = block_type(where, block, type)) return refused;
    if (type == "tool_result") {
      if (Refused refused = read_tool_result(where, block, messages)) return refused;
      open = false;
      continue;
    }
    if (type != "text") return unserved_block(where, type);
    std::string text;
    if (Refused refused = member_text(where, block, "text", text)) return refused;
    if (!open) messages.push_back({.role = Role::user, .content = ""});
    open = true;
    *messages.back().content += text;
  }
  return {};
}

Refused read_assistant_blocks(const std::string& field, JsonValue value, Message& message) {
  int number = 0;
  for (const JsonValue block : value.elements()) {
    const std::string where = field + "[" + std::to_string(number++) + "]";
    std::string_view type;
    if (Refused refused = block_type(where, block, type)) return refused;
    std::string text;
    if (type == "text") {
      if (Refused refused = member_text(where, block, "text", text)) return refused;
      message.content = message.content.value_or("") + text;
    } else if (type == "thinking") {
      if (Refused refused = member_text(where, block, "thinking", text)) return refused;
      message.reasoning += text;
    } else if (type == "redacted_thinking") {
      continue;  // what another server alone can read
    } else if (type == "tool_use") {
      if (Refused refused = read_tool_use(where, block, message)) return refused;
    } else {
      return unserved_block(where, type);
    }
  }
  return {};
}

Refused read_message(const std::string& where, JsonValue value, std::vector<Message>& messages) {
  if (!value.is_object()) return bad_field(where, " must be an object");
  const auto named = value.find("role");
  const std::optional<Role> role =
      named && named->is_string() ? parse_role(named->as_string()) : std::nullopt;
  if (role != Role::user && role != Role::assistant && role != Role::system)
    return bad_field(where + ".role", " must be user, assistant or system");
  const std::string field = where + ".content";
  const auto content = value.find("content");
  if (!content || !(content->is_string() || content->is_array()))
    return bad_field(field, " must be a string or an array of content blocks");
  if (content->is_string()) {
    messages.push_back({.role = *role, .content = std::string(content->as_string())});
    return {};
  }
  if (role == Role::user) return read_user_blocks(field, *content, messages);
  Message message{.role = *role, .content = {}};
  if (role == Role::system) {
    if (Refused refused = read_texts(field, *content, message.content.emplace())) return refused;
  } else {
    if (Refused refused = read_assistant_blocks(field, *content, message)) return refused;
    // An answer that was cut before its text comes back as it was told: it said nothing.
    if (!message.content && message.tool_calls.empty()) message.content.emplace();
  }
  messages.push_back(std::move(message));
  return {};
}

Refused take_messages(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_array() || value.json.size() == 0)
    return bad_field(field, " must be an array of at least one message");
  int number = 0;
  for (const JsonValue element : value.json.elements()) {
    if (Refused refused =
            read_message(field + "[" + std::to_string(number++) + "]", element, reading.request.messages))
      return refused;
  }
  return {};
}

// Claude Code tells its own version, another one each time, in a block that is for Anthropic's servers alone:
// with it no two prompts would begin alike.
Refused take_system(Reading& reading, const std::string& field, const FieldValue& value) {
  std::string& text = reading.request.instructions.emplace();
  Refused refused = read_texts(field, value.json, text, "x-anthropic-billing-header:");
  if (text.empty()) reading.request.instructions.reset();
  return refused;
}

Refused take_stop_sequences(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_array()) return bad_field(field, " must be an array of strings");
  return take_stop(reading, field, value);
}

Refused take_tools(Reading& reading, const std::string& field, const FieldValue& value) {
  return read_tools(field, value.json, messages_tools, reading.request.tool_use);
}

Refused take_tool_choice(Reading& reading, const std::string& field, const FieldValue& value) {
  ToolUse& use = reading.request.tool_use;
  const auto named = value.json.find("type");
  const std::string_view type = named && named->is_string() ? named->as_string() : "";
  if (type == "auto") {
    use.choice = ToolUse::Choice::automatic;
  } else if (type == "none") {
    use.choice = ToolUse::Choice::none;
  } else if (type == "any") {
    use.choice = ToolUse::Choice::required;
  } else if (type == "tool") {
    use.choice = ToolUse::Choice::named;
    if (Refused refused = member_text(field, value.json, "name", use.allowed.emplace_back())) return refused;
  } else {
    return bad_field(field + ".type", " must be auto, any, tool or none");
  }
  if (const auto one = value.json.find("disable_parallel_tool_use"); one && !one->is_null()) {
    bool single = false;
    if (Refused refused = read_bool(field + ".disable_parallel_tool_use", *one, single)) return refused;
    use.parallel = !single;
  }
  return {};
}

// Reasoning is shown or not; how much of it there is follows from the model and output_config.effort.
Refused take_thinking(Reading& reading, const std::string& field, const FieldValue& value) {
  const auto named = value.json.find("type");
  const std::string_view type = named && named->is_string() ? named->as_string() : "";
  if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools")
    return bad_field(field + ".type", " must be enabled, adaptive, between_tools or disabled");
  const auto budget = value.json.find("budget_tokens");
  if (type == "enabled" && !budget) return bad_field(field + ".budget_tokens", " must be there");
  if (budget) {
    std::int64_t tokens = 0;
    if (Refused refused = read_integer(field + ".budget_tokens", *budget, 1024, sampling::any_count, tokens))
      return refused;
  }
  reading.request.include_reasoning = type != "disabled";
  if (const auto display = value.json.find("display"); display && !display->is_null()) {
    if (!display->is_string() || (display->as_string() != "summarized" && display->as_string() != "omitted"))
      return bad_field(field + ".display", " must be summarized or omitted");
    if (display->as_string() == "omitted") reading.request.include_reasoning = false;
  }
  return {};
}

Refused read_format(const std::string& where, JsonValue value, TextFormat& format) {
  const auto type = value.find("type");
  if (!type || !type->is_string() || type->as_string() != "json_schema")
    return bad_field(where + ".type", " must be json_schema");
  const auto schema = value.find("schema");
  if (!schema || !schema->is_object()) return bad_field(where + ".schema", " must be an object");
  format = {
      .kind = TextFormat::Kind::json_schema, .name = {}, .schema = *schema, .strict = true, .field = where};
  return {};
}

// As Anthropic's beta named it.
Refused take_output_format(Reading& reading, const std::string& field, const FieldValue& value) {
  return read_format(field, value.json, reading.request.format);
}

Refused take_output_config(Reading& reading, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object");
  GenerationRequest& request = reading.request;
  for (const auto& [name, member] : value.json.members()) {
    const std::string where = field + "." + std::string(name);
    if (member.is_null()) continue;
    if (name == "effort") {
      std::string effort;
      if (Refused refused = read_text(where, member, effort)) return refused;
      if (effort == "xhigh" || effort == "max") effort = "high";  // the most that a template knows
      if (effort != "low" && effort != "medium" && effort != "high")
        return bad_field(where, " must be low, medium, high, xhigh or max");
      request.reasoning_effort = effort;
    } else if (name == "format") {
      if (Refused refused = read_format(where, member, request.format)) return refused;
    } else {
      return bad_field(where, " is not served; leave it out");
    }
  }
  return {};
}

// Thinking of earlier turns stays or goes as the model's template has it; nothing else leaves the
// conversation.
Refused take_context_management(Reading&, const std::string& field, const FieldValue& value) {
  if (!value.json.is_object()) return bad_field(field, " must be an object");
  const auto edits = value.json.find("edits");
  if (!edits || edits->is_null()) return {};
  if (!edits->is_array()) return bad_field(field + ".edits", " must be an array");
  int number = 0;
  for (const JsonValue edit : edits->elements()) {
    const std::string where = field + ".edits[" + std::to_string(number++) + "]";
    std::string_view type;
    if (Refused refused = block_type(where, edit, type)) return refused;
    if (!type.starts_with("clear_thinking"))
      return bad_field(where + ".type",
                       " " + quote(type) + " is not served: shorten the conversation before it is sent");
  }
  return {};
}

// A thread is kept by the server; its client goes on without one when it is told so.
Refused refuse_thread(Reading&, const std::string& field, const FieldValue&) {
  ApiError error = bad_field(field, " is not served: send the whole conversation each time");
  error.code = "thread_unsupported_request";
  return error;
}

Refused take_speed(Reading&, const std::string& field, const FieldValue& value) {
  if (value.json.is_string() && value.json.as_string() == "standard") return {};
  return bad_field(field, " other than standard is not served");
}

constexpr FieldType blocks_type =
    other(R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object","required":["type"],)"
          R"("properties":{"type":{"type":"string"}}}}]})");
constexpr FieldType messages_type = other(
    R"({"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],"properties":{)"
    R"("role":{"enum":["user","assistant","system"]},"content":{"anyOf":[{"type":"string"},)"
    R"({"type":"array","items":{"type":"object","required":["type"],"properties":{)"
    R"("type":{"enum":["text","thinking","redacted_thinking","tool_use","tool_result"]}}}}]}}}})");
constexpr FieldType stops_type =
    other(R"({"type":"array","maxItems":16,"items":{"type":"string","minLength":1,"maxLength":4096}})");
constexpr FieldType tools_type =
    other(R"({"type":"array","items":{"type":"object","required":["name"],"properties":{)"
          R"("name":{"type":"string","minLength":1},"description":{"type":["string","null"]},)"
          R"("type":{"enum":["custom",null]},"input_schema":{"type":["object","null"]}}}})");
constexpr FieldType choice_type = other(
    R"({"type":"object","required":["type"],"properties":{"type":{"enum":["auto","any","tool","none"]}}})");
constexpr FieldType thinking_type = other(
    R"({"type":"object","required":["type"],"properties":{)"
    R"("type":{"enum":["enabled","adaptive","between_tools","disabled"]},)"
    R"("budget_tokens":{"type":"integer","minimum":1024},"display":{"enum":["summarized","omitted",null]}}})");
constexpr FieldType context_type = other(
    R"({"type":"object","properties":{"edits":{"type":["array","null"],"items":{"type":"object","required":["type"],)"
    R"("properties":{"type":{"type":"string","pattern":"^clear_thinking"}}}}}})");
constexpr FieldType format_type = other(
    R"({"type":"object","required":["type","schema"],"properties":{"type":{"const":"json_schema"},"schema":{"type":"object"}}})");
constexpr FieldType output_type = other(
    R"({"type":"object","additionalProperties":false,"properties":{)"
    R"("effort":{"enum":["low","medium","high","xhigh","max",null]},"format":{"type":["object","null"]}}})");

constexpr FieldRule rules[] = {
    {"cache_control", here, any_object, "Accepted without effect: equal beginnings are always shared.",
     no_effect_object},
    {"container", here, nothing, not_served_about, not_served},
    {"context_management", here, context_type,
     "Which thinking of earlier turns stays is the template's choice.", take_context_management},
    {"diagnostics", here, any_object, no_effect_about, no_effect_object},
    {"inference_geo", here, nothing, not_served_about, not_served},
    {"max_tokens", here, integer(1, sampling::any_count),
     "Longest answer; cut to the room that the context leaves.", keep<&Sampling::max_tokens>},
    {"mcp_servers", here, nothing, not_served_about, not_served},
    {"messages", here, messages_type, "The conversation so far, as text or blocks of content.",
     take_messages},
    {"metadata", here, any_object, no_effect_about, no_effect_object},
    {"model", here, text(1, 0), "The served model, or absent.", keep<&GenerationRequest::model>},
    {"output_config", here, output_type, "How much a reasoning model thinks (effort).", take_output_config},
    {"output_format", here, format_type, "The same as output_config.format.", take_output_format},
    shared<&Sampling::seed>(sampling::seed, here),
    {"service_tier", here, any_text, no_effect_about, no_effect},
    {"speed", here, other(R"({"enum":["standard"]})"), "Standard alone.", take_speed},
    {"stop_sequences", here, stops_type,
     "At most 16 texts of up to 4096 characters that end the answer; not shown.", take_stop_sequences},
    {"stream", here, boolean(), "Server-sent events, as tokens come.", keep<&GenerationRequest::stream>},
    {"system", here, blocks_type, "Instructions before the conversation.", take_system},
    shared<&Sampling::temperature>(sampling::temperature, here),
    {"thinking", here, thinking_type, "Whether the answer shows the model's reasoning.", take_thinking},
    {"thread", here, never, "Not served: send the whole conversation.", refuse_thread},
    {"tool_choice", here, choice_type, "Which tools may be called.", take_tool_choice},
    {"tools", here, tools_type, "Tools that the client runs.", take_tools},
    shared<&Sampling::top_k>(sampling::top_k, here),
    shared<&Sampling::top_p>(sampling::top_p, here),
    {"user_profile_id", here, any_text, no_effect_about, no_effect},
};

// A last message of the assistant is how its answer begins; an empty one begins nothing.
Refused read_beginning(GenerationRequest& request) {
  const Message& last = request.messages.back();
  if (last.role != Role::assistant || !last.tool_calls.empty()) return {};
  const std::string_view text = last.content ? std::string_view(*last.content) : std::string_view();
  if (text.empty()) {
    request.messages.pop_back();
    if (request.messages.empty()) return bad_field("messages", " must have a message before the assistant's");
    return {};
  }
  if (std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos) {
    return bad_field("messages",
                     ": the last message of the assistant, which the answer goes on from, may not end with "
                     "white space");
  }
  if (request.format.kind != TextFormat::Kind::text) {
    return bad_field(
        request.format.field,
        " says how the whole answer is: it cannot be had beside a last message of the assistant, "
        "which the answer goes on from");
  }
  request.continue_final_message = true;
  request.add_generation_prompt = false;
  return {};
}

}  // namespace

std::span<const FieldRule> messages_fields() { return rules; }

Refused check_messages(const Reading& reading) {
  if (reading.request.messages.empty())
    return bad_field("messages", " must be an array of at least one message");
  return read_beginning(reading.request);
}

}  // namespace nibble::api
