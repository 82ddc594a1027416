// Strangers' bytes (file names, JSON keys, a client's text, arguments) made safe to print: on a terminal, in
// a message or in a log they can neither move the cursor nor start a line nor pass for text of ours.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble {

// The text in double quotes. Quotes and backslashes get a backslash, newline, return and tab are \n, \r and
// \t; other control characters, DEL and every byte beyond ASCII become \xNN. A text of more than max_bytes is
// cut and ends in ...
std::string quote(std::string_view text, std::size_t max_bytes = 160);

// The whole text without quotes around it; quotes and backslashes stay as they are.
std::string escape(std::string_view text);

}  // namespace nibble
