// Tokens of one answer to the text that a person reads, as they come.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/harmony_parser.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace nibble {

// Harmony answers come as messages in channels: the final one is the answer, analysis is reasoning, calls of
// tools are neither. Anything else is text from the first token to the last.
enum class AnswerFormat { plain, harmony };

enum class AnswerPart { answer, reasoning };

struct AnswerPiece {
  AnswerPart part = AnswerPart::answer;
  std::string text;
};

class AnswerReader {
 public:
  // Harmony needs its control tokens in the vocabulary; without them the answer is plain. Stop strings are
  // looked for in the answer, not in the reasoning.
  AnswerReader(const Tokenizer& tokenizer, AnswerFormat format, StopStrings stop);

  // Appends what the token completes.
  void push(TokenId token, std::vector<AnswerPiece>& pieces);
  // The answer is over: appends what was held back.
  void finish(std::vector<AnswerPiece>& pieces);
  // A stop string was found; nothing more will come out.
  bool stopped() const { return stop_.stopped(); }

 private:
  void take_events(std::vector<AnswerPiece>& pieces);

  StreamDecoder decoder_;
  std::optional<HarmonyParser> parser_;
  std::vector<HarmonyEvent> events_;
  HarmonyPart part_ = HarmonyPart::answer;  // of the message that began last
  StopStrings stop_;
};

}  // namespace nibble
