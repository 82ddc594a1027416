// Sets of characters, and how a character is written: as itself in plain text, or inside a JSON string.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/languages.h"

namespace nibble {

// Ascending, disjoint ranges of code points without surrogates.
class CharacterSet {
 public:
  using Range = std::pair<char32_t, char32_t>;
  CharacterSet() = default;
  CharacterSet(std::initializer_list<Range> ranges);
  void add(char32_t first, char32_t last);
  void add(const CharacterSet& other);
  CharacterSet inverted() const;
  // Both cases of ASCII letters.
  CharacterSet case_folded() const;
  const std::vector<Range>& ranges() const { return ranges_; }
  static CharacterSet all() { return CharacterSet().inverted(); }

 private:
  void normalize();
  std::vector<Range> ranges_;
};

// The form that a text's characters take in an answer.
enum class TextForm : std::uint8_t {
  plain,  // UTF-8
  // Inside a JSON string, each character in its usual spelling: as itself, or where that is not allowed as
  // \n, \" and their like, or \u001f. Other spellings such as \u0041 are left out, so that a complement is a
  // complement of texts.
  json,
};

Language characters(Languages& languages, const CharacterSet& set, TextForm form);
Language text_of(Languages& languages, std::string_view utf8, TextForm form);

// The inside of a JSON string's one character in all its spellings.
Language any_json_character(Languages& languages);

}  // namespace nibble
