#include "text/chat_template.h"

#include <algorithm>

#include "base/file.h"
#include "base/quote.h"
#include "text/harmony.h"
#include "text/jinja/jinja_value.h"
#include "text/open_message.h"

namespace nibble {

using jinja::Dict;
using jinja::Value;

namespace {

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxConfigBytes = std::size_t{32} << 20;

Result<JsonDocument> read_json(const std::filesystem::path& path) {
  NIBBLE_ASSIGN(std::string text, read_file(path, kMaxConfigBytes));
  auto document = JsonDocument::parse(std::move(text));
  if (!document.ok()) return broken_model(path.string() + ": " + document.status().message());
  return document;
}

bool is_gpt_oss(const std::filesystem::path& model_dir) {
  std::error_code error;
  if (!std::filesystem::exists(model_dir / "config.json", error)) return false;
  const auto config = read_json(model_dir / "config.json");
  if (!config.ok()) return false;  // the checkpoint's own reader says what is wrong with it
  const auto type = config->root().find("model_type");
  return type && type->is_string() && type->as_string() == "gpt_oss";
}

// The template of a tokenizer_config.json: a text, or the one named "default" of a list.
Result<std::optional<std::string>> template_of(const JsonValue& config) {
  const auto given = config.find("chat_template");
  if (!given || given->is_null()) return std::optional<std::string>();
  if (given->is_string()) return std::optional<std::string>(given->as_string());
  std::optional<std::string> first;
  if (given->is_array()) {
    for (const JsonValue each : given->elements()) {
      const auto name = each.find("name");
      const auto source = each.find("template");
      if (!name || !name->is_string() || !source || !source->is_string()) continue;
      if (name->as_string() == "default") return std::optional<std::string>(source->as_string());
      if (!first) first = std::string(source->as_string());
    }
  }
  if (first) return first;
  return broken_model(
      "tokenizer_config.json: \"chat_template\" is neither a text nor a list of named templates");
}

std::vector<std::pair<std::string, std::string>> special_tokens_of(const JsonValue& config) {
  std::vector<std::pair<std::string, std::string>> tokens;
  for (const char* name :
       {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
    auto value = config.find(name);
    if (value && value->is_object()) value = value->find("content");
    if (value && value->is_string()) tokens.emplace_back(name, std::string(value->as_string()));
  }
  return tokens;
}

bool is_kimi_tokenizer(const JsonValue& config) {
  const auto name = config.find("tokenizer_class");
  return name && name->is_string() && name->as_string() == "TikTokenTokenizer";
}

Result<Value> with_sorted_keys(const Value& value) {
  NIBBLE_ASSIGN(std::string text, jinja::to_json(value, {.sort_keys = true}));
  NIBBLE_ASSIGN(const JsonDocument sorted, JsonDocument::parse(std::move(text)));
  return Value::from_json(sorted.root());
}

}  // namespace

bool is_openai_harmony_template(const JinjaTemplate& parsed) {
  return parsed.defines_macro("render_typescript_type") && parsed.defines_macro("render_tool_namespace") &&
         parsed.defines_macro("build_system_message");
}

ChatTemplate ChatTemplate::harmony(std::string why) {
  ChatTemplate chat;
  chat.kind_ = Kind::harmony;
  chat.call_form_ = CallForm::harmony;
  chat.why_ = std::move(why);
  return chat;
}

Result<ChatTemplate> ChatTemplate::from_source(std::string_view source, std::string_view tokenizer_config,
                                               const jinja::Settings& limits) {
  NIBBLE_ASSIGN(JinjaTemplate parsed, JinjaTemplate::parse(source));
  if (is_openai_harmony_template(parsed)) {
    return harmony("harmony, rendered natively: the template is OpenAI's of gpt-oss");
  }
  NIBBLE_ASSIGN(const JsonDocument config, JsonDocument::parse(std::string(tokenizer_config)));
  ChatTemplate chat;
  chat.limits_ = limits;
  chat.special_tokens_ = special_tokens_of(config.root());
  chat.sorts_tools_ = is_kimi_tokenizer(config.root());
  chat.jinja_.push_back(std::move(parsed));
  chat.choose_tool_call_form();
  chat.why_ = "the model's own template";
  chat.call_form_ = call_form_of(source);
  if (chat.call_form_ != CallForm::none)
    chat.why_ += "; calls of tools: " + std::string(call_form_name(chat.call_form_));
  return chat;
}

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model_dir) {
  std::error_code error;
  const auto config_path = model_dir / "tokenizer_config.json";
  std::string config_text = "{}";
  if (std::filesystem::exists(config_path, error)) {
    NIBBLE_ASSIGN(config_text, read_file(config_path, kMaxConfigBytes));
  }
  auto config = JsonDocument::parse(config_text);
  if (!config.ok()) return broken_model(config_path.string() + ": " + config.status().message());
  std::optional<std::string> source;
  std::string origin = "chat_template.jinja";
  if (std::filesystem::exists(model_dir / origin, error)) {
    NIBBLE_ASSIGN(source, read_file(model_dir / origin, kMaxTemplateBytes));
  } else {
    origin = "tokenizer_config.json";
    NIBBLE_ASSIGN(source, template_of(config->root()));
  }
  if (source) {
    auto chat = from_source(*source, config_text);
    if (!chat.ok()) return chat.status().with_context((model_dir / origin).string());
    chat->why_ += " (" + origin + ")";
    return chat;
  }
  if (is_gpt_oss(model_dir)) return harmony("harmony: a gpt_oss model without a template of its own");
  return not_found(model_dir.string() +
                   " has no chat template: neither chat_template.jinja nor \"chat_template\" in "
                   "tokenizer_config.json; give a plain prompt instead");
}

namespace {

Result<Value> arguments_value(const ToolCall& call, bool as_text) {
  if (!as_text) {
    const auto parsed = JsonDocument::parse(call.arguments);
    if (parsed.ok() && parsed->root().is_object()) return Value::from_json(parsed->root());
  }
  return Value::untrusted(call.arguments);
}

Result<Value> tool_calls_value(const std::vector<ToolCall>& calls, bool arguments_as_text) {
  std::vector<Value> list;
  list.reserve(calls.size());
  for (const ToolCall& call : calls) {
    Dict function;
    NIBBLE_ASSIGN(Value arguments, arguments_value(call, arguments_as_text));
    function.set(Value::trusted("name"), Value::untrusted(call.name));
    function.set(Value::trusted("arguments"), std::move(arguments));
    Dict entry;
    entry.set(Value::trusted("id"), Value::untrusted(call.id));
    entry.set(Value::trusted("type"), Value::trusted("function"));
    NIBBLE_ASSIGN(Value function_value, Value::dict(std::move(function)));
    entry.set(Value::trusted("function"), std::move(function_value));
    NIBBLE_ASSIGN(Value entry_value, Value::dict(std::move(entry)));
    list.push_back(std::move(entry_value));
  }
  return Value::list(std::move(list));
}

Value content_value(const Message& message, bool null_as_text) {
  if (message.content) return Value::untrusted(*message.content);
  return null_as_text ? Value::untrusted("") : Value::none();
}

}  // namespace

Result<Value> ChatTemplate::message_value(const Message& message, ToolCallForm form) {
  Dict entry;
  // One of five words of ours, so as trustworthy as the template that prints it.
  entry.set(Value::trusted("role"), Value::trusted(std::string(role_name(message.role))));
  entry.set(Value::trusted("content"), content_value(message, form.null_content_as_text));
  if (!message.name.empty()) entry.set(Value::trusted("name"), Value::untrusted(message.name));
  if (!message.reasoning.empty()) {
    entry.set(Value::trusted("reasoning_content"), Value::untrusted(message.reasoning));
    entry.set(Value::trusted("thinking"), Value::untrusted(message.reasoning));
  }
  if (!message.tool_calls.empty()) {
    NIBBLE_ASSIGN(Value calls, tool_calls_value(message.tool_calls, form.arguments_as_text));
    entry.set(Value::trusted("tool_calls"), std::move(calls));
  }
  if (!message.tool_call_id.empty()) {
    entry.set(Value::trusted("tool_call_id"), Value::untrusted(message.tool_call_id));
  }
  return Value::dict(std::move(entry));
}

Result<RenderedPrompt> ChatTemplate::render_jinja(const ChatRequest& request, const std::tm& now,
                                                  ToolCallForm form) const {
  jinja::Variables variables;
  if (request.template_variables) {
    if (!request.template_variables->is_object()) {
      return invalid_argument("the template's variables are a JSON object");
    }
    for (const auto& member : request.template_variables->members()) {
      NIBBLE_ASSIGN(Value value, Value::from_json(member.second));
      variables.emplace_back(std::string(member.first), std::move(value));
    }
  }
  // What follows wins over a variable of the same name.
  std::vector<Value> messages;
  messages.reserve(request.messages.size());
  for (const Message& message : request.messages) {
    NIBBLE_ASSIGN(Value value, message_value(message, form));
    messages.push_back(std::move(value));
  }
  NIBBLE_ASSIGN(Value message_list, Value::list(std::move(messages)));
  variables.emplace_back("messages", std::move(message_list));
  Value tools = Value::none();
  if (request.tools && request.tools->is_array() && request.tools->size() > 0) {
    NIBBLE_ASSIGN(tools, Value::from_json(*request.tools));
    if (sorts_tools_) {
      NIBBLE_ASSIGN(tools, with_sorted_keys(tools));
    }
  }
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("documents", Value::none());
  variables.emplace_back("add_generation_prompt", Value::boolean(request.add_generation_prompt));
  if (!request.reasoning_effort.empty()) {
    variables.emplace_back("reasoning_effort", Value::untrusted(request.reasoning_effort));
  }
  for (const auto& [name, spelling] : special_tokens_) variables.emplace_back(name, Value::trusted(spelling));
  jinja::Settings settings = limits_;
  settings.now = now;
  return jinja_.front().render(variables, settings);
}

// Templates differ in whether a call's arguments are a mapping or its JSON text, and in whether an
// assistant's absent content is None: the first form with which a conversation with a call renders is taken.
void ChatTemplate::choose_tool_call_form() {
  ChatRequest probe;
  probe.messages.push_back({.role = Role::user, .content = "Hi"});
  probe.messages.push_back({.role = Role::assistant,
                            .tool_calls = {{.id = "call000001", .name = "f", .arguments = "{\"a\": 1}"}}});
  probe.messages.push_back({.role = Role::tool, .content = "1", .name = "f", .tool_call_id = "call000001"});
  for (const bool arguments_as_text : {false, true}) {
    for (const bool null_content_as_text : {false, true}) {
      const ToolCallForm form{arguments_as_text, null_content_as_text};
      if (render_jinja(probe, std::tm{.tm_mday = 1, .tm_year = 125}, form).ok()) {
        form_ = form;
        return;
      }
    }
  }
}

Result<RenderedPrompt> ChatTemplate::render(const ChatRequest& request, const std::tm& now) const {
  NIBBLE_ASSIGN(RenderedPrompt prompt, render_whole(request, now));
  if (request.continue_final_message && !request.messages.empty())
    NIBBLE_RETURN_IF_ERROR(leave_open(request.messages.back(), prompt));
  return prompt;
}

Result<RenderedPrompt> ChatTemplate::render_whole(const ChatRequest& request, const std::tm& now) const {
  if (kind_ == Kind::jinja) return render_jinja(request, now, form_);
  HarmonySystem system;
  char date[16];
  const std::size_t length = std::strftime(date, sizeof date, "%Y-%m-%d", &now);
  system.current_date.assign(date, length);
  if (request.template_variables) {
    const auto identity = request.template_variables->find("model_identity");
    if (identity && identity->is_string()) system.model_identity = identity->as_string();
    const auto builtin = request.template_variables->find("builtin_tools");
    if (builtin && builtin->is_array() && builtin->size() > 0) {
      const JsonValue first = *builtin->elements().begin();
      return invalid_argument(
          "chat_template_kwargs.builtin_tools: " +
          (first.is_string() ? quote(first.as_string()) : std::string("none of these")) +
          " is not served: nothing here runs tools; offer functions, which the client runs");
    }
  }
  NIBBLE_ASSIGN(const std::vector<HarmonyMessage> messages, harmony_conversation(request, std::move(system)));
  return render_harmony(messages, {.add_generation_prompt = request.add_generation_prompt});
}

}  // namespace nibble
