#include "text/unicode_class.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>

namespace nibble {
namespace {

// first << 8 | class: the class of every code point from `first` to the next entry's.
constexpr std::uint32_t kRanges[] = {
#include "text/unicode_class_ranges.inc"
};

struct CodePointRange {
  char32_t first, last;
};
constexpr CodePointRange kHan[] = {
#include "text/unicode_han_ranges.inc"
};

}  // namespace

const UnicodeClasses& UnicodeClasses::get() {
  static const UnicodeClasses classes;
  return classes;
}

UnicodeClasses::UnicodeClasses() {
  std::map<std::array<CharClass, kBlock>, std::uint16_t> known;
  std::array<CharClass, kBlock> block;
  std::size_t range = 0;
  for (std::size_t b = 0; b < block_of_.size(); ++b) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      const std::uint32_t code_point = static_cast<std::uint32_t>(b * kBlock + i);
      while (range + 1 < std::size(kRanges) && kRanges[range + 1] >> 8 <= code_point) ++range;
      block[i] = static_cast<CharClass>(kRanges[range] & 0xFF);
    }
    const auto [at, added] = known.try_emplace(block, static_cast<std::uint16_t>(known.size()));
    if (added) blocks_.insert(blocks_.end(), block.begin(), block.end());
    block_of_[b] = at->second;
  }
  std::copy_n(blocks_.begin(), ascii_.size(), ascii_.begin());
}

bool is_han(char32_t code_point) {
  if (code_point < kHan[0].first) return false;
  if (code_point >= 0x4E00 && code_point <= 0x9FFF) return true;  // most of those that texts have
  const auto* behind =
      std::upper_bound(std::begin(kHan), std::end(kHan), code_point,
                       [](char32_t c, const CodePointRange& range) { return c < range.first; });
  return behind != std::begin(kHan) && code_point <= std::prev(behind)->last;
}

}  // namespace nibble
