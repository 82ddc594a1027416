// Names from files, made safe to print: they are strangers' bytes and end up in messages and on terminals.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// The name in double quotes. Quotes, backslashes and all that is not printable ASCII become escapes
// (\", \\, \xNN), and a long name is cut.
std::string quote_name(std::string_view name);

}  // namespace nibble
