#include "server/api/bound_calls.h"

#include <algorithm>

#include "grammar/compile_clock.h"

namespace nibble::api {
namespace {

using Choice = ToolUse::Choice;

bool is_among(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Where a tool of the endpoint has its schema.
std::string_view schema_member(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::responses: return ".parameters";
    case Endpoint::messages: return ".input_schema";
    default: return ".function.parameters";
  }
}

template <class Each>
void each_function(const ToolUse& use, const Each& each) {
  if (!use.tools) return;
  int number = 0;
  for (const JsonValue tool : use.tools->elements()) each(number++, *tool.find("function"));
}

std::string_view name_of(JsonValue function) { return function.find("name")->as_string(); }

std::vector<BoundFunction> bound_functions(const GenerationRequest& request) {
  const ToolUse& use = request.tool_use;
  std::vector<BoundFunction> functions;
  each_function(use, [&](int number, JsonValue function) {
    const std::string_view name = name_of(function);
    if (!use.allowed.empty() && !is_among(use.allowed, name)) return;
    const auto schema = function.find("parameters");
    functions.push_back(
        {.name = std::string(name),
         .schema = schema && schema->is_object() ? schema : std::nullopt,
         .where = "tools[" + std::to_string(number) + "]" + std::string(schema_member(request.endpoint)),
         .strict = is_among(use.strict, name)});
  });
  return functions;
}

// A message that begins with the place of what is at fault.
ApiError at_its_place(const std::string& message) {
  return {.message = message, .param = message.substr(0, message.find(": "))};
}

}  // namespace

BoundCalls::Place bound_place(const GenerationRequest& request) {
  const ToolUse& use = request.tool_use;
  if (!use.tools || use.choice == Choice::none) return BoundCalls::Place::none;
  if (use.choice == Choice::required || use.choice == Choice::named) return BoundCalls::Place::alone;
  if (request.format.kind != TextFormat::Kind::text) return BoundCalls::Place::instead;
  const bool bound = !use.strict.empty() || !use.allowed.empty();
  return bound ? BoundCalls::Place::anywhere : BoundCalls::Place::none;
}

Refused CallBinder::bind(const GenerationRequest& request, AnswerStart& answer, BoundCalls& calls) const {
  calls.place = bound_place(request);
  if (calls.place == BoundCalls::Place::none || !answer.tools) {
    calls.place = BoundCalls::Place::none;
    return {};
  }
  const ToolUse& use = request.tool_use;
  calls.form = answer.calls;
  if (calls.form == CallForm::harmony && answer.format != AnswerFormat::harmony)
    return bad_field("tools", ": calls are messages of harmony, and this model's prompts begin none");
  if (!use.allowed.empty()) {
    auto kept = std::make_shared<OfferedTools>(*answer.tools);
    kept->keep(use.allowed);
    answer.tools = std::move(kept);
  }
  answer.binding = calls.place == BoundCalls::Place::instead ? CallBinding::bound_first : CallBinding::bound;
  const std::vector<BoundFunction> functions = bound_functions(request);
  if (calls.form == CallForm::harmony) {
    calls.vocabulary = grammars.vocabulary(tokenizer, model);
    const CompileClock clock(CompileLimits{});
    for (const BoundFunction& function : functions) {
      if (const Status status = clock.check(); !status.ok())
        return bad_field("tools", ": their schemas: " + status.message());
      auto grammar = grammars.arguments(function, clock.rest());
      if (!grammar.ok()) return at_its_place(grammar.status().message());
      calls.arguments.push_back({.function = function.name, .grammar = *std::move(grammar)});
    }
    return {};
  }
  const GrammarCache::CallVocabulary& marked = grammars.call_vocabulary(tokenizer, model, calls.form);
  bool anywhere = calls.place == BoundCalls::Place::anywhere;
  CallRules::Text calls_text = anywhere ? CallRules::Text::call : CallRules::Text::answer;
  if (anywhere && calls.form == CallForm::bare_json) {
    // Nothing marks where such a call begins, so the grammar has the free text too.
    calls_text = CallRules::Text::either;
    calls.place = BoundCalls::Place::alone;
    anywhere = false;
  }
  if (anywhere && marked.hides_mark) {
    return bad_field("tools",
                     ": a token of this model's vocabulary has a call's opening mark inside, so strict "
                     "functions cannot be held to between free text; tool_choice \"required\" works");
  }
  calls.vocabulary = marked.vocabulary;
  const CallRules rules{
      .form = calls.form, .several = use.parallel && use.choice != Choice::named, .text = calls_text};
  auto grammar = grammars.calls(functions, rules, *answer.tools, *calls.vocabulary);
  if (!grammar.ok()) return at_its_place(grammar.status().message());
  calls.grammar = *std::move(grammar);
  return {};
}

}  // namespace nibble::api
