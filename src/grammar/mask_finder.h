// The masks of a matcher's places, found by walks down the tries of tokens and by what places have in common.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token_id.h"
#include "core/token_constraint.h"
#include "grammar/free_texts.h"
#include "grammar/grammar_data.h"
#include "grammar/mask_recipe.h"
#include "grammar/matcher.h"
#include "grammar/token_trie.h"

namespace nibble {

class MaskFinder {
 public:
  // Both outlive it; what it finds lies in the findings.
  MaskFinder(const TokenTrie& trie, Findings& findings)
      : trie_(&trie), findings_(&findings), matcher_(&findings.matcher) {}

  // Of a place without its copies.
  MaskId mask_at(Matcher::State state);
  // Of such a place, which is `place` without its copies: clears those of tokens in which a text ends and one
  // like it comes. That takes a comma, behind which something else than the text before it may stand.
  void clear_repeated(Matcher::State state, Matcher::State place, TokenMask mask);
  // The place behind a token; kDead where it may not come.
  Matcher::State after(Matcher::State state, TokenId token);

 private:
  void write_recipe(Matcher::State state, MaskRecipe& mask);
  // A place that counts: as without an end of the counts, but for tokens that are too long for them.
  bool write_far_from_end(Matcher::State state, MaskRecipe& mask);
  std::vector<TokenId> tokens_too_long(const Matcher::FarFromEnd& far,
                                       std::span<const std::uint32_t> may_come);
  bool has_letters(const FreeTexts& free) const { return (trie_->kinds().letters() & ~free.kinds) == 0; }
  // Texts of the most kinds that may come next whatever they are: of enough characters for most tokens, and
  // of fewer.
  struct KnownTexts {
    FreeTexts free, few;
  };
  KnownTexts known_texts(Matcher::State state);
  // Plain tokens where not all of any length may come.
  void write_plain(Matcher::State state, const KnownTexts& known, bool mostly, MaskRecipe& mask);
  // Where no texts are free: as at the place to which most characters lead back (a text in which a word must
  // not stand has one), but where the two are told apart.
  bool write_like_base(Matcher::State state, MaskRecipe& mask);
  // The place to which the first bytes of most plain tokens lead.
  Matcher::State most_lead_to(Matcher::State state);
  // kDead: there is none.
  Matcher::State base_of(Matcher::State state);
  bool may_repeat(Matcher::State state, TokenId token);
  // Whether most plain tokens may come next, told from their first bytes: a key that is none of the declared
  // ones.
  bool mostly_plain(Matcher::State state);
  // Inside a key: as inside one that can only be undeclared, but where a token ends a declared one.
  bool write_key(Matcher::State state, MaskRecipe& mask);
  // Inside a key that may be a declared one: the place to which most characters lead, and to which none of
  // those leads that begin a declared key. It differs from `state` where a declared key is begun, and hardly
  // elsewhere.
  Matcher::State usual_rest(Matcher::State state);
  // From the mask of a place to that of another one, by what the two tell apart.
  void mend(const Trie& trie, Matcher::State root, Matcher::State like, MaskRecipe& mask);
  // Adds a place to those that a walk comes to next: texts that begin narrow apart from the rest of it.
  template <typename Alive>
  void come_to(const Trie& trie, std::uint32_t node, Matcher::State state, ByteKindMask above,
               const Alive& alive);
  // Through the way's text to what stands behind it.
  template <typename Alive>
  bool come_through(const Trie& trie, std::uint32_t node, const Matcher::NarrowWay& way, const Alive& alive);
  // Goes down the trie with the matcher, level by level. `free` is called with a node below which every text
  // may come, `alive` with each other node that a text goes on with. One place may be reached several times,
  // so what a caller finds must be a union.
  template <typename Free, typename Alive>
  void walk(const Trie& trie, Matcher::State root, const Free& free, const Alive& alive,
            const FreeTexts& known = {});
  // From the places that are to come next. Tokens of the texts that are `known` are passed by.
  template <typename Free, typename Alive>
  void go_down(const Trie& trie, const Free& free, const Alive& alive, const FreeTexts& known = {});
  // The tokens of texts that are `known` are set already.
  void set_walked(const Trie& trie, Matcher::State root, const FreeTexts& known, MaskRecipe& mask);
  // Where all bits are set: clears those of tokens that may not come.
  void clear_walked(const Trie& trie, Matcher::State root, const FreeTexts& few, MaskRecipe& mask);
  // Inside a string a token's plain beginning changes nothing but the length that is left: only what stands
  // behind it is tried, once for all tokens that have it.
  void walk_endings(Matcher::State root, MaskRecipe& mask);
  // Texts of kinds that lead where a letter leads, and leave that place as it is: they have any length.
  FreeTexts settling_texts(Matcher::State state);
  // The kinds of characters that leave the state as it is.
  ByteKindMask loops(Matcher::State state);
  // Where it does not, hardly any does.
  bool a_long_character_loops(Matcher::State state);

  const TokenTrie* trie_;
  Findings* findings_;
  Matcher* matcher_;  // the findings'
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
};

}  // namespace nibble
