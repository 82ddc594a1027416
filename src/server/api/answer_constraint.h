// Where in an answer a format holds, and its calls. A plain answer has them from its first token, one that
// thinks behind </think>. In harmony a format holds in the final channel, and calls are messages of their
// own: reasoning comes freely before them, and behind that nothing but such a message may come.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "core/token_constraint.h"
#include "grammar/grammar.h"
#include "server/api/bound_calls.h"
#include "text/answer_reader.h"
#include "text/tokenizer.h"

namespace nibble::api {

// What an answer is held to: a format, calls or both.
struct AnswerRules {
  std::unique_ptr<GrammarConstraint> format;  // of the text that is shown; null: none
  const BoundCalls* calls = nullptr;          // null: none are bound
};

// Refused where the prompt leaves a message open in which nothing of that can hold. `ends` are the tokens
// that end an answer.
Status may_constrain(const Tokenizer& tokenizer, const AnswerStart& start, std::span<const TokenId> ends,
                     const AnswerRules& rules);

Result<std::shared_ptr<TokenConstraint>> constrain_answer(const Tokenizer& tokenizer,
                                                          const AnswerStart& start,
                                                          std::span<const TokenId> ends, AnswerRules rules);

}  // namespace nibble::api
