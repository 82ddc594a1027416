#include "text/call_form.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json_copy.h"
#include "base/json_writer.h"

namespace nibble {
namespace {

using Reader = std::optional<ReadCall> (*)(std::string_view body, const OfferedTools& tools,
                                           CallBinding binding);

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view white = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(white);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(white) + 1 - begin);
}

// Takes the text up to the mark and the mark itself; nothing, and nothing taken, if there is none.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return before;
}

bool take(std::string_view& text, std::string_view mark) {
  if (!text.starts_with(mark)) return false;
  text.remove_prefix(mark.size());
  return true;
}

std::optional<std::string> object_text(JsonValue value) {
  if (!value.is_object()) return std::nullopt;
  std::string text;
  JsonWriter json(text);
  copy_json(value, json);
  return text;
}

std::optional<std::string> object_text(std::string_view text, CallBinding binding) {
  const auto document = JsonDocument::parse(std::string(text));
  if (!document.ok() && binding != CallBinding::free) return std::string(trimmed(text));
  return document.ok() ? object_text(document->root()) : std::nullopt;
}

// As grammar/call_grammar.cpp has it written: the call with all that follows the arguments' beginning.
std::optional<ReadCall> begin_bound_json(std::string_view body, std::string_view key) {
  if (!take(body, "{\"name\": \"")) return std::nullopt;
  const auto name = take_until(body, "\", \"" + std::string(key) + "\": ");
  if (!name) return std::nullopt;
  return ReadCall{.name = std::string(*name), .arguments = std::string(body), .id = {}};
}

std::optional<ReadCall> read_bound_json(std::string_view body, std::string_view key) {
  auto call = begin_bound_json(body, key);
  if (!call || !call->arguments.ends_with('}')) return std::nullopt;
  call->arguments.pop_back();
  return call;
}

// {"name": N, key: {...}}; some models write the arguments as a JSON string.
std::optional<ReadCall> read_named_json(std::string_view body, std::string_view key, CallBinding binding) {
  const auto document = JsonDocument::parse(std::string(body));
  if (!document.ok() && binding != CallBinding::free) return read_bound_json(body, key);
  if (!document.ok() || !document->root().is_object()) return std::nullopt;
  const auto name = document->root().find("name");
  auto arguments = document->root().find(key);
  if (!arguments) arguments = document->root().find("arguments");
  if (!name || !name->is_string()) return std::nullopt;
  std::optional<std::string> text = !arguments || arguments->is_null() ? "{}"
                                    : arguments->is_string()
                                        ? object_text(arguments->as_string(), CallBinding::free)
                                        : object_text(*arguments);
  if (!text) return std::nullopt;
  return ReadCall{.name = std::string(name->as_string()), .arguments = std::move(*text), .id = {}};
}

std::optional<ReadCall> read_json(std::string_view body, const OfferedTools&, CallBinding binding) {
  return read_named_json(body, "arguments", binding);
}

std::optional<ReadCall> read_bare_json(std::string_view body, const OfferedTools&, CallBinding binding) {
  return read_named_json(body, "parameters", binding);
}

void write_typed(JsonWriter& json, std::string_view text, ParameterKind kind, CallBinding binding) {
  if (kind == ParameterKind::text_or_null && text == "null") {
    json.null();
    return;
  }
  if (kind == ParameterKind::json) {
    if (const auto document = JsonDocument::parse(std::string(text)); document.ok()) {
      copy_json(document->root(), json);
      return;
    }
    if (binding != CallBinding::free) {
      json.raw(trimmed(text));
      return;
    }
  }
  json.value(text);
}

// whole: to the body's end, or it is no call. cut: as many as are there.
enum class Extent : bool { whole, cut };

// Arguments that are written one by one. The last of a name counts.
class Arguments {
 public:
  void set(std::string_view name, std::string_view value) {
    for (auto& [known, text] : all_) {
      if (known == name) {
        text = value;
        return;
      }
    }
    all_.emplace_back(name, value);
  }
  ReadCall call(std::string_view function, const OfferedTools& tools, CallBinding binding,
                Extent extent) const {
    ReadCall made{.name = std::string(function), .arguments = {}, .id = {}};
    JsonWriter json(made.arguments);
    json.begin_object();
    for (const auto& [name, value] : all_) {
      json.key(name);
      write_typed(json, value, tools.kind(function, name), binding);
    }
    if (extent == Extent::whole) json.end_object();
    return made;
  }

 private:
  std::vector<std::pair<std::string_view, std::string_view>> all_;
};

