#include "text/harmony.h"

#include <algorithm>

#include "text/jinja/jinja_text.h"

namespace nibble {

std::string_view role_name(Role role) {
  switch (role) {
    case Role::system: return "system";
    case Role::developer: return "developer";
    case Role::user: return "user";
    case Role::assistant: return "assistant";
    case Role::tool: return "tool";
  }
  return "";
}

std::optional<Role> parse_role(std::string_view name) {
  for (const Role role : {Role::system, Role::developer, Role::user, Role::assistant, Role::tool}) {
    if (role_name(role) == name) return role;
  }
  return std::nullopt;
}

std::string harmony_system_text(const HarmonySystem& system, bool has_function_tools) {
  std::string text = system.model_identity + "\nKnowledge cutoff: " + system.knowledge_cutoff;
  if (!system.current_date.empty()) text += "\nCurrent date: " + system.current_date;
  text += "\n\nReasoning: " + system.reasoning_effort +
          "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.";
  if (has_function_tools) text += "\nCalls to these tools must go to the commentary channel: 'functions'.";
  return text;
}

namespace {

// "// " before every line; a last empty line and carriage returns go, as with Rust's lines().
std::string commented(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t newline = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, newline);
    if (newline < text.size() && line.ends_with('\r')) line.remove_suffix(1);
    out += "// " + std::string(line) + "\n";
    text.remove_prefix(std::min(newline + 1, text.size()));
  }
  return out;
}

Result<std::string> tool_text(const JsonValue& tool) {
  const auto function = tool.is_object() ? tool.find("function") : std::nullopt;
  const auto name = function ? function->find("name") : std::nullopt;
  if (!name || !name->is_string() || name->as_string().empty()) {
    return invalid_argument("tools: each tool needs a \"function\" with a \"name\"");
  }
  std::string text;
  if (const auto description = function->find("description"); description && description->is_string()) {
    text += commented(description->as_string());
  }
  text += "type " + std::string(name->as_string()) + " = ";
  const auto parameters = function->find("parameters");
  text += parameters && !parameters->is_null() ? "(_: " + harmony_typescript(*parameters) + ") => any;\n\n"
                                               : std::string("() => any;\n\n");
  return text;
}

bool has_tools(const std::optional<JsonValue>& tools) {
  return tools && tools->is_array() && tools->size() > 0;
}

}  // namespace

Result<std::string> harmony_developer_text(const std::optional<std::string>& instructions,
                                           const std::optional<JsonValue>& tools) {
  std::string text;
  if (instructions) text = "# Instructions\n\n" + *instructions;
  if (!has_tools(tools)) return text;
  if (instructions) text += "\n\n";
  text += "# Tools\n\n## functions\n\nnamespace functions {\n\n";
  for (const JsonValue tool : tools->elements()) {
    NIBBLE_ASSIGN(const std::string described, tool_text(tool));
    text += described;
  }
  return text + "} // namespace functions";
}

namespace {

void append_message(jinja::Text& out, const HarmonyMessage& message) {
  out.append_trusted("<|start|>");
  if (message.role == Role::tool) {
    out.append_untrusted(message.name);
  } else {
    out.append_untrusted(role_name(message.role));
    if (!message.name.empty()) out.append_untrusted(":" + message.name);
  }
  if (!message.recipient.empty() && message.recipient != "all")
    out.append_untrusted(" to=" + message.recipient);
  if (!message.channel.empty()) {
    out.append_trusted("<|channel|>");
    out.append_untrusted(message.channel);
  }
  if (!message.content_type.empty() || message.constrained) {
    out.append_untrusted(" ");
    if (message.constrained) out.append_trusted("<|constrain|>");
    out.append_untrusted(message.content_type);
  }
  out.append_trusted("<|message|>");
  out.append_untrusted(message.content);
  out.append_trusted(message.role == Role::assistant && !message.recipient.empty() ? "<|call|>" : "<|end|>");
}

}  // namespace

RenderedPrompt render_harmony(std::span<const HarmonyMessage> messages, const HarmonyRenderOptions& options) {
  const auto is_final = [](const HarmonyMessage& message) { return message.channel == "final"; };
  const auto last_assistant =
      std::find_if(messages.rbegin(), messages.rend(),
                   [](const HarmonyMessage& message) { return message.role == Role::assistant; });
  const bool drop = options.drop_analysis && last_assistant != messages.rend() && is_final(*last_assistant);
  const auto first_final = std::find_if(messages.begin(), messages.end(), is_final);
  jinja::Text out;
  for (auto message = messages.begin(); message != messages.end(); ++message) {
    if (drop && message < first_final && message->channel == "analysis") continue;
    append_message(out, *message);
  }
  if (options.add_generation_prompt) {
    out.append_trusted("<|start|>");
    out.append_untrusted("assistant");
  }
  return {out.bytes(), out.trusted()};
}

