// A constraint whose answers a test can judge without knowing any grammar.
#pragma once

#include <algorithm>

#include "core/token_constraint.h"

namespace nibble {

// After `free` tokens each next one is among those of the same remainder as its number; `length` of them,
// then the end.
class Remainders : public TokenConstraint {
 public:
  Remainders(int length, TokenId end, int free = 0) : length_(length), end_(end), free_(free) {}

  static bool allows(int number, TokenId token, TokenId end) {
    return token != end && token % 7 == number % 7;
  }

  bool binds() const override { return taken_ >= free_; }
  void fill(TokenMask mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    for (TokenId token = 0; token < static_cast<TokenId>(mask.size() * 32); ++token) {
      const bool may = taken_ < length_ ? allows(taken_, token, end_) : token == end_;
      if (may) mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
    }
  }
  void accept(TokenId) override { ++taken_; }
  void roll_back(int tokens) override { taken_ -= tokens; }

 private:
  int length_;
  TokenId end_;
  int free_;
  int taken_ = 0;
};

}  // namespace nibble
