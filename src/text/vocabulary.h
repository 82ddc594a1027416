// Token ids and their bytes, and the flat hash that finds a token by its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"

namespace nibble {

// Well mixed in all bits; not keyed: a user's text only ever reads the tables.
std::uint64_t hash_bytes(std::string_view bytes);

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

// bytes -> id over some of a vocabulary's tokens, which must outlive it at the same place.
class TokenFinder {
 public:
  TokenFinder() = default;
  TokenFinder(const Vocabulary& vocabulary, std::size_t expected);
  // Returns the token that already has these bytes, or `id`.
  TokenId insert(TokenId id);
  // -1 if there is none.
  TokenId find(std::string_view bytes) const;

 private:
  struct Slot {
    std::uint32_t tag = 0;
    TokenId id = -1;
  };
  void grow();
  const Vocabulary* vocabulary_ = nullptr;
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t used_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace nibble