// <function=N>, then <parameter=K>, a value between one newline and another, </parameter> for each, and
// </function>, which models forget at times.
std::optional<ReadCall> read_xml(std::string_view body, const OfferedTools& tools, CallBinding binding,
                                 Extent extent) {
  if (!take(body, "<function=")) return std::nullopt;
  const auto name = take_until(body, ">");
  if (!name) return std::nullopt;
  Arguments arguments;
  bool cut = false;
  for (body = trimmed(body); take(body, "<parameter="); body = trimmed(body)) {
    const auto parameter = take_until(body, ">");
    auto value = parameter ? take_until(body, "</parameter>") : std::nullopt;
    cut = !value;
    if (cut) break;
    if (value->starts_with('\n')) value->remove_prefix(1);
    if (value->ends_with('\n')) value->remove_suffix(1);
    arguments.set(trimmed(*parameter), *value);
  }
  if (extent == Extent::whole) {
    take(body, "</function>");
    if (cut || !trimmed(body).empty()) return std::nullopt;
  }
  return arguments.call(trimmed(*name), tools, binding, extent);
}

std::optional<ReadCall> read_xml(std::string_view body, const OfferedTools& tools, CallBinding binding) {
  return read_xml(body, tools, binding, Extent::whole);
}

// N, then <arg_key>K</arg_key><arg_value>V</arg_value> for each argument, with or without newlines.
std::optional<ReadCall> read_arguments(std::string_view body, const OfferedTools& tools, CallBinding binding,
                                       Extent extent) {
  const std::size_t end = std::min(body.find("<arg_key>"), body.size());
  const std::string_view name = trimmed(body.substr(0, end));
  body.remove_prefix(end);
  Arguments arguments;
  bool cut = false;
  for (; take(body, "<arg_key>"); body = trimmed(body)) {
    const auto key = take_until(body, "</arg_key>");
    body = trimmed(body);
    const bool begun = key && take(body, "<arg_value>");
    const auto value = begun ? take_until(body, "</arg_value>") : std::nullopt;
    cut = !value;
    if (cut) break;
    arguments.set(trimmed(*key), *value);
  }
  if (extent == Extent::whole && (cut || !body.empty())) return std::nullopt;
  return arguments.call(name, tools, binding, extent);
}

std::optional<ReadCall> read_arguments(std::string_view body, const OfferedTools& tools,
                                       CallBinding binding) {
  return read_arguments(body, tools, binding, Extent::whole);
}

// V3 and R1: function<sep>N and a fenced block of JSON. V3.1: N<sep> and the bare JSON.
std::optional<ReadCall> read_deepseek(std::string_view body, const OfferedTools&, CallBinding binding) {
  const auto before = take_until(body, "<｜tool▁sep｜>");
  if (!before) return std::nullopt;
  std::string_view name = trimmed(*before);
  if (std::string_view fenced = body; name == "function") {
    if (const auto spelled = take_until(fenced, "```json")) {
      const std::size_t end = fenced.rfind("```");
      if (end == fenced.npos) return std::nullopt;
      name = trimmed(*spelled);
      body = fenced.substr(0, end);
    }
  }
  auto arguments = object_text(body, binding);
  if (!arguments) return std::nullopt;
  return ReadCall{.name = std::string(name), .arguments = std::move(*arguments), .id = {}};
}

// functions.N:IDX, which is also the call's id; the model wants it back unchanged.
std::optional<ReadCall> read_kimi(std::string_view body, const OfferedTools&, CallBinding binding) {
  const auto head = take_until(body, "<|tool_call_argument_begin|>");
  if (!head) return std::nullopt;
  const std::string_view id = trimmed(*head);
  std::string_view name = id.substr(0, id.rfind(':'));
  take(name, "functions.");
  auto arguments = object_text(body, binding);
  if (!arguments) return std::nullopt;
  return ReadCall{.name = std::string(name), .arguments = std::move(*arguments), .id = std::string(id)};
}

constexpr CallMarks bare = {
    .open = "<|python_tag|>", .close = {}, .section_open = {}, .section_close = {}, .inside = {}};

struct Row {
  CallForm form;
  std::string_view name, key;
  std::string_view sign;  // that only templates of this form spell, of the rows from here on
  std::string_view also;  // and this with it
  CallMarks marks;
  Reader read;
};

constexpr CallMarks tags = {
    .open = "<tool_call>", .close = "</tool_call>", .section_open = {}, .section_close = {}, .inside = {}};
constexpr CallMarks argument_tags = {.open = "<tool_call>",
                                     .close = "</tool_call>",
                                     .section_open = {},
                                     .section_close = {},
                                     .inside = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}};
constexpr CallMarks deepseek = {.open = "<｜tool▁call▁begin｜>",
                                .close = "<｜tool▁call▁end｜>",
                                .section_open = "<｜tool▁calls▁begin｜>",
                                .section_close = "<｜tool▁calls▁end｜>",
                                .inside = {"<｜tool▁sep｜>"}};
