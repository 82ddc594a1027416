// Follows a given text through a grammar as a model's answer would go, with the time that its masks took.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

namespace nibble {

struct TextCheck {
  bool taken = false;           // every token, and the end behind them
  std::size_t tokens = 0;       // of the text
  std::size_t refused_at = 0;   // of a text that is not taken: the token, or `tokens` where it may not end
  std::string refused;          // that token's bytes
  std::string allowed;          // some bytes of what could have come there
  bool may_end = false;         // there
  std::vector<double> mask_us;  // a mask for each token that was asked for
};

TextCheck check_text(const std::shared_ptr<const Grammar>& grammar,
                     const std::shared_ptr<const GrammarVocabulary>& vocabulary, const Tokenizer& tokenizer,
                     std::string_view text);

// The value without any blank, and with two blanks a level.
std::string compact_json(JsonValue value);
std::string indented_json(JsonValue value);

}  // namespace nibble
