// What an answer's next token may be, decided token by token: a grammar's place in one answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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
  // Behind a token that ended the answer: whether it came only because no other could, so that what was
  // written is the beginning of something.
  virtual bool cut() const { return false; }
};

// A constraint with the mask of the token that is to be chosen next.
struct ConstrainedAnswer {
  std::shared_ptr<TokenConstraint> constraint;
  std::vector<std::uint32_t> bits;  // [token_mask_words(vocabulary)]
  bool binds = false;               // whether `bits` hold; else every token may come

  // Once all tokens before that one have been accepted. Allocates nothing of its own.
  void find_mask() {
    binds = constraint->binds();
    if (binds) constraint->fill(bits);
  }
  std::span<const std::uint32_t> mask() const { return binds ? bits : std::span<const std::uint32_t>(); }
};

}  // namespace nibble
