// What compilers make and constraints read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/mask_recipe.h"
#include "grammar/matcher.h"
#include "grammar/symbols.h"
#include "grammar/text_reach.h"
#include "grammar/token_trie.h"

namespace nibble {

// What answers have found out about a grammar: the states that texts reached, and the masks there. All
// answers that are written at a time have one, so that a place is found once for all of them. Which answer
// found a place changes no mask.
struct Findings {
  Findings(std::shared_ptr<const Symbols> symbols, std::shared_ptr<const std::vector<bool>> usable,
           std::shared_ptr<const TokenTrie> tokens);

  std::mutex mutex;                                   // guards all but the vocabulary and what is atomic
  const std::shared_ptr<const TokenTrie> vocabulary;  // that the masks are of
  std::atomic<int> answers = 0;
  std::atomic<bool> full = false;  // takes no more answers
  Matcher matcher;
  // How often the matcher has forgotten its states. What is known of states is forgotten with them.
  std::uint64_t resets = 0;
  StoredMasks masks;
  // Tokens of a mask that may say twice what may come once.
  std::unordered_map<Matcher::State, std::vector<TokenId>> may_repeat;
  // Of places that count: the tokens that are too long for their counts.
  std::unordered_map<Matcher::State, std::vector<TokenId>> too_long;
  // The byte that must come, of places that were asked for it; -1: none.
  std::unordered_map<Matcher::State, std::int16_t> only_bytes;
  TextReaches reaches;
  std::vector<std::uint16_t> loops;  // [states] the kinds of characters that leave the state as it is

  void forget_masks();
  // Everything but the start is forgotten.
  void reset();
};

class Grammar {
 public:
  Grammar(std::shared_ptr<const Symbols> symbols, std::shared_ptr<const std::vector<bool>> usable)
      : symbols_(std::move(symbols)), usable_(std::move(usable)) {}

  // For one more answer. They are kept for later ones while they are small.
  std::shared_ptr<Findings> findings(const std::shared_ptr<const TokenTrie>& vocabulary) const;
  // For one answer alone.
  std::shared_ptr<Findings> new_findings(const std::shared_ptr<const TokenTrie>& vocabulary) const;
  // Of each answer that had either of those, once.
  void leave(std::shared_ptr<Findings> findings) const;
  Matcher matcher() const { return Matcher(symbols_, usable_); }

 private:
  // Null: what is kept takes no more answers. mutex_ is held.
  std::shared_ptr<Findings> join_kept(const TokenTrie& vocabulary) const;

  std::shared_ptr<const Symbols> symbols_;
  std::shared_ptr<const std::vector<bool>> usable_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Findings> kept_;  // guarded by mutex_
};

// The last of every compiler: refuses what has no text.
Result<std::shared_ptr<const Grammar>> finish_grammar(Symbols symbols, const CompileLimits& limits);

}  // namespace nibble
