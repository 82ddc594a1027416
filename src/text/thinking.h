// Answers of models that reason between <think> and </think> (Qwen3, DeepSeek R1, GLM-4.5): tokens that part
// an answer, and the newlines around them, which belong to neither side.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/token_id.h"
#include "text/tokenizer.h"

namespace nibble {

struct ThinkTokens {
  TokenId open = -1;
  TokenId close = -1;

  // Nothing if the vocabulary does not have both as tokens of their own.
  static std::optional<ThinkTokens> find(const Tokenizer& tokenizer);
};

// Where an answer stands. Text before any marker is the answer, as reasoning may be switched off; while that
// is white space, <think> may still come.
enum class ThinkState { undecided, reasoning, answer };

// Where the prompt leaves it: reasoning, if its template's last marker opens it.
ThinkState think_state_behind(const ThinkTokens& tokens, std::span<const TokenId> prompt);

// Parts an answer by its markers.
class Thinking {
 public:
  Thinking(ThinkTokens tokens, ThinkState state) : tokens_(tokens), state_(state) {}

  bool reasons() const { return state_ == ThinkState::reasoning; }
  // Whether the token is a marker that counts here, and so has no text: </think> while the answer reasons,
  // <think> before there is any text.
  bool turns_at(TokenId token) const {
    return state_ == ThinkState::undecided   ? token == tokens_.open
           : state_ == ThinkState::reasoning ? token == tokens_.close
                                             : false;
  }
  // Such a token came: on to the other side.
  void turn();
  // What is to be shown of text that belongs to the present side: without the newlines at its ends where the
  // other side borders on it. Some may be held back until more comes.
  std::string trim(std::string text);

 private:
  ThinkTokens tokens_;
  ThinkState state_;
  bool at_begin_ = true;  // of a side: newlines are dropped
  bool parted_ = false;   // it was turned to
  std::string newlines_;  // of the reasoning so far, which are dropped if it ends here
};

}  // namespace nibble
