// How a model's template has it write calls of tools, one row a form.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "text/offered_tools.h"

namespace nibble {

// none: the template knows no calls, or none that is known here.
enum class CallForm {
  none,
  harmony,
  json_in_tags,
  xml_in_tags,
  arguments_in_tags,
  deepseek,
  deepseek_fenced,
  kimi,
  bare_json
};

// As logs name it: in words, and in one.
std::string_view call_form_name(CallForm form);
std::string_view call_form_key(CallForm form);
// Told from the markers that a template's source spells.
CallForm call_form_of(std::string_view template_source);

// The text around calls. Harmony's stand in messages of their own and have no such marks.
struct CallMarks {
  std::string_view open, close;                  // around one call; no close: it ends with its object
  std::string_view section_open, section_close;  // around all of them; empty: nothing is
  std::array<std::string_view, 4> inside;        // of a call, as many as there are
};
CallMarks call_marks(CallForm form);

struct ReadCall {
  std::string name;
  std::string arguments;  // a JSON object
  std::string id;         // where the form has one of its own; else empty
};

// free: the model wrote calls as it pleased.
// bound: a grammar held them to their form and to the functions' schemas. Their values are taken as they are,
// even JSON that the parser here refuses, such as a doubled name or a number beyond a double.
// bound_first: bound, and there are calls only where no text came before them.
enum class CallBinding : std::uint8_t { free, bound, bound_first };

// Of the text between the marks. Nothing: it is no call of a function that is offered.
std::optional<ReadCall> read_call(CallForm form, std::string_view body, const OfferedTools& tools,
                                  CallBinding binding = CallBinding::free);
// Of the beginning of a bound call that the answer's end cut: the name, and as much of the arguments' JSON as
// is certain. Nothing: the name is not complete.
std::optional<ReadCall> read_cut_call(CallForm form, std::string_view body, const OfferedTools& tools);

}  // namespace nibble
