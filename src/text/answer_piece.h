// Events of an answer, in the order they come.
#pragma once

#include <cstddef>
#include <string>

namespace nibble {

// call: a call of a function begins, and `text` is its name. arguments: bytes of the JSON of the call that
// began last, of which there may be many pieces. A call ends where the next one or the answer does.
enum class AnswerPart { answer, reasoning, call, arguments };

struct AnswerPiece {
  AnswerPart part = AnswerPart::answer;
  std::string text;
  std::string id = {};  // of a call that has one of its own; empty: whoever tells it makes one
  // Bytes of the model's text that come next and that nobody sees: a call's spelling, marks around it.
  std::size_t dropped = 0;
};

}  // namespace nibble
