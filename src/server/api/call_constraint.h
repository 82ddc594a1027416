// Constraints of answers whose calls stand in their text.
#pragma once

#include <memory>

#include "core/token_constraint.h"
#include "grammar/grammar.h"
#include "server/api/bound_calls.h"
#include "text/tokenizer.h"

namespace nibble::api {

// The answer is a text of the one or of the other.
std::unique_ptr<TokenConstraint> either(std::unique_ptr<GrammarConstraint> first,
                                        std::unique_ptr<GrammarConstraint> second);

// Text is free until a call's opening mark, and again behind its closing one. A token that would end the mark
// and go on behind it may not come, for what it brings there could no longer be held to anything.
std::unique_ptr<TokenConstraint> free_until_calls(const Tokenizer& tokenizer, const BoundCalls& calls);

}  // namespace nibble::api
