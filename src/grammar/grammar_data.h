// What compilers make and constraints read.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/mask_recipe.h"
#include "grammar/matcher.h"
#include "grammar/symbols.h"
#include "grammar/text_reach.h"

namespace nibble {

// What answers have found out about a grammar: the states that texts reached, and the masks there.
struct Findings {
  Matcher matcher;
  std::shared_ptr<const GrammarVocabulary> vocabulary;  // that the masks are of
  StoredMasks masks = {};
  // Tokens of a mask that may say twice what may come once.
  std::unordered_map<Matcher::State, std::vector<TokenId>> may_repeat = {};
  // Of places that count: the tokens that are too long for their counts.
  std::unordered_map<Matcher::State, std::vector<TokenId>> too_long = {};
  // The byte that must come, of places that were asked for it; -1: none.
  std::unordered_map<Matcher::State, std::int16_t> only_bytes = {};
  TextReaches reaches = {};
  std::vector<std::uint16_t> loops = {};  // [states] the kinds of characters that leave the state as it is
};

class Grammar {
 public:
  Grammar(std::shared_ptr<const Symbols> symbols, std::shared_ptr<const std::vector<bool>> usable)
      : symbols_(std::move(symbols)), usable_(std::move(usable)) {}

  // Findings are handed from answer to answer, so that what one has found the next knows.
  std::unique_ptr<Findings> borrow() const;
  void give_back(std::unique_ptr<Findings> findings) const;

 private:
  std::shared_ptr<const Symbols> symbols_;
  std::shared_ptr<const std::vector<bool>> usable_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Findings>> idle_;
};

// The last of every compiler: refuses what has no text.
Result<std::shared_ptr<const Grammar>> finish_grammar(Symbols symbols, const CompileLimits& limits);

}  // namespace nibble
