// The characters of two bytes and more in UTF-8, in two kinds: blanks and ends of lines, of which patterns
// speak
// (`\s`, `\S`, `.`), and all others, which patterns mostly take or leave together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

enum class LongCharacters : std::uint8_t { blanks, others };

struct ByteRange {
  unsigned first, last;
};

// All characters of which each byte is in its range.
struct LongRange {
  std::array<ByteRange, 4> bytes;
  std::size_t size;
};

// Each character is in one range of one kind.
std::span<const LongRange> long_ranges(LongCharacters kind);

// Of one whole character.
bool is_long_blank(std::string_view character);

}  // namespace nibble
