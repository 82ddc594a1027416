// Tokens of one answer to the text that a person reads, as they come.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace nibble {

// Harmony answers come in channels; anything else is text from the first token to the last.
enum class AnswerFormat { plain, harmony };

enum class AnswerPart { answer, reasoning };

struct AnswerPiece {
  AnswerPart part = AnswerPart::answer;
  std::string text;
};

class AnswerReader {
 public:
  AnswerReader(const Tokenizer& tokenizer, StopStrings stop)
      : decoder_(tokenizer, /*show_control=*/false), stop_(std::move(stop)) {}

  // Appends what the token completes.
  void push(TokenId token, std::vector<AnswerPiece>& pieces);
  // The answer is over: appends what was held back.
  void finish(std::vector<AnswerPiece>& pieces);
  // A stop string was found; nothing more will come out.
  bool stopped() const { return stop_.stopped(); }

 private:
  StreamDecoder decoder_;
  StopStrings stop_;
};

}  // namespace nibble
