// Which tokens an answer may have wherever it stands: allowed_token_ids and bad_words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/token_constraint.h"
#include "server/api/generation_request.h"
#include "text/tokenizer.h"

namespace nibble::api {

// Before a bad word; says nothing of it.
inline constexpr std::string_view white_space = " \t\n\v\f\r";

// Of one request; immutable, so its choices share it.
class TokenLimits {
 public:
  // Null where the request limits nothing. `ends` are the tokens that end an answer; one at least.
  static std::shared_ptr<const TokenLimits> make(const Sampling& asked, const Tokenizer& tokenizer,
                                                 TokenId vocabulary, std::span<const TokenId> ends);

  // What may come behind these tokens of the answer. Where nothing is left, the answer ends.
  void fill(std::span<const TokenId> answer, TokenMask mask) const;
  bool binds(std::span<const TokenId> answer) const;
  std::size_t bytes() const;

 private:
  std::vector<std::uint32_t> may_come_;  // anywhere; [token_mask_words(vocabulary)]
  bool always_ = false;                  // may_come_ forbids something
  // Of two tokens or more: behind all but the last, the last may not come.
  std::vector<std::vector<TokenId>> sequences_;
  std::vector<TokenId> ends_;
};

// One answer's place.
std::shared_ptr<TokenConstraint> start(std::shared_ptr<const TokenLimits> limits);

}  // namespace nibble::api
