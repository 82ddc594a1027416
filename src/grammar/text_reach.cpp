#include "grammar/text_reach.h"

#include <algorithm>
#include <span>
#include <utility>

namespace nibble {
namespace {

constexpr std::size_t kMostNodes = 2048, kMostPairs = 16384;
constexpr std::size_t kMostKnown = 4096;

}  // namespace

const TextReach& TextReaches::of(Languages& languages, Language text, const Trie& trie, std::uint32_t node) {
  if (known_.size() > kMostKnown) known_.clear();
  const auto [at, added] = known_.try_emplace(Key{.trie = &trie, .node = node, .text = text});
  TextReach& reach = at->second;
  if (!added) return reach;
  std::vector<std::pair<std::uint32_t, Language>> open{{node, text}};
  while (!open.empty()) {
    const auto [place, before] = open.back();
    open.pop_back();
    const auto take = [&, text_before = before](const TrieNode& child) {
      const Language next = languages.derivative(text_before, child.byte);
      if (next == kNothing || languages.is_empty(next)) return;
      const std::uint32_t below = trie.place(child);
      reach.inside.push_back(below);
      if (languages.has_empty_text(next)) reach.ends.push_back(below);
      if (next != kEmptyText) open.emplace_back(below, next);
    };
    trie.for_children(place, languages.first_bytes(before), take);
    if (reach.inside.size() <= kMostNodes) continue;
    reach = {.inside = {}, .ends = {}, .whole = false};
    break;
  }
  return reach;
}

const TextReach& TextReaches::beyond(Languages& languages, Language narrow, Language wide, const Trie& trie) {
  if (beyond_.size() > kMostKnown) beyond_.clear();
  const auto [at, added] = beyond_.try_emplace(Key{.trie = &trie, .node = wide, .text = narrow});
  TextReach& reach = at->second;
  if (!added) return reach;
  struct Pair {
    std::uint32_t node;
    Language narrow, wide;
  };
  std::vector<Pair> open{{0, narrow, wide}};
  std::size_t pairs = 0;
  while (!open.empty() && reach.whole) {
    const Pair before = open.back();
    open.pop_back();
    reach.whole = ++pairs < kMostPairs;
    ByteSet same;  // bytes that lead both to one place: most of them
    for (const TrieNode& child : trie.children(before.node)) {
      if (same.has(child.byte)) continue;
      const Language one = languages.derivative(before.narrow, child.byte);
      const Language other = languages.derivative(before.wide, child.byte);
      if (one == other) {
        same = same | (languages.alike(before.narrow, child.byte) & languages.alike(before.wide, child.byte));
        continue;
      }
      const bool goes_on = other != kNothing && !languages.is_empty(other);
      if (one == kNothing || languages.is_empty(one)) {
        if (goes_on) reach.inside.push_back(trie.place(child));
      } else {
        reach.whole &= goes_on;
        open.push_back({trie.place(child), one, other});
      }
    }
  }
  return reach;
}

bool begins_narrow(const Languages& languages, Language text) {
  constexpr std::uint64_t narrow =
      1ull << ' ' | 1ull << '\t' | 1ull << '\n' | 1ull << '\r' | 1ull << ',' | 1ull << ':';
  constexpr std::uint64_t closing = 1ull << (']' - 64) | 1ull << ('}' - 64);
  const ByteSet& first = languages.first_bytes(text);
  return !first.empty() && (first.words[0] & ~narrow) == 0 && (first.words[1] & ~closing) == 0 &&
         (first.words[2] | first.words[3]) == 0;
}

}  // namespace nibble
