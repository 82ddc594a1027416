// A vocabulary as tries of its tokens' bytes. Nodes stand level by level, the children of each side by side
// and behind those of the node before it, so that a walk level by level reads forward.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/token_id.h"
#include "core/token_constraint.h"
#include "grammar/byte_set.h"
#include "grammar/grammar.h"
#include "grammar/long_characters.h"

namespace nibble {

// Kinds of characters, as bits, by which a walk knows a whole subtree: see ByteKinds.
using ByteKindMask = std::uint16_t;

// Letters, digits and the marks of which patterns are made each apart, so that a language that goes on with
// `[a-z0-9-]` for ever takes whole subtrees.
class ByteKinds {
 public:
  ByteKinds();
  // Of a character of one byte.
  ByteKindMask of(std::uint8_t byte) const { return kind_[byte]; }
  // Of a whole character.
  ByteKindMask of(std::string_view character) const;
  // The kinds of characters of one byte that are in the set with all of theirs.
  ByteKindMask within(const ByteSet& set) const;
  // Of longer characters.
  static ByteKindMask long_ones();
  static ByteKindMask of(LongCharacters kind);
  // Of what is no whole character.
  static ByteKindMask parts();
  // The small ones.
  ByteKindMask letters() const { return static_cast<ByteKindMask>(of('a') | of('z')); }

 private:
  std::array<ByteKindMask, 128> kind_{};
};

struct TrieNode {
  std::uint32_t children;  // the first; the next node's first is the end
  std::uint32_t begin;     // [begin, end) in Trie::tokens: the tokens at and below
  std::uint32_t end;
  std::uint8_t byte;
  bool has_token;  // that ends here: the first of those
  std::uint16_t
      characters;        // of the longest token at or below, counted from here; 0 in the trie of the others
  ByteKindMask own;      // the kind of the character that ends with this byte; none inside one
  ByteKindMask kinds;    // that and those below
  std::uint8_t longest;  // the same as `characters`, counted from the root
};

struct Trie {
  std::vector<TrieNode> nodes;  // the first is the root; one more stands behind the last
  std::vector<TokenId> tokens;  // in the order of their bytes

  std::span<const TrieNode> children(std::uint32_t node) const {
    return std::span(nodes).subspan(nodes[node].children, nodes[node + 1].children - nodes[node].children);
  }
  // Those of the children that begin with one of these bytes: a copy, for who is called may make more sets.
  template <typename Function>
  void for_children(std::uint32_t node, const ByteSet bytes, const Function& function) const {
    constexpr std::uint32_t kFew = 8;
    const std::span<const TrieNode> all = children(node);
    if (all.size() < 2 * kFew || bytes.count() >= kFew) {
      for (const TrieNode& child : all)
        if (bytes.has(child.byte)) function(child);
      return;
    }
    bytes.for_each([&](unsigned byte) {
      const auto child = std::ranges::lower_bound(all, byte, {}, &TrieNode::byte);
      if (child != all.end() && child->byte == byte) function(*child);
    });
  }
  std::uint32_t place(const TrieNode& node) const { return static_cast<std::uint32_t>(&node - nodes.data()); }
  std::span<const TokenId> below(const TrieNode& node) const {
    return std::span(tokens).subspan(node.begin, node.end - node.begin);
  }
};

class TokenTrie final : public GrammarVocabulary {
 public:
  TokenTrie(const Tokenizer& tokenizer, std::span<const TokenId> ends, TokenId size,
            std::span<const std::string_view> marks);

  TokenId size() const override { return size_; }
  bool is_end(TokenId token) const override;
  std::string mark(std::string_view spelling) const override;
  MaskCounts mask_counts() const override;
  void count_mask(std::chrono::nanoseconds time) const;
  std::span<const TokenId> ends() const { return ends_; }
  std::string_view bytes(TokenId token) const;

  // Tokens of nothing but plain characters of a JSON string, and the others.
  const Trie& plain() const { return plain_; }
  const Trie& other() const { return other_; }
  const ByteKinds& kinds() const { return kinds_; }
  // The others by what stands behind their plain beginning: a trie of those endings, whose tokens are
  // groups.
  struct Ended {
    TokenId token;
    std::uint32_t characters;  // of the whole token, at most
  };
  const Trie& endings() const { return endings_; }
  std::span<const Ended> ended(TokenId group) const { return groups_[static_cast<std::size_t>(group)]; }
  std::uint32_t longest_ended(TokenId group) const { return longest_ended_[static_cast<std::size_t>(group)]; }
  std::span<const TokenId> with_comma() const { return with_comma_; }
  std::uint32_t most_commas() const { return most_commas_; }
  // The longest token that the text begins with.
  std::optional<TokenId> longest_beginning(std::string_view text) const;
  // Tokens of more bytes.
  std::span<const TokenId> longer(std::uint32_t bytes) const;
  // Characters of the longest plain token.
  std::uint32_t longest() const { return static_cast<std::uint32_t>(of_length_.size()); }
  // Adds the plain tokens of at most so many characters; returns whether those are all.
  bool add_plain(TokenMask mask, std::uint32_t characters) const;
  // Adds the plain tokens of at most so many characters, all of these kinds.
  void add_kinds(TokenMask mask, ByteKindMask kinds, std::uint32_t characters) const;
  // Those whose bytes another token has: leaves them as that one is.
  void set_twins(TokenMask mask) const;

 private:
  TokenId size_;
  std::vector<TokenId> ends_;
  std::vector<std::pair<std::string, TokenId>> marks_;
  std::string all_bytes_;
  std::vector<std::uint32_t> begin_;  // [size + 1] in all_bytes_; a token without text has no bytes
  ByteKinds kinds_;
  Trie plain_, other_, endings_;
  struct Made {
    ByteKindMask kinds;
    std::uint16_t characters;
  };
  std::vector<Made> plain_made_;  // [plain_.tokens] of what
  std::vector<std::vector<Ended>> groups_;
  std::vector<std::uint32_t> longest_ended_;  // [groups_] characters
  std::vector<std::pair<TokenId, TokenId>> twins_;
  std::vector<TokenId> with_comma_;
  std::uint32_t most_commas_ = 0;
  std::vector<TokenId> by_length_;  // the longest first
  // Plain tokens by length: of up to kLengths[i] characters as bits, and each length's own.
  std::vector<std::vector<std::uint32_t>> up_to_;
  std::vector<std::vector<TokenId>> of_length_;
  mutable std::atomic<std::uint64_t> masks_ = 0, mask_nanoseconds_ = 0;
  mutable std::mutex mutex_;
  // By kinds and, above them, characters: those that were asked for.
  mutable std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> of_kinds_;
};

}  // namespace nibble
