// Patterns on names, as checkpoints and options use them.
#pragma once

#include <string_view>

namespace nibble {

// `pattern` with * for any text and ? for one character, against the whole name.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace nibble
