// How far tokens go inside a text, whatever comes behind it. Of texts of which many places have one it is
// found once for all of them: behind each of a hundred keys stands the same colon with the same indents, and
// each place in an object has the same keys.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "grammar/languages.h"
#include "grammar/token_trie.h"

namespace nibble {

struct TextReach {
  std::vector<std::uint32_t> inside;  // the trie's nodes with whose bytes the text goes on or ends
  std::vector<std::uint32_t> ends;    // those of them with which it may end
  bool whole = true;                  // false: there are too many, and they are not here
};

class TextReaches {
 public:
  // From behind the trie's node on. Stays until the next call.
  const TextReach& of(Languages& languages, Language text, const Trie& trie, std::uint32_t node);
  // The nodes up to which `wide` goes on while `narrow`, with fewer texts, does not: none of the others below
  // is among them. `whole` is false where they are too many, or `narrow` goes on where `wide` does not.
  const TextReach& beyond(Languages& languages, Language narrow, Language wide, const Trie& trie);
  void clear() {
    known_.clear();
    beyond_.clear();
  }

 private:
  struct Key {
    const Trie* trie;
    std::uint32_t node;
    Language text;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.trie) ^
             (static_cast<std::uint64_t>(key.text) << 32 | key.node) * 0x9E3779B97F4A7C15ull;
    }
  };
  std::unordered_map<Key, TextReach, Hash> known_;
  std::unordered_map<Key, TextReach, Hash> beyond_;  // the node is the wide text
};

// Whether no text of the language begins but with white space, a comma, a colon or a closing bracket.
bool begins_narrow(const Languages& languages, Language text);

}  // namespace nibble
