// Where in an answer a format holds. A plain answer has it from its first token, one that thinks behind
// </think>. In harmony it holds in the
// final channel: reasoning comes freely before it, and behind that nothing but the final message may come.
#pragma once

#include <memory>

#include "base/status.h"
#include "core/token_constraint.h"
#include "text/answer_reader.h"
#include "text/tokenizer.h"

namespace nibble::api {

// Refused where the prompt leaves a message open in which no format can hold.
Status may_constrain(const Tokenizer& tokenizer, const AnswerStart& start);

// `format` is the constraint of the text that is shown; `ends` are the tokens that end an answer.
Result<std::shared_ptr<TokenConstraint>> constrain_answer(const Tokenizer& tokenizer,
                                                          const AnswerStart& start,
                                                          std::span<const TokenId> ends,
                                                          std::unique_ptr<TokenConstraint> format);

}  // namespace nibble::api
