// A vocabulary as tries of its tokens' bytes, laid out so that a walk over one is a walk over an array.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token_id.h"
#include "core/token_constraint.h"
#include "grammar/grammar.h"

namespace nibble {

struct TrieNode {
  std::uint32_t end;  // behind the last node below this one; nodes stand in the order of a walk
  TokenId token;      // that ends here, or -1
  std::uint8_t byte;
  std::uint8_t depth;  // bytes above this one's; at most 255
  std::uint16_t
      characters;  // of the longest token at or below, counted from here; 0 in the trie of the others
};

class TokenTrie final : public GrammarVocabulary {
 public:
  TokenTrie(const Tokenizer& tokenizer, std::span<const TokenId> ends, TokenId size);

  TokenId size() const override { return size_; }
  bool is_end(TokenId token) const override;
  std::span<const TokenId> ends() const { return ends_; }
  std::string_view bytes(TokenId token) const;

  // Tokens of nothing but plain characters of a JSON string, and the others.
  std::span<const TrieNode> plain() const { return plain_; }
  std::span<const TrieNode> other() const { return other_; }
  // The others by what stands behind their plain beginning: a trie of those endings, whose `token` is a
  // group.
  struct Ended {
    TokenId token;
    std::uint32_t characters;  // of the whole token, at most
  };
  std::span<const TrieNode> endings() const { return endings_; }
  std::span<const Ended> ended(TokenId group) const { return groups_[static_cast<std::size_t>(group)]; }
  // Adds the plain tokens of at most so many characters; returns whether those are all.
  bool add_plain(TokenMask mask, std::uint32_t characters) const;
  // Adds those whose bytes another token has that is in the mask.
  void add_twins(TokenMask mask) const;

 private:
  TokenId size_;
  std::vector<TokenId> ends_;
  std::string all_bytes_;
  std::vector<std::uint32_t> begin_;  // [size + 1] in all_bytes_; a token without text has no bytes
  std::vector<TrieNode> plain_, other_, endings_;
  std::vector<std::vector<Ended>> groups_;
  std::vector<std::pair<TokenId, TokenId>> twins_;
  // Plain tokens by length: of up to kLengths[i] characters as bits, and each length's own.
  std::vector<std::vector<std::uint32_t>> up_to_;
  std::vector<std::vector<TokenId>> of_length_;
};

}  // namespace nibble
