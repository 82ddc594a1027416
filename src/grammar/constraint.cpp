// A grammar's place in one answer, and the masks of tokens.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "grammar/alike_texts.h"
#include "grammar/free_texts.h"
#include "grammar/grammar_data.h"
#include "grammar/token_trie.h"

namespace nibble {
namespace {

// Beyond it what was found is forgotten and found again.
constexpr std::size_t kMatcherBytes = std::size_t{48} << 20;
constexpr std::size_t kMaskBytes = std::size_t{8} << 20;
// Fewer than most tokens have.
constexpr std::uint32_t kFewCharacters = 8;
// Of a place that counts: tokens that may be too long for it, and that are.
constexpr std::size_t kMostLongTokens = 8192, kMostTooLong = 256;
// Bytes of text for each token that is drafted, at most; places whose only byte is known.
constexpr std::size_t kDraftedBytes = 16, kMostOnlyBytes = std::size_t{1} << 16;
constexpr std::int16_t kNoByte = -1;
constexpr ByteKindMask kNotAsked = 0xFFFF, kAnyKinds = 0xFFFF;

class Constraint final : public GrammarConstraint {
 public:
  Constraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const GrammarVocabulary> vocabulary)
      : grammar_(std::move(grammar)),
        trie_(std::static_pointer_cast<const TokenTrie>(vocabulary)),
        findings_(grammar_->borrow()),
        matcher_(&findings_->matcher) {
    if (findings_->vocabulary != vocabulary) {
      findings_->vocabulary = std::move(vocabulary);
      matcher_->set_token_elements(trie_->most_commas() + 1);
      forget();
    }
    states_.push_back(matcher_->start());
  }
  ~Constraint() override { grammar_->give_back(std::move(findings_)); }

  bool binds() const override { return true; }

  void fill(TokenMask mask) override {
    NIBBLE_CHECK(mask.size() == token_mask_words(trie_->size()));
    const auto begin = std::chrono::steady_clock::now();
    if (ended_) {
      std::fill(mask.begin(), mask.end(), 0);
      for (const TokenId token : trie_->ends()) set_bit(mask, token);
      return;
    }
    bound_memory();
    const Matcher::State state = matcher_->without_copies(states_.back());
    std::ranges::copy(findings_->masks.bits(mask_at(state)), mask.begin());
    if (matcher_->tells_apart() && state != states_.back()) clear_repeated(state, mask);
    // No token of this vocabulary leads on from here: the answer ends, cut short, and takes nothing else
    // down.
    leads_nowhere_ = std::ranges::all_of(mask, [](std::uint32_t word) { return word == 0; });
    if (leads_nowhere_)
      for (const TokenId token : trie_->ends()) set_bit(mask, token);
    trie_->count_mask(std::chrono::steady_clock::now() - begin);
  }

  bool allows(TokenId token) override {
    if (token < 0 || token >= trie_->size()) return false;
    if (trie_->is_end(token)) return ended_ || leads_nowhere_ || matcher_->complete(states_.back());
    if (ended_ || trie_->bytes(token).empty()) return false;
    return after(states_.back(), token) != Matcher::kDead;
  }

  void accept(TokenId token) override {
    NIBBLE_CHECK(allows(token));
    leads_nowhere_ = false;
    tokens_.push_back(token);
    if (trie_->is_end(token)) {
      ended_ = true;
      states_.push_back(states_.back());
    } else {
      states_.push_back(after(states_.back(), token));
    }
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens >= 0 && static_cast<std::size_t>(tokens) <= tokens_.size());
    leads_nowhere_ = false;
    for (int i = 0; i < tokens; ++i) {
      tokens_.pop_back();
      states_.pop_back();
    }
    ended_ = !tokens_.empty() && trie_->is_end(tokens_.back());
  }

  bool complete() override { return matcher_->complete(states_.back()); }

  // The end leaves the state as it was.
  bool cut() const override { return ended_ && !matcher_->complete(states_.back()); }

