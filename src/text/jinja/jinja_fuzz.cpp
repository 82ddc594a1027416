// Any bytes as a chat template: refused with a sentence, or run within its limits, and no byte that came with
// the request is ever trusted.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/jinja/jinja.h"
#include "text/jinja/jinja_value.h"

using namespace nibble;
using jinja::Value;

namespace {

// Every text of the request is made of one letter that the template cannot spell: a private-use character.
jinja::Variables variables() {
  static constexpr const char* kRequest = R"({
    "messages": [
      {"role": "system", "content": "\ue000"}, {"role": "user", "content": "\ue000 \ue000\n\ue000", "name": ""},
      {"role": "assistant", "content": null, "reasoning_content": " \ue000 ", "tool_calls": [
        {"id": "\ue000", "type": "function", "function": {"name": "\ue000", "arguments": {"\ue000": [1, 2.5, true, "\ue000"]}}}]},
      {"role": "tool", "content": "\ue000", "tool_call_id": "\ue000"}],
    "tools": [{"type": "function", "function": {"name": "\ue000", "description": "\ue000", "parameters": {
      "type": "object", "properties": {"\ue000": {"type": ["string", "null"]}}, "required": []}}}],
    "add_generation_prompt": true, "n": 3, "x": 2.5, "u": "\ue000\ue000"})";
  const auto document = JsonDocument::parse(kRequest).value();
  jinja::Variables given;
  for (const auto& member : document.root().members()) {
    given.emplace_back(std::string(member.first), Value::from_json(member.second).value());
  }
  given.emplace_back("bos_token", Value::trusted("<s>"));
  return given;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = JinjaTemplate::parse(source);
  if (!parsed.ok()) {
    NIBBLE_CHECK(!parsed.status().message().empty());
    return 0;
  }
  static const jinja::Variables given = variables();
  jinja::Settings settings;
  settings.max_steps = 50'000;
  settings.max_text_bytes = 100'000;
  const auto prompt = parsed->render(given, settings);
  if (!prompt.ok()) {
    NIBBLE_CHECK(!prompt.status().message().empty());
    return 0;
  }
  NIBBLE_CHECK(prompt->text.size() <= settings.max_text_bytes);
  // A template that spells the letter, or an escape that could, proves nothing.
  const bool spells = source.find("\xEE\x80\x80") != source.npos || source.find('\\') != source.npos;
  std::size_t last = 0;
  for (const TextSpan& span : prompt->trusted) {
    NIBBLE_CHECK(span.begin >= last && span.begin < span.end && span.end <= prompt->text.size());
    last = span.end;
    const std::string_view trusted = std::string_view(prompt->text).substr(span.begin, span.end - span.begin);
    NIBBLE_CHECK(spells || trusted.find("\xEE\x80\x80") == trusted.npos, "a text of the request is trusted");
  }
  return 0;
}