constexpr CallMarks kimi = {.open = "<|tool_call_begin|>",
                            .close = "<|tool_call_end|>",
                            .section_open = "<|tool_calls_section_begin|>",
                            .section_close = "<|tool_calls_section_end|>",
                            .inside = {"<|tool_call_argument_begin|>"}};

// A message to a function, which the harmony parser finds.
std::optional<ReadCall> read_no_text(std::string_view, const OfferedTools&, CallBinding) {
  return std::nullopt;
}

constexpr std::array<Row, 8> rows = {{
    {CallForm::kimi, "Kimi's sections", "kimi", "<|tool_call_argument_begin|>", "", kimi, read_kimi},
    {CallForm::deepseek_fenced, "DeepSeek's sections with fences", "deepseek_fenced", "<｜tool▁call▁begin｜>",
     "```json", deepseek, read_deepseek},
    {CallForm::deepseek, "DeepSeek's sections", "deepseek", "<｜tool▁call▁begin｜>", "", deepseek,
     read_deepseek},
    {CallForm::arguments_in_tags, "names and arguments in <tool_call>", "arguments_in_tags", "<arg_key>", "",
     argument_tags, read_arguments},
    {CallForm::xml_in_tags, "<function=...> in <tool_call>", "xml_in_tags", "<function=", "", tags, read_xml},
    {CallForm::harmony,
     "harmony's messages to functions",
     "harmony",
     "<|channel|>",
     "to=functions.",
     {},
     read_no_text},
    {CallForm::json_in_tags, "JSON in <tool_call>", "json_in_tags", "<tool_call>", "", tags, read_json},
    {CallForm::bare_json, "JSON that is the whole answer", "bare_json",
     "{\"name\": ", "\"parameters\": ", bare, read_bare_json},
}};

const Row* row_of(CallForm form) {
  for (const Row& row : rows) {
    if (row.form == form) return &row;
  }
  return nullptr;
}

}  // namespace

std::string_view call_form_name(CallForm form) {
  const Row* row = row_of(form);
  return row == nullptr ? "none" : row->name;
}

std::string_view call_form_key(CallForm form) {
  const Row* row = row_of(form);
  return row == nullptr ? "none" : row->key;
}

CallForm call_form_of(std::string_view template_source) {
  for (const Row& row : rows) {
    if (template_source.find(row.sign) != template_source.npos &&
        template_source.find(row.also) != template_source.npos)
      return row.form;
  }
  return CallForm::none;
}

CallMarks call_marks(CallForm form) {
  const Row* row = row_of(form);
  return row == nullptr ? CallMarks() : row->marks;
}

std::optional<ReadCall> read_call(CallForm form, std::string_view body, const OfferedTools& tools,
                                  CallBinding binding) {
  const Row* row = row_of(form);
  std::optional<ReadCall> call = row == nullptr ? std::nullopt : row->read(trimmed(body), tools, binding);
  if (call && !tools.has(call->name)) return std::nullopt;
  return call;
}

namespace {

// An object, of which the end may be missing, as whole arguments are told. What stands behind it is the
// beginning of a mark.
std::string begun_object(std::string_view json) {
  std::string text;
  bool in_string = false, escaped = false;
  int depth = 0;
  for (const char byte : json) {
    const bool blank = byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
    if (in_string || !blank) text += byte;
    if (!in_string && (byte == '{' || byte == '[')) ++depth;
    if (!in_string && (byte == '}' || byte == ']') && --depth == 0) break;
    in_string ^= byte == '"' && !escaped;
    escaped = in_string && byte == '\\' && !escaped;
  }
  return text;
}

}  // namespace

std::optional<ReadCall> read_cut_call(CallForm form, std::string_view body, const OfferedTools& tools) {
  body = body.substr(std::min(body.find_first_not_of(" \t\r\n"), body.size()));
  std::optional<ReadCall> call;
  switch (form) {
    case CallForm::json_in_tags: call = begin_bound_json(body, "arguments"); break;
    case CallForm::bare_json: call = begin_bound_json(body, "parameters"); break;
    case CallForm::xml_in_tags: call = read_xml(body, tools, CallBinding::bound, Extent::cut); break;
    case CallForm::arguments_in_tags:
      call = read_arguments(body, tools, CallBinding::bound, Extent::cut);
      break;
    default: call = read_call(form, body, tools, CallBinding::bound);
  }
  if (call) call->arguments = begun_object(call->arguments);
  if (call && !tools.has(call->name)) return std::nullopt;
  return call;
}

}  // namespace nibble