  // The text that must come whatever is chosen, each time the longest token of it.
  int draft(std::span<TokenId> room) override {
    if (ended_ || leads_nowhere_) return 0;
    std::string text;
    Matcher::State state = states_.back();
    while (text.size() < room.size() * kDraftedBytes) {
      const int byte = only_byte(state);
      if (byte == kNoByte) break;
      text.push_back(static_cast<char>(byte));
      state = matcher_->step(state, static_cast<std::uint8_t>(byte));
    }
    std::size_t count = 0;
    for (std::string_view left = text; count < room.size() && !left.empty(); ++count) {
      const std::optional<TokenId> token = trie_->longest_beginning(left);
      if (!token) break;
      room[count] = *token;
      left.remove_prefix(trie_->bytes(*token).size());
    }
    return static_cast<int>(count);
  }

 private:
  // What the text must go on with; kNoByte where it may end or has a choice.
  int only_byte(Matcher::State state) {
    if (matcher_->complete(state)) return kNoByte;
    if (findings_->only_bytes.size() > kMostOnlyBytes) findings_->only_bytes.clear();
    const auto [at, added] = findings_->only_bytes.try_emplace(state, kNoByte);
    if (!added) return at->second;
    Matcher::Steps steps = matcher_->steps(state);
    for (int byte = 0; byte < 256; ++byte) {
      if (steps.to(static_cast<std::uint8_t>(byte)) == Matcher::kDead) continue;
      if (at->second != kNoByte) return at->second = kNoByte;
      at->second = static_cast<std::int16_t>(byte);
    }
    return at->second;
  }

  Matcher::State after(Matcher::State state, TokenId token) {
    for (const char byte : trie_->bytes(token)) {
      state = matcher_->step(state, static_cast<std::uint8_t>(byte));
      if (state == Matcher::kDead) break;
    }
    return state;
  }

  MaskId mask_at(Matcher::State state) {
    if (const std::optional<MaskId> known = findings_->masks.find(state)) return *known;
    MaskRecipe recipe(*trie_);
    write_recipe(state, recipe);
    return findings_->masks.add(state, recipe);
  }

