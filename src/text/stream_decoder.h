// Tokens to text as they come. Characters are never split: bytes that may be the beginning of one wait for
// the rest, and everything pushed out joins to exactly what Tokenizer::decode gives for all tokens at once.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/token_id.h"
#include "text/tokenizer.h"

namespace nibble {

enum class HiddenTokens : bool { left_out, shown };

class StreamDecoder {
 public:
  // Holds on to the tokenizer's data, not to `tokenizer` itself.
  explicit StreamDecoder(Tokenizer tokenizer, HiddenTokens hidden = HiddenTokens::shown)
      : tokenizer_(std::move(tokenizer)), hidden_(hidden) {}

  // The text that this token completes; may be empty.
  std::string push(TokenId token);
  // What is still waiting: a character that was cut off, which is U+FFFD now.
  std::string flush();
  // Bytes that wait for the rest of their character.
  std::size_t waiting() const { return waiting_.size(); }

 private:
  Tokenizer tokenizer_;
  HiddenTokens hidden_;
  std::string waiting_;  // the first bytes of one character, at most three
};

}  // namespace nibble
