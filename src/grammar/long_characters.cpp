#include "grammar/long_characters.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr ByteRange one(unsigned byte) { return {byte, byte}; }
constexpr ByteRange kTail{0x80, 0xBF};
constexpr LongRange two(ByteRange a, ByteRange b) { return {{a, b}, 2}; }
constexpr LongRange three(ByteRange a, ByteRange b, ByteRange c) { return {{a, b, c}, 3}; }
constexpr LongRange four(ByteRange a, ByteRange b) { return {{a, b, kTail, kTail}, 4}; }

// U+A0, 1680, 2000 to 200A, 2028, 2029, 202F, 205F, 3000, FEFF.
constexpr LongRange kBlanks[] = {
    two(one(0xC2), one(0xA0)),
    three(one(0xE1), one(0x9A), one(0x80)),
    three(one(0xE2), one(0x80), {0x80, 0x8A}),
    three(one(0xE2), one(0x80), {0xA8, 0xA9}),
    three(one(0xE2), one(0x80), one(0xAF)),
    three(one(0xE2), one(0x81), one(0x9F)),
    three(one(0xE3), one(0x80), one(0x80)),
    three(one(0xEF), one(0xBB), one(0xBF)),
};

constexpr LongRange kOthers[] = {
    two(one(0xC2), {0x80, 0x9F}),
    two(one(0xC2), {0xA1, 0xBF}),
    two({0xC3, 0xDF}, kTail),
    three(one(0xE0), {0xA0, 0xBF}, kTail),
    three(one(0xE1), {0x80, 0x99}, kTail),
    three(one(0xE1), one(0x9A), {0x81, 0xBF}),
    three(one(0xE1), {0x9B, 0xBF}, kTail),
    three(one(0xE2), one(0x80), {0x8B, 0xA7}),
    three(one(0xE2), one(0x80), {0xAA, 0xAE}),
    three(one(0xE2), one(0x80), {0xB0, 0xBF}),
    three(one(0xE2), one(0x81), {0x80, 0x9E}),
    three(one(0xE2), one(0x81), {0xA0, 0xBF}),
    three(one(0xE2), {0x82, 0xBF}, kTail),
    three(one(0xE3), one(0x80), {0x81, 0xBF}),
    three(one(0xE3), {0x81, 0xBF}, kTail),
    three({0xE4, 0xEC}, kTail, kTail),
    three(one(0xED), {0x80, 0x9F}, kTail),
    three(one(0xEE), kTail, kTail),
    three(one(0xEF), {0x80, 0xBA}, kTail),
    three(one(0xEF), one(0xBB), {0x80, 0xBE}),
    three(one(0xEF), {0xBC, 0xBF}, kTail),
    four(one(0xF0), {0x90, 0xBF}),
    four({0xF1, 0xF3}, kTail),
    four(one(0xF4), {0x80, 0x8F}),
};

}  // namespace

std::span<const LongRange> long_ranges(LongCharacters kind) {
  if (kind == LongCharacters::blanks) return kBlanks;
  return kOthers;
}

bool is_long_blank(std::string_view character) {
  const auto inside = [&](const LongRange& range) {
    if (range.size != character.size()) return false;
    for (std::size_t i = 0; i < range.size; ++i) {
      const auto byte = static_cast<unsigned char>(character[i]);
      if (byte < range.bytes[i].first || byte > range.bytes[i].last) return false;
    }
    return true;
  };
  return std::ranges::any_of(kBlanks, inside);
}

}  // namespace nibble
