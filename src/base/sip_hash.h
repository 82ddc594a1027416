// SipHash-2-4 (Aumasson and Bernstein) with 128 bits: the code of some bytes under a key without which nobody
// finds others of the same code.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace nibble {

using HashKey = std::array<std::uint64_t, 2>;

// A key that nobody else knows, from the kernel's random numbers. The process ends where there are none.
HashKey drawn_key();

struct KeyedHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const KeyedHash&) const = default;
};

// Takes whole words, then their end. Of several texts one after the other, whoever hashes them says by a word
// before where one ends.
class SipHash {
 public:
  explicit SipHash(const HashKey& key)
      : v0_(key[0] ^ 0x736f6d6570736575),
        v1_(key[1] ^ 0x646f72616e646f6d ^ 0xee),
        v2_(key[0] ^ 0x6c7967656e657261),
        v3_(key[1] ^ 0x7465646279746573) {}

  void add(std::uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }

  // `rest`: up to seven bytes behind the last whole word; `bytes`: of all that this ends.
  void add_end(std::uint64_t rest, std::size_t bytes) { add(rest | static_cast<std::uint64_t>(bytes) << 56); }

  void add_text(std::string_view text) {
    std::size_t at = 0;
    for (; at + 8 <= text.size(); at += 8) add(word_of(text.substr(at, 8)));
    add_end(word_of(text.substr(at)), text.size());
  }

  KeyedHash finish() {
    v2_ ^= 0xee;
    rounds(4);
    KeyedHash hash{.low = v0_ ^ v1_ ^ v2_ ^ v3_};
    v1_ ^= 0xdd;
    rounds(4);
    hash.high = v0_ ^ v1_ ^ v2_ ^ v3_;
    return hash;
  }

 private:
  static std::uint64_t word_of(std::string_view bytes) {
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t word = 0;
    if (!bytes.empty())
      std::memcpy(&word, bytes.data(),
                  bytes.size());  // an empty span may hold a null pointer, which memcpy must not get
    return word;
  }

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v3_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ += v3_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ += v1_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace nibble
