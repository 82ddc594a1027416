// UTF-8: decoding text already known to be valid, and making any bytes valid the
// way Python's errors="replace" and Rust's from_utf8_lossy do (each maximal ill-formed part is one U+FFFD).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct CodePoint {
  char32_t value;
  std::size_t length;  // bytes
};

// `at` begins a character of valid UTF-8.
inline CodePoint decode_valid_utf8(const char* at) {
  const auto byte = [at](int i) { return static_cast<char32_t>(static_cast<unsigned char>(at[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Appends a code point that is no surrogate and at most U+10FFFF.
void append_utf8(std::string& text, char32_t code_point);

// How the bytes at the front of a non-empty text read.
struct Utf8Sequence {
  enum class Kind { complete, ill_formed, cut_off };
  Kind kind;
  // Bytes of the character, of the maximal ill-formed part, or (all that is left) of the cut-off character.
  std::size_t length;
};
Utf8Sequence read_utf8(std::string_view text);

// Length of the longest valid prefix.
std::size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// The text with every ill-formed part replaced by U+FFFD; a character cut off at the end counts as one.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace nibble
