// Guesses of a sequence's next tokens. A step that checks them costs less than the steps it saves where most
// of them hold; what is chosen is the same either way.
#pragma once

#include <span>
#include <vector>

#include "base/token_id.h"
#include "core/token_constraint.h"

namespace nibble {

// What followed the last tokens where they stood before: of the places that agree with the most of them (two
// at least) the last. Writes at most `room.size()` tokens and returns how many; a text that repeats itself is
// continued beyond its end.
int look_up_drafts(std::span<const TokenId> tokens, std::span<TokenId> room);

// One sequence's, with how far it pays to guess: drafts that fail make the next ones fewer and rarer, and
// those that hold more.
class Drafts {
 public:
  Drafts() = default;
  Drafts(int most, bool looks_up)
      : room_(static_cast<std::size_t>(most)), reach_(most), looks_up_(looks_up) {}

  // Drafts at most `most` tokens of what follows `tokens`, none of which is one of `ends`; what the
  // constraint has, if there is one, goes first. Returns how many.
  int guess(std::span<const TokenId> tokens, TokenConstraint* constraint, std::span<const TokenId> ends,
            int most);
  // They stay until the next guess.
  std::span<const TokenId> tokens() const { return std::span(room_).first(static_cast<std::size_t>(count_)); }
  // How many of them held.
  void learn(int accepted);

 private:
  std::vector<TokenId> room_;  // [most]
  int count_ = 0;              // drafts in it
  int reach_ = 0;              // drafts to guess next, at most
  int pause_ = 0;              // steps without, behind the last that failed
  int resting_ = 0;            // of them to come
  bool looks_up_ = false;
};

}  // namespace nibble
