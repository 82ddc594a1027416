// JSON schema's string formats as patterns.
#pragma once

#include <optional>
#include <string_view>

namespace nibble {

struct StringFormat {
  std::string_view pattern;  // empty: known to JSON schema, but not expressed here
  // Whether texts of the format are left out; none that is not of the format is ever taken.
  bool partly = false;
};

// Nothing for a name that JSON schema does not define: it says nothing about a text.
std::optional<StringFormat> find_string_format(std::string_view name);

}  // namespace nibble
