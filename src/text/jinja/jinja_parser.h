// A template's source to its tree. What is refused is refused here, by line: unknown filters and tests, tags
// outside of the subset (docs/internals/text.md), nesting beyond what the interpreter's stack is made for.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/jinja/jinja_ast.h"

namespace nibble::jinja {

Result<Template> parse_template(std::string_view source);

}  // namespace nibble::jinja
