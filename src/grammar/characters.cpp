#include "grammar/characters.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/utf8.h"

namespace nibble {
namespace {

constexpr char32_t kLast = 0x10FFFF;

struct Encoded {
  std::array<unsigned char, 4> bytes;
  std::size_t size;
};

Encoded encode(char32_t c) {
  std::string text;
  append_utf8(text, c);
  Encoded out{{}, std::min<std::size_t>(text.size(), 4)};
  for (std::size_t i = 0; i < out.size; ++i) out.bytes[i] = static_cast<unsigned char>(text[i]);
  return out;
}

// All sequences of the same length between two, byte by byte.
Language between(Languages& languages, const Encoded& first, const Encoded& last, std::size_t at) {
  const auto tail = [&](std::size_t from) {
    Language made = kEmptyText;
    for (std::size_t i = from; i < first.size; ++i)
      made = languages.concat(languages.bytes(ByteSet::range(0x80, 0xBF)), made);
    return made;
  };
  const auto one = [&](unsigned a, unsigned b) { return languages.bytes(ByteSet::range(a, b)); };
  if (at + 1 == first.size) return one(first.bytes[at], last.bytes[at]);
  if (first.bytes[at] == last.bytes[at])
    return languages.concat(one(first.bytes[at], first.bytes[at]), between(languages, first, last, at + 1));
  Encoded low_end = first, high_begin = last;
  for (std::size_t i = at + 1; i < first.size; ++i) {
    low_end.bytes[i] = 0xBF;
    high_begin.bytes[i] = 0x80;
  }
  std::vector<Language> parts;
  unsigned low = first.bytes[at], high = last.bytes[at];
  if (!std::equal(first.bytes.begin() + at + 1, first.bytes.begin() + first.size,
                  high_begin.bytes.begin() + at + 1))
    parts.push_back(languages.concat(one(low, low), between(languages, first, low_end, at + 1))), ++low;
  if (!std::equal(last.bytes.begin() + at + 1, last.bytes.begin() + last.size,
                  low_end.bytes.begin() + at + 1))
    parts.push_back(languages.concat(one(high, high), between(languages, high_begin, last, at + 1))), --high;
  if (low <= high) parts.push_back(languages.concat(one(low, high), tail(at + 1)));
  return languages.any_of(parts);
}

Language utf8_range(Languages& languages, char32_t first, char32_t last) {
  static constexpr std::array<CharacterSet::Range, 5> kLengths{
      {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, kLast}}};
  std::vector<Language> parts;
  for (const auto& [low, high] : kLengths) {
    const char32_t a = std::max(first, low), b = std::min(last, high);
    if (a <= b) parts.push_back(between(languages, encode(a), encode(b), 0));
  }
  return languages.any_of(parts);
}

std::string_view short_escape(char32_t c) {
  switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return {};
  }
}

Language hex_digit(Languages& languages, unsigned value) {
  ByteSet set;
  set.add(static_cast<unsigned>("0123456789abcdef"[value]));
  set.add(static_cast<unsigned>("0123456789ABCDEF"[value]));
  return languages.bytes(set);
}

}  // namespace

CharacterSet::CharacterSet(std::initializer_list<Range> ranges) : ranges_(ranges) { normalize(); }

void CharacterSet::add(char32_t first, char32_t last) {
  ranges_.emplace_back(first, last);
  normalize();
}

void CharacterSet::add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalize();
}

void CharacterSet::normalize() {
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> out;
  const auto push = [&](char32_t first, char32_t last) {
    if (first > last) return;
    if (!out.empty() && (first <= out.back().second || first == out.back().second + 1)) {
      out.back().second = std::max(out.back().second, last);
    } else {
      out.emplace_back(first, last);
    }
  };
  for (const auto& [first, last] : ranges_) {
    push(first, std::min<char32_t>(last, 0xD7FF));
    push(std::max<char32_t>(first, 0xE000), std::min(last, kLast));
  }
  ranges_ = std::move(out);
}

