// Renders chat templates for tests/chat_template_test.py. Standard input: a JSON object a line,
//   {"template": "...", "variables": {...}, "model_variables": {"bos_token": "..."}}
// where `variables` came with the request and `model_variables` with the model. Standard output, a line each:
//   {"text": "...", "trusted": [[begin, end], ...]} or {"error": "..."}
#include <iostream>
#include <string>

#include "text/jinja/jinja.h"
#include "text/jinja/jinja_value.h"

namespace {

using nibble::JinjaTemplate;
using nibble::JsonDocument;
using nibble::JsonValue;
using nibble::RenderedPrompt;
using nibble::Result;
using nibble::jinja::Dict;
using nibble::jinja::Value;

Result<RenderedPrompt> render(const std::string& line) {
  NIBBLE_ASSIGN(const JsonDocument document, JsonDocument::parse(line));
  const JsonValue root = document.root();
  nibble::jinja::Variables variables;
  if (const auto given = root.find("variables")) {
    for (const auto& member : given->members()) {
      NIBBLE_ASSIGN(Value value, Value::from_json(member.second));
      variables.emplace_back(std::string(member.first), std::move(value));
    }
  }
  if (const auto given = root.find("model_variables")) {
    for (const auto& member : given->members()) {
      variables.emplace_back(std::string(member.first),
                             Value::trusted(std::string(member.second.as_string())));
    }
  }
  NIBBLE_ASSIGN(const JinjaTemplate parsed, JinjaTemplate::parse(root.find("template")->as_string()));
  nibble::jinja::Settings settings;
  settings.now.tm_year = 125;  // 2025-08-05 13:14:15
  settings.now.tm_mon = 7;
  settings.now.tm_mday = 5;
  settings.now.tm_wday = 2;
  settings.now.tm_yday = 216;
  settings.now.tm_hour = 13;
  settings.now.tm_min = 14;
  settings.now.tm_sec = 15;
  return parsed.render(variables, settings);
}

Value describe(const Result<RenderedPrompt>& rendered) {
  Dict answer;
  if (!rendered.ok()) {
    answer.set(Value::trusted("error"), Value::untrusted(rendered.status().message()));
    return Value::dict(std::move(answer)).value();
  }
  std::vector<Value> spans;
  for (const nibble::TextSpan& span : rendered->trusted) {
    spans.push_back(Value::list({Value::integer(static_cast<std::int64_t>(span.begin)),
                                 Value::integer(static_cast<std::int64_t>(span.end))})
                        .value());
  }
  answer.set(Value::trusted("text"), Value::untrusted(rendered->text));
  answer.set(Value::trusted("trusted"), Value::list(std::move(spans)).value());
  return Value::dict(std::move(answer)).value();
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << nibble::jinja::to_json(describe(render(line)), {}).value() << std::endl;
  }
  return 0;
}
