// Calls of functions as a grammar, in the form in which a template has its model write them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/grammar.h"
#include "text/call_form.h"
#include "text/offered_tools.h"

namespace nibble {

// A function, and what its arguments are held to.
struct BoundFunction {
  std::string name;
  std::optional<JsonValue> schema;  // of its arguments; nothing: any object
  std::string where;                // the schema's place in the request, which errors begin with
  // Whether a schema that cannot be held to is an error; else such a function's arguments are any object.
  bool strict = true;
};

struct CallRules {
  CallForm form = CallForm::none;
  bool several = true;  // calls in one answer
  // answer: a text of nothing but calls. call: what stands behind a call's opening mark, up to the end of its
  // closing mark. either, of bare JSON: such an answer, or a text in which no call begins.
  enum class Text : std::uint8_t { answer, call, either } text = Text::answer;
};

// The vocabulary has the form's marks (marks_of). Not of harmony, whose calls are messages.
Result<std::shared_ptr<const Grammar>> compile_calls(std::span<const BoundFunction> functions,
                                                     const CallRules& rules, const OfferedTools& tools,
                                                     const GrammarVocabulary& vocabulary,
                                                     const CompileLimits& limits = {});
// One function's arguments alone: a JSON object.
Result<std::shared_ptr<const Grammar>> compile_arguments(const BoundFunction& function,
                                                         const CompileLimits& limits = {});
std::vector<std::string_view> marks_of(CallForm form);

}  // namespace nibble
