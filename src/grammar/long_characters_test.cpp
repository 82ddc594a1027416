// The two kinds of longer characters are all of them, each in one, and a language tells where they lead.
#include "grammar/long_characters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/utf8.h"
#include "grammar/languages.h"
#include "grammar/pattern.h"

namespace nibble {
namespace {

bool inside(const LongRange& range, std::string_view character) {
  if (range.size != character.size()) return false;
  for (std::size_t i = 0; i < range.size; ++i) {
    const auto byte = static_cast<unsigned char>(character[i]);
    if (byte < range.bytes[i].first || byte > range.bytes[i].last) return false;
  }
  return true;
}

TEST(LongCharacters, AreEachInOneRange) {
  for (char32_t c = 0x80; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string character;
    append_utf8(character, c);
    const auto holds = [&](const LongRange& range) { return inside(range, character); };
    const auto blanks = std::ranges::count_if(long_ranges(LongCharacters::blanks), holds);
    const auto others = std::ranges::count_if(long_ranges(LongCharacters::others), holds);
    ASSERT_EQ(blanks + others, 1) << std::hex << static_cast<unsigned>(c);
    ASSERT_EQ(blanks == 1, is_long_blank(character)) << std::hex << static_cast<unsigned>(c);
  }
}

Language behind(Languages& languages, Language language, std::string_view text) {
  for (const char byte : text) language = languages.derivative(language, static_cast<std::uint8_t>(byte));
  return language;
}

bool same(Languages& languages, Language a, Language b) {
  return languages.is_empty(languages.all_of({a, languages.except(b)})) &&
         languages.is_empty(languages.all_of({b, languages.except(a)}));
}

TEST(LongCharacters, LeadWhereEachOfThemLeads) {
  for (const std::string_view pattern : {"fox", "^[^q]*z$", "^[^q]{2,9}z+$", "^\\S*\\s?x*$", "^[a-z]*\u00e9",
                                         "^(.{3}|a)*$", "^(?!no).{0,4}b"}) {
    Languages languages;
    const PatternOptions options{.form = TextForm::json, .search = true, .max_depth = 100};
    const Language all = compile_pattern(languages, pattern, options).value();
    for (const std::string_view begun : {"", "a", "fo", "ab", "zz", "n"}) {
      const Language at = behind(languages, all, begun);
      for (const LongCharacters kind : {LongCharacters::blanks, LongCharacters::others}) {
        const auto found = languages.behind_long(at, kind);
        if (!found) continue;
        for (const LongRange& range : long_ranges(kind)) {
          std::string first, last;
          for (std::size_t i = 0; i < range.size; ++i) {
            first.push_back(static_cast<char>(range.bytes[i].first));
            last.push_back(static_cast<char>(range.bytes[i].last));
          }
          for (const std::string& character : {first, last})
            ASSERT_TRUE(same(languages, *found, behind(languages, at, character)))
                << pattern << " behind " << begun;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble
