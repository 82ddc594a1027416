// Arguments that a form of calls writes one by one, each between marks of its own, instead of as one JSON
// object.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/schema_compiler.h"
#include "text/offered_tools.h"

namespace nibble {

// How such a form writes an argument: the text up to its value, and behind it. Nothing may come in a name or
// a value that would end it early.
struct ParameterForm {
  std::function<Language(std::string_view name)> before;
  Language behind = kEmptyText;
  std::string_view ends_name;
};

// The arguments of one function, in the order of its schema. `values`: what every bare text, and every string
// inside of a JSON value, is held to. Which values are bare texts is what the reader of calls makes of them
// (OfferedTools).
Result<SymbolId> written_parameters(Symbols& symbols, SchemaCompiler& schema, std::string_view function,
                                    const OfferedTools& tools, const ParameterForm& form, Language values);

}  // namespace nibble