  void write_recipe(Matcher::State state, MaskRecipe& mask) {
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

  // A place that counts: as without an end of the counts, but for tokens that are too long for them.
  bool write_far_from_end(Matcher::State state, MaskRecipe& mask) {
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

  std::vector<TokenId> tokens_too_long(const Matcher::FarFromEnd& far,
                                       std::span<const std::uint32_t> may_come) {
    std::vector<TokenId> too_long;
    for (const TokenId token : trie_->longer(far.bytes))
      if (has_bit(may_come, token) && after(far.rounded, token) == Matcher::kDead) too_long.push_back(token);
    return too_long;
  }

  bool has_letters(const FreeTexts& free) const { return (trie_->kinds().letters() & ~free.kinds) == 0; }

  // Texts of the most kinds that may come next whatever they are: of enough characters for most tokens, and
  // of fewer.
  struct KnownTexts {
    FreeTexts free, few;
  };
  KnownTexts known_texts(Matcher::State state) {
    const FreeTexts settling = settling_texts(state);
    if (has_letters(settling)) return {.free = settling, .few = {}};
    const FreeTexts found = free_texts(*matcher_, trie_->kinds(), state);
    if (found.characters >= kFewCharacters) return {.free = found, .few = {}};
    return {.free = settling, .few = found};
  }

  // Plain tokens where not all of any length may come.
  void write_plain(Matcher::State state, const KnownTexts& known, bool mostly, MaskRecipe& mask) {
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

  // Where no texts are free: as at the place to which most characters lead back (a text in which a word must
  // not stand has one), but where the two are told apart.
  bool write_like_base(Matcher::State state, MaskRecipe& mask) {
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

  // The place to which the first bytes of most plain tokens lead.
  Matcher::State most_lead_to(Matcher::State state) {
    std::vector<std::pair<Matcher::State, std::size_t>>
        leading;  // how many tokens begin with what leads there
    for (const TrieNode& node : trie_->plain().children(0)) {
      const Matcher::State next = matcher_->step(state, node.byte);
      auto at = std::ranges::find(leading, next, &std::pair<Matcher::State, std::size_t>::first);
      if (at == leading.end()) at = leading.insert(at, {next, 0});
      at->second += node.end - node.begin;
    }
    return std::ranges::max(leading, {}, &std::pair<Matcher::State, std::size_t>::second).first;
  }

  // kDead: there is none.
  Matcher::State base_of(Matcher::State state) {
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

  // Of a place without its copies: clears those of tokens in which a text ends and one like it comes. That
  // takes a comma, behind which something else than the text before it may stand.
  void clear_repeated(Matcher::State state, TokenMask mask) {
    const auto [at, added] = findings_->may_repeat.try_emplace(state);
    if (added) {
      for (const TokenId token : trie_->with_comma())
        if (has_bit(mask, token) && may_repeat(state, token)) at->second.push_back(token);
    }
    if (at->second.empty()) return;
    const std::string before = matcher_->copied_text(states_.back());
    for (const TokenId token : at->second)
      if (may_be_alike(before, trie_->bytes(token)) && after(states_.back(), token) == Matcher::kDead)
        clear_bit(mask, token);
  }

  bool may_repeat(Matcher::State state, TokenId token) {
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

  // Whether most plain tokens may come next, told from their first bytes: a key that is none of the declared
  // ones.
  bool mostly_plain(Matcher::State state) {
    const Trie& trie = trie_->plain();
    std::size_t free = 0;
    for (const TrieNode& node : trie.children(0)) {
      const Matcher::State next = matcher_->step(state, node.byte);
      if (next != Matcher::kDead && matcher_->plain_prefix(next) >= node.characters)
        free += node.end - node.begin;
    }
    return free * 2 > trie.tokens.size();
  }

  // Inside a key: as inside one that can only be undeclared, but where a token ends a declared one.
  bool write_key(Matcher::State state, MaskRecipe& mask) {
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

  // Inside a key that may be a declared one: the place to which most characters lead, and to which none of
  // those leads that begin a declared key. It differs from `state` where a declared key is begun, and hardly
  // elsewhere.
  Matcher::State usual_rest(Matcher::State state) {
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

  // From the mask of a place to that of another one, by what the two tell apart.
  void mend(const Trie& trie, Matcher::State root, Matcher::State like, MaskRecipe& mask) {
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

  // Adds a place to those that a walk comes to next: texts that begin narrow apart from the rest of it.
  template <typename Alive>
  void come_to(const Trie& trie, std::uint32_t node, Matcher::State state, ByteKindMask above,
               const Alive& alive) {
    if (matcher_->has_apart(state)) {
      const Matcher::Split& split = matcher_->split(state);
      bool whole = true;
      for (const Matcher::NarrowWay& way : split.ways) whole &= come_through(trie, node, way, alive);
      if (whole) state = split.rest;
    }
    if (state != Matcher::kDead) next_level_.push_back({.node = node, .state = state, .above = above});
  }

  // Through the way's text to what stands behind it.
  template <typename Alive>
  bool come_through(const Trie& trie, std::uint32_t node, const Matcher::NarrowWay& way, const Alive& alive) {
    const TextReach& reach = findings_->reaches.of(matcher_->languages(), way.text, trie, node);
    for (const std::uint32_t inside : reach.inside) alive(trie.nodes[inside]);
    for (const std::uint32_t end : reach.ends)
      if (!trie.children(end).empty())
        next_level_.push_back({.node = end, .state = matcher_->behind(way), .above = kAnyKinds});
    return reach.whole;
  }

  // Goes down the trie with the matcher, level by level. `free` is called with a node below which every text
  // may come, `alive` with each other node that a text goes on with. One place may be reached several times,
  // so what a caller finds must be a union.
  template <typename Free, typename Alive>
  void walk(const Trie& trie, Matcher::State root, const Free& free, const Alive& alive,
            const FreeTexts& known = {}) {
    next_level_.clear();
    come_to(trie, 0, root, 0, alive);
    go_down(trie, free, alive, known);
  }

  // From the places that are to come next. Tokens of the texts that are `known` are passed by.
  template <typename Free, typename Alive>
  void go_down(const Trie& trie, const Free& free, const Alive& alive, const FreeTexts& known = {}) {
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

  // The tokens of texts that are `known` are set already.
  void set_walked(const Trie& trie, Matcher::State root, const FreeTexts& known, MaskRecipe& mask) {
    walk(
        trie, root, [&](const TrieNode& node) { mask.below(trie, node); },
        [&](const TrieNode& node) {
          if (node.has_token) mask.token(trie.tokens[node.begin]);
        },
        known);
  }

  // Where all bits are set: clears those of tokens that may not come.
  void clear_walked(const Trie& trie, Matcher::State root, const FreeTexts& few, MaskRecipe& mask) {
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

  // Inside a string a token's plain beginning changes nothing but the length that is left: only what stands
  // behind it is tried, once for all tokens that have it.
  void walk_endings(Matcher::State root, MaskRecipe& mask) {
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

  // Texts of kinds that lead where a letter leads, and leave that place as it is: they have any length.
  FreeTexts settling_texts(Matcher::State state) {
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

  // The kinds of characters that leave the state as it is.
  ByteKindMask loops(Matcher::State state) {
    std::vector<ByteKindMask>& known = findings_->loops;
    if (known.size() <= state) known.resize(std::max<std::size_t>(state + 1, matcher_->states()), kNotAsked);
    if (known[state] == kNotAsked) {
      const ByteKindMask found = kinds_between(*matcher_, trie_->kinds(), state, state);
      known[state] = found;
    }
    return known[state];
  }

  // Where it does not, hardly any does.
  bool a_long_character_loops(Matcher::State state) {
    if (const auto behind = matcher_->behind_long(state, LongCharacters::others)) return *behind == state;
    return matcher_->step(matcher_->step(state, 0xC2), 0x80) == state;
  }

  // A state's number is the matcher's: when that forgets, the answer so far is read again.
  void bound_memory() {
    if (findings_->masks.memory() > kMaskBytes) {
      findings_->masks.clear();
      findings_->may_repeat.clear();
      findings_->too_long.clear();
    }
    if (matcher_->memory() < kMatcherBytes) return;
    matcher_->forget_steps();
    if (matcher_->memory() < kMatcherBytes / 2) return;
    matcher_->reset();
    forget();
    states_.assign(1, matcher_->start());
    for (const TokenId token : tokens_)
      states_.push_back(trie_->is_end(token) ? states_.back() : after(states_.back(), token));
  }

  // What is known of the matcher's states.
  void forget() {
    findings_->masks.clear();
    findings_->may_repeat.clear();
    findings_->too_long.clear();
    findings_->loops.clear();
    findings_->only_bytes.clear();
    findings_->reaches.clear();
  }

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::unique_ptr<Findings> findings_;
  Matcher* matcher_;                    // findings_'s
  std::vector<Matcher::State> states_;  // [tokens + 1]
  std::vector<TokenId> tokens_;
  // Of a walk.
  struct Step {
    std::uint32_t node;
    Matcher::State state;
    ByteKindMask above;  // of the bytes that led here
  };
  std::vector<Step> level_, next_level_;
  struct Pair {
    std::uint32_t node;
    Matcher::State state, like;
  };
  std::vector<Pair> pairs_;  // of mend()
  bool at_base_ = false;     // whether the mask that is being found is one that others are like
  bool ended_ = false;
  bool leads_nowhere_ = false;  // whether the mask that was found last had no token
};

}  // namespace

std::unique_ptr<GrammarConstraint> start(std::shared_ptr<const Grammar> grammar,
                                         std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return std::make_unique<Constraint>(std::move(grammar), std::move(vocabulary));
}

}  // namespace nibble
