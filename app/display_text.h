// Text as a terminal shows it: columns, user-perceived characters, and what must not reach the terminal raw.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble {

// The end of the user-perceived character (grapheme cluster) that begins at `at`, and the beginning of the
// one that ends there. A byte that is not UTF-8 counts as a character.
std::size_t next_character(std::string_view text, std::size_t at);
std::size_t previous_character(std::string_view text, std::size_t at);

// Columns that one user-perceived character takes: 0, 1 or 2.
int character_columns(std::string_view character);
int text_columns(std::string_view text);

// Text from a model or a file, made unable to drive the terminal: control characters (newline and tab are
// text) and the ones that reorder a line become visible spellings such as ^[ or <U+202E>, and what is not
// UTF-8 becomes U+FFFD.
std::string visible_text(std::string_view text);

}  // namespace nibble
