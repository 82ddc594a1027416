#include "grammar/mask_finder.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/alike_texts.h"

namespace nibble {
namespace {

// Fewer than most tokens have.
constexpr std::uint32_t kFewCharacters = 8;
// Of a place that counts: tokens that may be too long for it, and that are.
constexpr std::size_t kMostLongTokens = 8192, kMostTooLong = 256;
constexpr ByteKindMask kNotAsked = 0xFFFF, kAnyKinds = 0xFFFF;

}  // namespace

Matcher::State MaskFinder::after(Matcher::State state, TokenId token) {
  for (const char byte : trie_->bytes(token)) {
    state = matcher_->step(state, static_cast<std::uint8_t>(byte));
    if (state == Matcher::kDead) break;
  }
  return state;
}

MaskId MaskFinder::mask_at(Matcher::State state) {
  if (const std::optional<MaskId> known = findings_->masks.find(state)) return *known;
  MaskRecipe recipe(*trie_);
  write_recipe(state, recipe);
  return findings_->masks.add(state, recipe);
}

void MaskFinder::write_recipe(Matcher::State state, MaskRecipe& mask) {
  if (matcher_->has_apart(state) && matcher_->split(state).rest == Matcher::kDead) {
    set_walked(trie_->plain(), state, {}, mask);
    set_walked(trie_->other(), state, {}, mask);
    return;
  }
  if (!matcher_->plain_ends(state) && !matcher_->uniform(state) && write_key(state, mask)) return;
  const bool mostly = !matcher_->plain_ends(state) && mostly_plain(state);
  if (const Matcher::State usual = mostly ? usual_rest(state) : Matcher::kDead; usual != Matcher::kDead) {
    mask.like(mask_at(usual));
    mend(trie_->plain(), state, usual, mask);
    mend(trie_->other(), state, usual, mask);
    return;
  }
  if (!matcher_->plain_ends(state) && write_far_from_end(state, mask)) return;
  const std::uint32_t plain = matcher_->plain_prefix(state);
  const bool walks = plain < trie_->longest() && !matcher_->plain_ends(state);
  const KnownTexts known = walks ? known_texts(state) : KnownTexts{};
  if (walks && !has_letters(known.free) && write_like_base(state, mask)) return;
  if (plain > 0) mask.plain(plain);
  if (walks) write_plain(state, known, mostly, mask);
  if (matcher_->uniform(state)) {
    walk_endings(state, mask);
  } else {
    set_walked(trie_->other(), state, {}, mask);
  }
  if (matcher_->complete(state)) mask.ends();
}

bool MaskFinder::write_far_from_end(Matcher::State state, MaskRecipe& mask) {
  const auto far = matcher_->far_from_end(state);
  if (!far || trie_->longer(far->bytes).size() > kMostLongTokens) return false;
  const MaskId endless = mask_at(far->endless);
  const auto [at, added] = findings_->too_long.try_emplace(far->rounded);
  if (added) at->second = tokens_too_long(*far, findings_->masks.bits(endless));
  if (at->second.size() > kMostTooLong) return false;
  mask.like(endless);
  for (const TokenId token : at->second)
    if (after(state, token) == Matcher::kDead) mask.without(token);
  return true;
}

std::vector<TokenId> MaskFinder::tokens_too_long(const Matcher::FarFromEnd& far,
                                                 std::span<const std::uint32_t> may_come) {
  std::vector<TokenId> too_long;
  for (const TokenId token : trie_->longer(far.bytes))
    if (has_bit(may_come, token) && after(far.rounded, token) == Matcher::kDead) too_long.push_back(token);
  return too_long;
}

MaskFinder::KnownTexts MaskFinder::known_texts(Matcher::State state) {
  const FreeTexts settling = settling_texts(state);
  if (has_letters(settling)) return {.free = settling, .few = {}};
  const FreeTexts found = free_texts(*matcher_, trie_->kinds(), state);
  if (found.characters >= kFewCharacters) return {.free = found, .few = {}};
  return {.free = settling, .few = found};
}

void MaskFinder::write_plain(Matcher::State state, const KnownTexts& known, bool mostly, MaskRecipe& mask) {
  const FreeTexts& free = known.free;
  if (!has_letters(free) && (mostly || most_lead_to(state) == state)) {
    mask.plain(kUnbounded);
    clear_walked(trie_->plain(), state, known.few, mask);
    return;
  }
  if (free.characters > 0) mask.kinds(free.kinds, free.characters);
  if (free.with_long > 0) mask.kinds(free.kinds | free.long_kinds, free.with_long);
  set_walked(trie_->plain(), state, free, mask);
}

bool MaskFinder::write_like_base(Matcher::State state, MaskRecipe& mask) {
  if (at_base_) return false;
  const Matcher::State base = base_of(state);
  if (base == Matcher::kDead) return false;
  at_base_ = true;
  mask.like(mask_at(base));
  at_base_ = false;
  mend(trie_->plain(), state, base, mask);
  mend(trie_->other(), state, base, mask);
  return true;
}

Matcher::State MaskFinder::most_lead_to(Matcher::State state) {
  std::vector<std::pair<Matcher::State, std::size_t>> leading;  // how many tokens begin with what leads there
  for (const TrieNode& node : trie_->plain().children(0)) {
    const Matcher::State next = matcher_->step(state, node.byte);
    auto at = std::ranges::find(leading, next, &std::pair<Matcher::State, std::size_t>::first);
    if (at == leading.end()) at = leading.insert(at, {next, 0});
    at->second += node.end - node.begin;
  }
  return std::ranges::max(leading, {}, &std::pair<Matcher::State, std::size_t>::second).first;
}

Matcher::State MaskFinder::base_of(Matcher::State state) {
  const Matcher::State base = most_lead_to(state);
  if (base == state || base == Matcher::kDead) return Matcher::kDead;
  if (matcher_->complete(base) || matcher_->complete(state) || matcher_->plain_ends(base))
    return Matcher::kDead;
  std::size_t differing = 0;
  for (const TrieNode& node : trie_->plain().children(0))
    if (matcher_->step(state, node.byte) != matcher_->step(base, node.byte))
      differing += node.end - node.begin;
  return differing * 2 < trie_->plain().tokens.size() ? base : Matcher::kDead;
}

void MaskFinder::clear_repeated(Matcher::State state, Matcher::State place, TokenMask mask) {
  const auto [at, added] = findings_->may_repeat.try_emplace(state);
  if (added) {
    for (const TokenId token : trie_->with_comma())
      if (has_bit(mask, token) && may_repeat(state, token)) at->second.push_back(token);
  }
  if (at->second.empty()) return;
  const std::string before = matcher_->copied_text(place);
  for (const TokenId token : at->second)
    if (may_be_alike(before, trie_->bytes(token)) && after(place, token) == Matcher::kDead)
      clear_bit(mask, token);
}

bool MaskFinder::may_repeat(Matcher::State state, TokenId token) {
  bool copied = false, parted = false;
  const std::string_view bytes = trie_->bytes(token);
  for (const char byte : bytes) {
    copied |= matcher_->in_copied(state);
    state = matcher_->step(state, static_cast<std::uint8_t>(byte));
    parted |= copied && byte == ',' && matcher_->in_others(state);
  }
  // Of several ends at most one makes the text like the one before it.
  const bool open = std::ranges::count(bytes, ',') == 1 && matcher_->copied_texts(state, 2) > 1;
  return parted && !open;
}

bool MaskFinder::mostly_plain(Matcher::State state) {
  const Trie& trie = trie_->plain();
  std::size_t free = 0;
  for (const TrieNode& node : trie.children(0)) {
    const Matcher::State next = matcher_->step(state, node.byte);
    if (next != Matcher::kDead && matcher_->plain_prefix(next) >= node.characters)
      free += node.end - node.begin;
  }
  return free * 2 > trie.tokens.size();
}

bool MaskFinder::write_key(Matcher::State state, MaskRecipe& mask) {
  const auto place = matcher_->key_place(state);
  if (!place) return false;
  Languages& languages = matcher_->languages();
  TextReaches& reaches = findings_->reaches;
  const Trie* const tries[] = {&trie_->plain(), &trie_->other()};
  for (const Trie* trie : tries) {
    if (!reaches.beyond(languages, place->others, place->any, *trie).whole) return false;
    for (const Matcher::NarrowWay& way : place->declared)
      if (!reaches.of(languages, way.text, *trie, 0).whole) return false;
  }
  mask.like(mask_at(place->usual));
  for (const Trie* trie : tries) {
    for (const std::uint32_t node : reaches.beyond(languages, place->others, place->any, *trie).inside)
      mask.without_below(*trie, trie->nodes[node]);
    const auto alive = [&](const TrieNode& node) {
      if (node.has_token) mask.token(trie->tokens[node.begin]);
    };
    next_level_.clear();
    for (const Matcher::NarrowWay& way : place->declared) come_through(*trie, 0, way, alive);
    go_down(
        *trie, [&](const TrieNode& node) { mask.below(*trie, node); }, alive);
  }
  return true;
}

Matcher::State MaskFinder::usual_rest(Matcher::State state) {
  const Trie& trie = trie_->plain();
  Matcher::State usual = Matcher::kDead;
  std::size_t most = 0;
  for (const TrieNode& node : trie.children(0)) {
    if (node.byte >= 0x80 || node.end - node.begin <= most) continue;
    const Matcher::State next = matcher_->step(state, node.byte);
    if (next == state || !matcher_->uniform(next) || matcher_->step(next, node.byte) != next) continue;
    if (matcher_->plain_prefix(next) < node.characters) continue;
    usual = next;
    most = node.end - node.begin;
  }
  if (usual == Matcher::kDead || matcher_->complete(state)) return Matcher::kDead;
  std::size_t differing = 0;
  for (const TrieNode& node : trie.children(0))
    if (matcher_->step(state, node.byte) != matcher_->step(usual, node.byte))
      differing += node.end - node.begin;
  return differing * 16 < trie.tokens.size() ? usual : Matcher::kDead;
}

void MaskFinder::mend(const Trie& trie, Matcher::State root, Matcher::State like, MaskRecipe& mask) {
  pairs_.assign(1, {.node = 0, .state = root, .like = like});
  while (!pairs_.empty()) {
    const auto [place, state, other] = pairs_.back();
    pairs_.pop_back();
    for (const TrieNode& node : trie.children(place)) {
      const Matcher::State next = matcher_->step(state, node.byte);
      const Matcher::State like_next = matcher_->step(other, node.byte);
      if (next == like_next) continue;
      if (next == Matcher::kDead) {
        mask.without_below(trie, node);
        continue;
      }
      if (node.has_token) mask.token(trie.tokens[node.begin]);
      pairs_.push_back({.node = trie.place(node), .state = next, .like = like_next});
    }
  }
}

template <typename Alive>
void MaskFinder::come_to(const Trie& trie, std::uint32_t node, Matcher::State state, ByteKindMask above,
                         const Alive& alive) {
  if (matcher_->has_apart(state)) {
    const Matcher::Split& split = matcher_->split(state);
    bool whole = true;
    for (const Matcher::NarrowWay& way : split.ways) whole &= come_through(trie, node, way, alive);
    if (whole) state = split.rest;
  }
  if (state != Matcher::kDead) next_level_.push_back({.node = node, .state = state, .above = above});
}

template <typename Alive>
bool MaskFinder::come_through(const Trie& trie, std::uint32_t node, const Matcher::NarrowWay& way,
                              const Alive& alive) {
  const TextReach& reach = findings_->reaches.of(matcher_->languages(), way.text, trie, node);
  for (const std::uint32_t inside : reach.inside) alive(trie.nodes[inside]);
  for (const std::uint32_t end : reach.ends)
    if (!trie.children(end).empty())
      next_level_.push_back({.node = end, .state = matcher_->behind(way), .above = kAnyKinds});
  return reach.whole;
}

template <typename Free, typename Alive>
void MaskFinder::walk(const Trie& trie, Matcher::State root, const Free& free, const Alive& alive,
                      const FreeTexts& known) {
  next_level_.clear();
  come_to(trie, 0, root, 0, alive);
  go_down(trie, free, alive, known);
}

template <typename Free, typename Alive>
void MaskFinder::go_down(const Trie& trie, const Free& free, const Alive& alive, const FreeTexts& known) {
  while (!next_level_.empty()) {
    level_.swap(next_level_);
    next_level_.clear();
    for (const Step& at : level_) {
      const std::uint32_t place = at.node;
      const Matcher::State state = at.state;
      const ByteKindMask above = at.above;
      ByteKindMask looping = 0;
      bool asked = false;
      Matcher::Steps steps = matcher_->steps(state);
      trie.for_children(place, matcher_->first_bytes(state), [&](const TrieNode& node) {
        if (known.have(node.kinds | above, node.longest)) return;
        const Matcher::State next = steps.to(node.byte);
        if (next == Matcher::kDead) return;
        if (!asked && (next == state || node.byte >= 0x80)) {
          if (next == state || a_long_character_loops(state)) looping = loops(state);
          asked = true;
        }
        if ((node.characters > 0 && matcher_->plain_prefix(next) >= node.characters) ||
            (node.kinds & ~looping) == 0 || known.have_below(node, next)) {
          free(node);
        } else {
          alive(node);
          if (trie.children(trie.place(node)).empty()) return;
          come_to(trie, trie.place(node), next, static_cast<ByteKindMask>(above | node.own), alive);
        }
      });
    }
  }
}

void MaskFinder::set_walked(const Trie& trie, Matcher::State root, const FreeTexts& known, MaskRecipe& mask) {
  walk(
      trie, root, [&](const TrieNode& node) { mask.below(trie, node); },
      [&](const TrieNode& node) {
        if (node.has_token) mask.token(trie.tokens[node.begin]);
      },
      known);
}

void MaskFinder::clear_walked(const Trie& trie, Matcher::State root, const FreeTexts& few, MaskRecipe& mask) {
  next_level_.assign(1, {.node = 0, .state = root, .above = 0});
  while (!next_level_.empty()) {
    level_.swap(next_level_);
    next_level_.clear();
    for (const auto& [place, state, above] : level_) {
      Matcher::Steps steps = matcher_->steps(state);
      for (const TrieNode& node : trie.children(place)) {
        const Matcher::State next = steps.to(node.byte);
        if (next == Matcher::kDead) {
          mask.without_below(trie, node);
          continue;
        }
        if (matcher_->plain_prefix(next) >= node.characters || few.have_below(node, next)) continue;
        if (trie.children(trie.place(node)).empty()) continue;
        if (next == state && (node.kinds & ~loops(state)) == 0) continue;
        next_level_.push_back({.node = trie.place(node), .state = next, .above = kAnyKinds});
      }
    }
  }
}

void MaskFinder::walk_endings(Matcher::State root, MaskRecipe& mask) {
  const Trie& trie = trie_->endings();
  const std::uint32_t left = matcher_->plain_prefix(root);
  const auto set = [&](TokenId group) {
    mask.ended(group, left);
    if (left >= trie_->longest_ended(group)) return;
    for (const auto& [token, characters] : trie_->ended(group))
      if (characters > left && after(root, token) != Matcher::kDead) mask.token(token);
  };
  walk(
      trie, root,
      [&](const TrieNode& node) {
        for (const TokenId group : trie.below(node)) set(group);
      },
      [&](const TrieNode& node) {
        if (node.has_token) set(trie.tokens[node.begin]);
      });
}

FreeTexts MaskFinder::settling_texts(Matcher::State state) {
  const Matcher::State settled = matcher_->step(state, 'a');
  if (settled == Matcher::kDead) return {};
  ByteKindMask kinds = loops(settled);
  if (settled != state && kinds != 0) kinds &= kinds_between(*matcher_, trie_->kinds(), state, settled);
  if (kinds == 0) return {};
  const auto long_kinds = static_cast<ByteKindMask>(kinds & ByteKinds::long_ones());
  return {.kinds = static_cast<ByteKindMask>(kinds & ~long_kinds),
          .long_kinds = long_kinds,
          .characters = kUnbounded,
          .with_long = long_kinds != 0 ? kUnbounded : 0,
          .at = settled};
}

ByteKindMask MaskFinder::loops(Matcher::State state) {
  std::vector<ByteKindMask>& known = findings_->loops;
  if (known.size() <= state) known.resize(std::max<std::size_t>(state + 1, matcher_->states()), kNotAsked);
  if (known[state] == kNotAsked) {
    const ByteKindMask found = kinds_between(*matcher_, trie_->kinds(), state, state);
    known[state] = found;
  }
  return known[state];
}

bool MaskFinder::a_long_character_loops(Matcher::State state) {
  if (const auto behind = matcher_->behind_long(state, LongCharacters::others)) return *behind == state;
  return matcher_->step(matcher_->step(state, 0xC2), 0x80) == state;
}

}  // namespace nibble
