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

// Harmony answers come as messages in channels: analysis is reasoning, and all else is the answer, calls of
// tools that nobody offered among it. Other answers are text from the first token to the last.
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

  // Appends what the token completes. Its text may be let past the stop strings; that must not come after
  // text that was not.
  enum class Stops : bool { count, pass };
  void push(TokenId token, std::vector<AnswerPiece>& pieces, Stops stops = Stops::count);
  // The answer is over: appends what was held back.
  void finish(std::vector<AnswerPiece>& pieces);
  // A stop string was found; nothing more will come out.
  bool stopped() const { return stop_.stopped(); }
  // Inside a message of reasoning: between the token that opened it and the one that will end it.
  bool reasoning() const { return open_ && part_ == HarmonyPart::reasoning; }

 private:
  void take_events(std::vector<AnswerPiece>& pieces);
  std::string past_stops(std::string text);

  StreamDecoder decoder_;
  std::optional<HarmonyParser> parser_;
  std::vector<HarmonyEvent> events_;
  HarmonyPart part_ = HarmonyPart::answer;  // of the message that began last
  bool open_ = false;                       // that message has not ended
  StopStrings stop_;
  Stops stops_ = Stops::count;
};

}  // namespace nibble
