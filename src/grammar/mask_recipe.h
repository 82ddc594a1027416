// What a mask is made of. Many places in an answer have one mask: inside a string it is hardly ever another
// one, wherever the string stands. A walk writes down what it finds as steps of a recipe, which are few; to
// follow them sets tens of thousands of bits. So a recipe that was followed before is not followed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/token_id.h"
#include "core/token_constraint.h"
#include "grammar/token_trie.h"

namespace nibble {

inline void set_bit(TokenMask mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
}
inline bool has_bit(std::span<const std::uint32_t> mask, TokenId token) {
  return (mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) != 0;
}
inline void clear_bit(TokenMask mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] &= ~(1u << token % 32);
}

using MaskId = std::uint32_t;  // of a StoredMasks

// Steps change what those before them made, which at first is the mask without tokens.
class MaskRecipe {
 public:
  explicit MaskRecipe(const TokenTrie& tokens) : tokens_(tokens) {}

  void like(MaskId mask) { add(Step::like, 0, mask); }
  // The plain tokens of at most so many characters.
  void plain(std::uint32_t characters);
  void kinds(ByteKindMask kinds, std::uint32_t characters);
  void token(TokenId token) { add(Step::token, 0, static_cast<std::uint32_t>(token)); }
  void without(TokenId token) { add(Step::without, 0, static_cast<std::uint32_t>(token)); }
  void below(const Trie& trie, const TrieNode& node) { add(Step::below, place(trie), trie.place(node)); }
  void without_below(const Trie& trie, const TrieNode& node) {
    add(Step::without_below, place(trie), trie.place(node));
  }
  // Of a group of endings (token_trie.h) the tokens of at most so many characters.
  void ended(TokenId group, std::uint32_t characters);
  void ends() { add(Step::ends, 0, 0); }

  std::span<const std::uint64_t> steps() const { return steps_; }
  const TokenTrie& tokens() const { return tokens_; }

 private:
  friend class StoredMasks;
  enum class Step : std::uint8_t { like, plain, kinds, token, without, below, without_below, ended, ends };
  void add(Step step, std::uint32_t small, std::uint32_t word) {
    steps_.push_back(static_cast<std::uint64_t>(step) << 56 | static_cast<std::uint64_t>(small) << 32 | word);
  }
  std::uint32_t place(const Trie& trie) const { return &trie == &tokens_.plain() ? 0 : 1; }
  const Trie& trie(std::uint32_t place) const { return place == 0 ? tokens_.plain() : tokens_.other(); }

  const TokenTrie& tokens_;
  std::vector<std::uint64_t> steps_;
};

// The masks of places that were asked for, each mask once.
class StoredMasks {
 public:
  using Place = std::uint32_t;
  std::optional<MaskId> find(Place place) const;
  MaskId add(Place place, const MaskRecipe& recipe);
  std::span<const std::uint32_t> bits(MaskId mask) const { return masks_[mask].bits; }
  std::size_t memory() const { return memory_; }
  void clear();

 private:
  struct Stored {
    std::vector<std::uint64_t> recipe;  // empty: longer than is compared
    std::vector<std::uint32_t> bits;
  };
  std::vector<std::uint32_t> follow(const MaskRecipe& recipe) const;

  std::deque<Stored> masks_;
  std::unordered_map<Place, MaskId> places_;
  std::unordered_multimap<std::uint64_t, MaskId> recipes_;  // by hash
  std::size_t memory_ = 0;
};

}  // namespace nibble
