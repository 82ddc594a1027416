// Guesses of a sequence's next tokens. A step that checks them costs less than the steps it saves where most
// of them hold; what is chosen is the same either way.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/token_id.h"
#include "core/token_constraint.h"

namespace nibble {

// What follows in `text` where it agrees with most of the last tokens: of such places the last, and two
// tokens at least. Where `text` is `tokens` itself that is what followed where they stood before, and a text
// that repeats itself is continued beyond its end. Writes at most `room.size()` tokens and returns how many.
int look_up_drafts(std::span<const TokenId> tokens, std::span<const TokenId> text, std::span<TokenId> room);

// A sequence as its drafts see it.
struct DraftedText {
  std::span<const TokenId> tokens;        // of prompt and answer
  std::size_t prompt = 0;                 // of them
  TokenConstraint* constraint = nullptr;  // null: none
  std::span<const TokenId> prediction;    // of the answer
  std::span<const TokenId> ends;          // none of them is drafted
};

// One sequence's, with how far it pays to guess: drafts that fail make the next ones fewer and rarer, and
// those that hold more.
class Drafts {
 public:
  Drafts() = default;
  Drafts(int most, bool looks_up)
      : room_(static_cast<std::size_t>(most)), reach_(most), looks_up_(looks_up) {}

  // Drafts at most `most` tokens of what comes next: of what the constraint has, else of the prediction, else
  // of what is looked up. Returns how many.
  int guess(const DraftedText& text, int most);
  // Whether the next guess may find any. `told`: a constraint or a prediction may have some.
  bool may_come(bool told) const { return !room_.empty() && resting_ == 0 && (looks_up_ || told); }
  // A step goes by without a guess.
  void rest() { resting_ -= resting_ > 0 ? 1 : 0; }
  // They stay until the next guess.
  std::span<const TokenId> tokens() const { return std::span(room_).first(static_cast<std::size_t>(count_)); }
  bool of_prediction() const { return of_prediction_; }
  // How many of them held.
  void learn(int accepted);

 private:
  std::vector<TokenId> room_;  // [most]
  int count_ = 0;              // drafts in it
  int reach_ = 0;              // drafts to guess next, at most
  int pause_ = 0;              // steps without, behind the last that failed
  int resting_ = 0;            // of them to come
  bool looks_up_ = false;
  bool of_prediction_ = false;
};

}  // namespace nibble
