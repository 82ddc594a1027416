// What the split patterns of tokenizers ask of a character: a set of bits a code point, looked up in a table
// of our own (Unicode 16, the tables of PyPI tokenizers and tiktoken: see tools/make_unicode_classes.py).
// The table is in the source because ids must not depend on which Unicode a distribution's library knows.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace nibble {

using CharClass = std::uint8_t;

inline constexpr CharClass kUpper = 1;         // Lu, Lt
inline constexpr CharClass kLower = 2;         // Ll
inline constexpr CharClass kOtherLetter = 4;   // Lm, Lo
inline constexpr CharClass kMark = 8;          // M
inline constexpr CharClass kNumber = 16;       // N
inline constexpr CharClass kSpace = 32;        // White_Space
inline constexpr CharClass kPunctuation = 64;  // P
inline constexpr CharClass kSymbol = 128;      // S
inline constexpr CharClass kLetter = kUpper | kLower | kOtherLetter;

class UnicodeClasses {
 public:
  // The one table, built on first use.
  static const UnicodeClasses& get();

  CharClass of(char32_t code_point) const {
    return blocks_[static_cast<std::size_t>(block_of_[code_point >> kBlockBits]) << kBlockBits |
                   (code_point & (kBlock - 1))];
  }
  CharClass of_ascii(unsigned char byte) const { return ascii_[byte]; }

 private:
  static constexpr int kBlockBits = 7;
  static constexpr std::size_t kBlock = std::size_t{1} << kBlockBits;
  UnicodeClasses();

  std::array<CharClass, 128> ascii_{};
  std::array<std::uint16_t, (0x110000 >> kBlockBits)> block_of_{};  // equal blocks are stored once
  std::vector<CharClass> blocks_;                                   // [distinct blocks * kBlock]
};

// Of the script Han, which is not a general category and has no bit: no character below U+2E80 is.
bool is_han(char32_t code_point);

}  // namespace nibble
