// A set of byte values.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace nibble {

struct ByteSet {
  std::array<std::uint64_t, 4> words{};

  static ByteSet range(unsigned first, unsigned last) {
    ByteSet set;
    for (unsigned byte = first; byte <= last; ++byte) set.add(byte);
    return set;
  }
  void add(unsigned byte) { words[byte / 64] |= std::uint64_t{1} << byte % 64; }
  void remove(unsigned byte) { words[byte / 64] &= ~(std::uint64_t{1} << byte % 64); }
  bool has(unsigned byte) const { return words[byte / 64] >> byte % 64 & 1; }
  bool empty() const { return !(words[0] | words[1] | words[2] | words[3]); }
  ByteSet operator|(const ByteSet& other) const {
    ByteSet out;
    for (std::size_t i = 0; i < 4; ++i) out.words[i] = words[i] | other.words[i];
    return out;
  }
  ByteSet operator&(const ByteSet& other) const {
    ByteSet out;
    for (std::size_t i = 0; i < 4; ++i) out.words[i] = words[i] & other.words[i];
    return out;
  }
  ByteSet operator~() const {
    ByteSet out;
    for (std::size_t i = 0; i < 4; ++i) out.words[i] = ~words[i];
    return out;
  }
  // The least byte; 256 of an empty set.
  unsigned first() const {
    for (unsigned i = 0; i < 4; ++i)
      if (words[i] != 0) return i * 64 + static_cast<unsigned>(std::countr_zero(words[i]));
    return 256;
  }
  // Whether it is one byte.
  bool single() const {
    const std::uint64_t any = words[0] | words[1] | words[2] | words[3];
    const int empty = (words[0] == 0) + (words[1] == 0) + (words[2] == 0) + (words[3] == 0);
    return empty == 3 && std::has_single_bit(any);
  }
  std::uint32_t count() const {
    int bytes = 0;
    for (const std::uint64_t word : words) bytes += std::popcount(word);
    return static_cast<std::uint32_t>(bytes);
  }
  template <typename Function>
  void for_each(const Function& function) const {
    for (unsigned i = 0; i < 4; ++i)
      for (std::uint64_t word = words[i]; word != 0; word &= word - 1)
        function(i * 64 + static_cast<unsigned>(std::countr_zero(word)));
  }
  bool operator==(const ByteSet&) const = default;
};

}  // namespace nibble
