// Text in columns, for people.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

std::string padded(std::string text, int width);        // to the left
std::string right(const std::string& text, int width);  // to the right

// `words` after `first`, in lines of at most `columns` characters where words allow; lines but the first
// begin with `indent` spaces.
std::string wrapped(std::string first, std::string_view words, int indent, int columns);

}  // namespace nibble