namespace {

// The name behind a tool message: that of the call it answers, or its own.
Result<std::string> answered_tool(const ChatRequest& request, std::size_t at) {
  const Message& answer = request.messages[at];
  const ToolCall* latest = nullptr;
  for (std::size_t i = 0; i < at; ++i) {
    for (const ToolCall& call : request.messages[i].tool_calls) {
      if (!answer.tool_call_id.empty() && call.id == answer.tool_call_id) return call.name;
      latest = &call;
    }
  }
  if (!answer.name.empty()) return answer.name;
  if (answer.tool_call_id.empty() && latest != nullptr) return latest->name;
  return invalid_argument("messages[" + std::to_string(at) + "]: no call has the tool_call_id \"" +
                          answer.tool_call_id + "\"");
}

void append_assistant(const Message& message, bool keep_reasoning, std::vector<HarmonyMessage>& out) {
  if (!message.reasoning.empty() && keep_reasoning) {
    out.push_back({.role = Role::assistant, .channel = "analysis", .content = message.reasoning});
  }
  const bool calls = !message.tool_calls.empty();
  if (message.content && (!message.content->empty() || !calls)) {
    // Text beside a call is what the format calls a preamble.
    out.push_back(
        {.role = Role::assistant, .channel = calls ? "commentary" : "final", .content = *message.content});
  }
  for (const ToolCall& call : message.tool_calls) {
    out.push_back({.role = Role::assistant,
                   .recipient = "functions." + call.name,
                   .channel = "commentary",
                   .content_type = "json",
                   .constrained = true,
                   .content = call.arguments});
  }
}

}  // namespace

Result<std::vector<HarmonyMessage>> harmony_conversation(const ChatRequest& request, HarmonySystem system) {
  if (!request.reasoning_effort.empty()) system.reasoning_effort = request.reasoning_effort;
  if (system.reasoning_effort != "low" && system.reasoning_effort != "medium" &&
      system.reasoning_effort != "high") {
    return invalid_argument("reasoning_effort \"" + system.reasoning_effort +
                            "\" is unknown; low, medium and high are");
  }
  const auto& messages = request.messages;
  const auto instructs = [](const Message& m) { return m.role == Role::system || m.role == Role::developer; };
  std::size_t at = 0;
  std::optional<std::string> instructions;
  for (; at < messages.size() && instructs(messages[at]); ++at) {
    instructions =
        (instructions ? *instructions + "\n\n" : std::string()) + messages[at].content.value_or("");
  }
  std::vector<HarmonyMessage> out;
  const bool tools = has_tools(request.tools);
  out.push_back({.role = Role::system, .content = harmony_system_text(system, tools)});
  if (instructions || tools) {
    NIBBLE_ASSIGN(std::string text, harmony_developer_text(instructions, request.tools));
    out.push_back({.role = Role::developer, .content = std::move(text)});
  }
  // Reasoning up to the last final answer has done its work.
  std::size_t last_final = 0;
  for (std::size_t i = at; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == Role::assistant && message.tool_calls.empty() && message.content) last_final = i + 1;
  }
  for (; at < messages.size(); ++at) {
    const Message& message = messages[at];
    switch (message.role) {
      case Role::system:
      case Role::developer: {
        NIBBLE_ASSIGN(std::string text, harmony_developer_text(message.content.value_or(""), std::nullopt));
        out.push_back({.role = Role::developer, .content = std::move(text)});
        break;
      }
      case Role::user:
        out.push_back({.role = Role::user, .name = message.name, .content = message.content.value_or("")});
        break;
      case Role::assistant: append_assistant(message, at >= last_final, out); break;
      case Role::tool: {
        NIBBLE_ASSIGN(const std::string name, answered_tool(request, at));
        out.push_back({.role = Role::tool,
                       .name = "functions." + name,
                       .recipient = "assistant",
                       .channel = "commentary",
                       .content = message.content.value_or("")});
        break;
      }
    }
  }
  return out;
}

}  // namespace nibble
