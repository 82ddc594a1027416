// Harmony for tests/harmony_test.py, without a model. Arguments: a tokenizer (a folder, tokenizer.json or
// rank file) and, for a rank file, its encoding. Standard input: a JSON object a line, one of
//   {"render": [{"role", "name", "recipient", "channel", "content_type", "constrained", "content"}, ...],
//    "drop_analysis": bool, "add_generation_prompt": bool}                 -> {"ids": [...], "text": "..."}
//   {"chat": [API messages], "tools": [...], "variables": {...}, "reasoning_effort": "..."} -> the same
//   {"system": {"date", "effort", "tools": bool}} or {"developer": {"instructions", "tools"}} -> {"text":
//   "..."}
//   {"parse": [ids], "role": "assistant" or null}                          -> {"messages": [...], "deltas":
//   [...]}
#include <iostream>
#include <string>

#include "base/json_writer.h"
#include "text/chat_template.h"
#include "text/harmony.h"
#include "text/harmony_parser.h"

namespace {

using namespace nibble;

std::string text_of(const JsonValue& object, std::string_view name) {
  const auto member = object.find(name);
  return member && member->is_string() ? std::string(member->as_string()) : std::string();
}

std::optional<JsonValue> non_null(std::optional<JsonValue> value) {
  return value && !value->is_null() ? value : std::nullopt;
}

HarmonyMessage harmony_message(const JsonValue& given) {
  const auto constrained = given.find("constrained");
  return {.role = parse_role(text_of(given, "role")).value(),
          .name = text_of(given, "name"),
          .recipient = text_of(given, "recipient"),
          .channel = text_of(given, "channel"),
          .content_type = text_of(given, "content_type"),
          .constrained = constrained && constrained->is_bool() && constrained->as_bool(),
          .content = text_of(given, "content")};
}

Message chat_message(const JsonValue& given) {
  Message message{.role = parse_role(text_of(given, "role")).value()};
  if (const auto content = non_null(given.find("content")))
    message.content = std::string(content->as_string());
  message.name = text_of(given, "name");
  message.reasoning = text_of(given, "reasoning_content");
  message.tool_call_id = text_of(given, "tool_call_id");
  if (const auto calls = non_null(given.find("tool_calls"))) {
    for (const JsonValue call : calls->elements()) {
      const JsonValue function = *call.find("function");
      message.tool_calls.push_back(
          {text_of(call, "id"), text_of(function, "name"), text_of(function, "arguments")});
    }
  }
  return message;
}

void write_prompt(JsonWriter& out, const Tokenizer& tokenizer, const RenderedPrompt& prompt) {
  out.key("ids").begin_array();
  for (const TokenId id : tokenizer.encode(prompt.text, prompt.trusted)) out.value(id);
  out.end_array().member("text", std::string_view(prompt.text));
}

void write_message(JsonWriter& out, const HarmonyHeader& header, const std::string& content) {
  out.begin_object().member("role", role_name(header.role));
  out.member("name", std::string_view(header.name)).member("recipient", std::string_view(header.recipient));
  out.member("channel", std::string_view(header.channel));
  out.member("content_type", std::string_view(header.content_type));
  out.member("content", std::string_view(content)).end_object();
}

void parse(JsonWriter& out, const Tokenizer& tokenizer, const HarmonyTokens& tokens,
           const JsonValue& command) {
  HarmonyParser parser(tokenizer, tokens, parse_role(text_of(command, "role")));
  std::vector<HarmonyEvent> events;
  for (const JsonValue id : command.find("parse")->elements()) {
    parser.push(static_cast<TokenId>(id.as_integer()), events);
  }
  parser.finish(events);
  out.key("messages").begin_array();
  HarmonyHeader header;
  std::string content;
  for (const HarmonyEvent& event : events) {
    switch (event.kind) {
      case HarmonyEvent::Kind::begin:
        header = event.header;
        content.clear();
        break;
      case HarmonyEvent::Kind::content: content += event.text; break;
      case HarmonyEvent::Kind::end: write_message(out, header, content); break;
    }
  }
  out.end_array();
}

Result<bool> answer(JsonWriter& out, const Tokenizer& tokenizer, const HarmonyTokens& tokens,
                    const JsonValue& command) {
  if (const auto given = command.find("render")) {
    std::vector<HarmonyMessage> messages;
    for (const JsonValue each : given->elements()) messages.push_back(harmony_message(each));
    write_prompt(
        out, tokenizer,
        render_harmony(messages, {.add_generation_prompt = command.find("add_generation_prompt")->as_bool(),
                                  .drop_analysis = command.find("drop_analysis")->as_bool()}));
  } else if (const auto chat = command.find("chat")) {
    ChatRequest request;
    for (const JsonValue each : chat->elements()) request.messages.push_back(chat_message(each));
    request.tools = non_null(command.find("tools"));
    request.template_variables = non_null(command.find("variables"));
    request.reasoning_effort = text_of(command, "reasoning_effort");
    const std::tm now{.tm_mday = 5, .tm_mon = 7, .tm_year = 125};
    NIBBLE_ASSIGN(const RenderedPrompt prompt, ChatTemplate::harmony("test").render(request, now));
    write_prompt(out, tokenizer, prompt);
  } else if (const auto system = command.find("system")) {
    const std::string text = harmony_system_text(
        {.current_date = text_of(*system, "date"), .reasoning_effort = text_of(*system, "effort")},
        system->find("tools")->as_bool());
    out.member("text", std::string_view(text));
  } else if (const auto developer = command.find("developer")) {
    const auto instructions = non_null(developer->find("instructions"));
    NIBBLE_ASSIGN(const std::string text,
                  harmony_developer_text(
                      instructions ? std::optional(std::string(instructions->as_string())) : std::nullopt,
                      non_null(developer->find("tools"))));
    out.member("text", std::string_view(text));
  } else {
    parse(out, tokenizer, tokens, command);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const auto tokenizer = Tokenizer::load(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
  if (!tokenizer.ok()) {
    std::cerr << "error: " << tokenizer.status().message() << "\n";
    return tokenizer.status().exit_code();
  }
  const HarmonyTokens tokens = HarmonyTokens::find(*tokenizer).value();
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto command = JsonDocument::parse(line).value();
    std::string text;
    JsonWriter out(text);
    out.begin_object();
    if (const auto done = answer(out, *tokenizer, tokens, command.root()); !done.ok()) {
      out.member("error", std::string_view(done.status().message()));
    }
    out.end_object();
    std::cout << text << "\n";
  }
  return 0;
}
