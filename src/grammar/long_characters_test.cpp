// The two kinds of longer characters are all of them, each in one.
#include "grammar/long_characters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/utf8.h"

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

}  // namespace
}  // namespace nibble
