// Texts that may come next whatever characters they are made of, found by following all of them at once: a
// key of `[a-z_]{1,255}`, or one that some pattern cuts in two, either half of which is a key.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/token_trie.h"

namespace nibble {

// Every text of at most so many characters of these kinds may come next.
struct FreeTexts {
  ByteKindMask kinds = 0;
  std::uint32_t characters = 0;
};

// Of the kinds whose every character may come next; none where letters are not among them.
FreeTexts free_texts(Matcher& matcher, const ByteKinds& kinds, Matcher::State state);

// Where the characters of two bytes and more lead, each place once; kDead is among them where one may not
// come.
std::vector<Matcher::State> behind_long_characters(Matcher& matcher, Matcher::State state);

}  // namespace nibble
