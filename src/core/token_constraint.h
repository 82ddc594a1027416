// What an answer's next token may be, decided token by token: a grammar's place in one answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/token_id.h"

namespace nibble {

// Bit `token % 32` of word `token / 32` is set for a token that may come next.
using TokenMask = std::span<std::uint32_t>;
constexpr std::size_t token_mask_words(TokenId vocabulary) {
  return (static_cast<std::size_t>(vocabulary) + 31) / 32;
}

// One answer's; used by one thread at a time. The engine asks for a mask before a token is chosen, and the
// scheduler tells which token was.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Whether anything is forbidden at this place; while it is not (the answer still reasons), no mask is
  // needed.
  virtual bool binds() const = 0;
  // Writes every word. At least one bit is set: where the text is complete, those of the tokens that end it.
  virtual void fill(TokenMask mask) = 0;
  // The token that was chosen. A token that the mask forbade is a broken invariant where it binds.
  virtual void accept(TokenId token) = 0;
  // Takes back the last `tokens` that were accepted.
  virtual void roll_back(int tokens) = 0;
  // Tokens that likely come next, since their text must: writes at most `room.size()` and returns how many. A
  // guess: the same text may be cut into other tokens.
  virtual int draft(std::span<TokenId> /*room*/) { return 0; }
  // Whether draft() may soon have any. Where it says no, nobody waits for a token in order to ask.
  virtual bool may_draft() const { return false; }
  // Behind a token that ended the answer: whether it came only because no other could, so that what was
  // written is the beginning of something.
  virtual bool cut() const { return false; }
};

// A constraint with the masks of one step: that of the token to be chosen next and, where the step checks
// drafts, that of the token behind each draft.
class ConstrainedAnswer {
 public:
  ConstrainedAnswer() = default;
  ConstrainedAnswer(std::shared_ptr<TokenConstraint> constraint, TokenId vocabulary, int most_drafts)
      : constraint_(std::move(constraint)),
        words_(token_mask_words(vocabulary)),
        bits_(words_ * (static_cast<std::size_t>(most_drafts) + 1)),
        binds_(static_cast<std::size_t>(most_drafts) + 1) {}

  // Null: every token may come.
  TokenConstraint* constraint() const { return constraint_.get(); }
  // The drafts of the step whose masks are found next; they stay where they are until then.
  void set_drafts(std::span<const TokenId> drafts) { drafts_ = drafts; }
  // Once all tokens before the next one have been accepted. Behind a draft that may not come nothing is
  // found: no token is chosen there. Allocates nothing of its own.
  void find_masks() {
    int accepted = 0;
    for (std::size_t i = 0;; ++i) {
      binds_[i] = constraint_->binds();
      if (binds_[i]) constraint_->fill(std::span(bits_).subspan(i * words_, words_));
      if (i == drafts_.size() || (binds_[i] && !allows(i, drafts_[i]))) break;
      constraint_->accept(drafts_[i]);
      ++accepted;
    }
    constraint_->roll_back(accepted);
  }
  // Of the token behind so many drafts; empty: every token may come.
  std::span<const std::uint32_t> mask(int drafts) const {
    const std::size_t i = static_cast<std::size_t>(drafts);
    return binds_[i] ? std::span(bits_).subspan(i * words_, words_) : std::span<const std::uint32_t>();
  }

 private:
  bool allows(std::size_t place, TokenId token) const {
    const std::size_t at = static_cast<std::size_t>(token);
    return (bits_[place * words_ + at / 32] >> at % 32 & 1) != 0;
  }

  std::shared_ptr<TokenConstraint> constraint_;
  std::size_t words_ = 0;
  std::vector<std::uint32_t> bits_;  // [1 + most drafts][words_]
  std::vector<char> binds_;          // [1 + most drafts] whether those bits hold; else every token may come
  std::span<const TokenId> drafts_;
};

}  // namespace nibble
