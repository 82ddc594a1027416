// Token ids and their bytes, and the flat hash that finds a token by its bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"

namespace nibble {

struct VocabularyEntry {
  TokenId id;
  std::string_view bytes;  // not empty
};

// id -> bytes. Ids may have gaps, whose bytes are empty.
class Vocabulary {
 public:
  Vocabulary() = default;
  // Ids are distinct, non-negative and bounded by the caller.
  explicit Vocabulary(const std::vector<VocabularyEntry>& entries);

  std::string_view bytes(TokenId id) const {
    const auto i = static_cast<std::size_t>(static_cast<std::uint32_t>(id));
    if (i + 1 >= begin_.size()) return {};
    return std::string_view(all_).substr(begin_[i], begin_[i + 1] - begin_[i]);
  }
  // One more than the largest id.
  TokenId size() const { return begin_.empty() ? 0 : static_cast<TokenId>(begin_.size() - 1); }

 private:
  std::string all_;                   // the tokens' bytes in the order of their ids
  std::vector<std::uint32_t> begin_;  // [size() + 1] offsets in all_
};

// bytes -> id over some of a vocabulary's tokens, which must outlive it at the same place. Nearly all tokens
// are short, and a short token is found without leaving its slot: one cache line a look-up.
class TokenFinder {
 public:
  TokenFinder() = default;
  // Ids are below 2^24.
  TokenFinder(const Vocabulary& vocabulary, std::size_t expected);
  // Of tokens with the same bytes the first counts.
  TokenFinder(const Vocabulary& vocabulary, std::span<const TokenId> tokens);
  std::size_t size() const { return used_; }
  // Returns the token that already has these bytes, or `id`.
  TokenId insert(TokenId id);
  // -1 if there is none.
  TokenId find(std::string_view bytes) const;
  // Starts to bring in what find(bytes) will look at: the table is larger than a core's caches.
  void prefetch(std::string_view bytes) const {
    __builtin_prefetch(&slots_[hash_of(key_of(bytes)) & (slots_.size() - 1)]);
  }

 private:
  // Up to kInline bytes are kept as they are, zero-padded; of a longer token there is a hash and the length.
  static constexpr std::size_t kInline = 12;
  struct Key {
    std::uint64_t low;   // bytes 0..7, or the hash
    std::uint64_t high;  // bytes 8..11 or the length, and above them kLong or the number of bytes
  };
  struct Slot {
    std::uint64_t low = 0;
    std::uint64_t high = 0;  // a Key's in the lower 40 bits, the id above; 0: empty
  };
  static constexpr int kIdShift = 40;
  static constexpr std::uint64_t kLong = 0xFF;
  static Key key_of(std::string_view bytes);
  static std::uint64_t hash_of(Key key);
  bool holds(const Slot& slot, Key key, std::string_view bytes) const;
  void grow();

  const Vocabulary* vocabulary_ = nullptr;
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t used_ = 0;
};

}  // namespace nibble
