// Texts that may come next whatever characters they are made of, found by following all of them at once: a
// key of `[a-z_]{1,255}`, or one that some pattern cuts in two, either half of which is a key.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/token_trie.h"

namespace nibble {

// Every text of at most so many characters of these kinds of one byte may come next, and of at most
// `with_long` of these and longer ones.
struct FreeTexts {
  ByteKindMask kinds = 0, long_kinds = 0;
  std::uint32_t characters = 0, with_long = 0;
  Matcher::State at = Matcher::kDead;  // where they may come

  bool have(ByteKindMask of_kinds, std::uint32_t of_characters) const {
    return ((of_kinds & ~kinds) == 0 && of_characters <= characters) ||
           ((of_kinds & ~(kinds | long_kinds)) == 0 && of_characters <= with_long);
  }
  // Of plain tokens: all at and below the node, whose byte leads to `state`.
  bool have_below(const TrieNode& node, Matcher::State state) const {
    return state == at && node.characters > 0 && have(node.kinds, node.characters);
  }
};

// Of the kinds whose every character may come next; none where letters are not among them.
FreeTexts free_texts(Matcher& matcher, const ByteKinds& kinds, Matcher::State state);

// The kinds of characters of which each leads from one place to the other.
ByteKindMask kinds_between(Matcher& matcher, const ByteKinds& kinds, Matcher::State from, Matcher::State to);

}  // namespace nibble