CharacterSet CharacterSet::inverted() const {
  CharacterSet out;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) out.ranges_.emplace_back(next, kLast);
  out.normalize();
  return out;
}

CharacterSet CharacterSet::case_folded() const {
  CharacterSet out = *this;
  for (const auto& [first, last] : ranges_) {
    const char32_t lower_first = std::max<char32_t>(first, 'a'), lower_last = std::min<char32_t>(last, 'z');
    if (lower_first <= lower_last) out.ranges_.emplace_back(lower_first - 32, lower_last - 32);
    const char32_t upper_first = std::max<char32_t>(first, 'A'), upper_last = std::min<char32_t>(last, 'Z');
    if (upper_first <= upper_last) out.ranges_.emplace_back(upper_first + 32, upper_last + 32);
  }
  out.normalize();
  return out;
}

Language characters(Languages& languages, const CharacterSet& set, TextForm form) {
  std::vector<Language> parts;
  for (const auto& [first, last] : set.ranges()) {
    if (form == TextForm::plain) {
      parts.push_back(utf8_range(languages, first, last));
      continue;
    }
    for (char32_t c = first; c <= std::min<char32_t>(last, '\\'); ++c) {
      if (c < 0x20) {
        parts.push_back(languages.concat(
            {languages.literal("\\u00"), hex_digit(languages, c / 16), hex_digit(languages, c % 16)}));
      }
      if (const std::string_view escape = short_escape(c); !escape.empty())
        parts.push_back(languages.literal(escape));
    }
    static constexpr std::array<CharacterSet::Range, 3> kUnescaped{
        {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLast}}};
    for (const auto& [low, high] : kUnescaped) {
      const char32_t a = std::max(first, low), b = std::min(last, high);
      if (a <= b) parts.push_back(utf8_range(languages, a, b));
    }
  }
  return languages.any_of(parts);
}

Language text_of(Languages& languages, std::string_view utf8, TextForm form) {
  if (form == TextForm::plain) return languages.literal(utf8);
  std::vector<Language> parts;
  while (!utf8.empty()) {
    const CodePoint c = decode_valid_utf8(utf8.data());
    const auto byte = static_cast<unsigned char>(utf8.front());
    // Most characters are their own spelling.
    parts.push_back(byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\'
                        ? languages.bytes(ByteSet::range(byte, byte))
                        : characters(languages, {{c.value, c.value}}, form));
    utf8.remove_prefix(c.length);
  }
  Language made = kEmptyText;
  for (std::size_t i = parts.size(); i-- > 0;) made = languages.concat(parts[i], made);
  return made;
}

Language any_json_character(Languages& languages) {
  CharacterSet unescaped{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  ByteSet hex = ByteSet::range('0', '9') | ByteSet::range('a', 'f') | ByteSet::range('A', 'F');
  const Language digit = languages.bytes(hex);
  const auto one_of = [&](std::string_view bytes) {
    ByteSet set;
    for (const char byte : bytes) set.add(static_cast<unsigned char>(byte));
    return languages.bytes(set);
  };
  const Language d = one_of("dD");
  const Language ordinary =
      languages.any_of({languages.concat({one_of("0123456789abcefABCEF"), digit, digit, digit}),
                        languages.concat({d, one_of("01234567"), digit, digit})});
  // A high surrogate only together with its low one: alone it is no character.
  const Language pair = languages.concat(
      {d, one_of("89abAB"), digit, digit, languages.literal("\\u"), d, one_of("cdefCDEF"), digit, digit});
  const Language escaped = languages.concat(
      languages.literal("\\"),
      languages.any_of({one_of("\"\\/bfnrt"),
                        languages.concat(languages.literal("u"), languages.any_of({ordinary, pair}))}));
  return languages.any_of({characters(languages, unescaped.inverted(), TextForm::json), escaped});
}

}  // namespace nibble
