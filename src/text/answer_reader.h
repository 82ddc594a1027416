// Tokens of one answer to the text that a person reads, as they come.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/answer_piece.h"
#include "text/answer_shares.h"
#include "text/call_reader.h"
#include "text/harmony_parser.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"
#include "text/thinking.h"
#include "text/tokenizer.h"

namespace nibble {

// Harmony answers come as messages in channels: analysis is reasoning, messages to functions that the request
// offers are calls, and all else is the answer. Thinking answers reason up to </think>. Plain ones are text
// from the first token to the last. An answer shows hidden tokens where that is asked for.
enum class AnswerFormat { plain, thinking, harmony };

// Which reader an answer needs, and the state in which the prompt leaves it.
struct AnswerStart {
  AnswerFormat format = AnswerFormat::plain;
  // Of harmony: the header of the message that the prompt leaves open, from <|start|> on, <|message|>
  // included where it is there. Empty: the answer begins a message of its own.
  std::vector<TokenId> header;
  ThinkState think = ThinkState::undecided;  // of thinking
  // How calls are written, and the functions that may be called; none: what looks like a call is text.
  CallForm calls = CallForm::none;
  std::shared_ptr<const OfferedTools> tools = {};
  CallBinding binding = CallBinding::free;  // of those calls
  // What parts messages, opens reasoning or ends an answer never shows.
  HiddenTokens hidden = HiddenTokens::left_out;
};

// Of a rendered prompt: only its template can have put <|start|> or <think> there as tokens.
AnswerStart answer_start(const Tokenizer& tokenizer, std::span<const TokenId> prompt);

class AnswerReader {
 public:
  // Stop strings are looked for in the answer, not in the reasoning. With `Shares::kept` take_shares() tells
  // which token brought which bytes of the answer.
  enum class Shares : bool { none, kept };
  AnswerReader(const Tokenizer& tokenizer, const AnswerStart& start, StopStrings stop,
               Shares shares = Shares::none);

  // Appends what the token completes. Its text may be let past the stop strings; that must not come after
  // text that was not.
  enum class Stops : bool { count, pass };
  void push(TokenId token, std::vector<AnswerPiece>& pieces, Stops stops = Stops::count);
  // The answer is over: appends what was held back.
  void finish(std::vector<AnswerPiece>& pieces);
  // A stop string was found; nothing more will come out.
  bool stopped() const { return stop_.stopped(); }
  // That stop string; empty if none was.
  std::string_view matched() const { return stop_.matched(); }
  // Inside a message of reasoning: between the token that opened it and the one that will end it.
  bool reasoning() const {
    return thinking_ ? thinking_->reasons() : open_ && part_ == HarmonyPart::reasoning;
  }

  // Appends the shares of the answer's text that are settled since the last call.
  void take_shares(std::vector<AnswerShare>& shares);
  // Tokens before this one have no share to come.
  int first_open() const;

 private:
  void take_events(std::vector<AnswerPiece>& pieces, bool from_header);
  void take_answer(std::string text, std::vector<AnswerPiece>& pieces);
  void take_pieces(std::vector<AnswerPiece>& pieces);
  void take_content(std::string text, std::vector<AnswerPiece>& pieces);
  void begin_message(const HarmonyHeader& header, std::vector<AnswerPiece>& pieces);
  void tell_begun(std::vector<AnswerPiece>& pieces);
  void take_text(TokenId token, int number, std::vector<AnswerPiece>& pieces);
  bool take_side(std::string text, std::vector<AnswerPiece>& pieces);
  void show(std::string text, std::vector<AnswerPiece>& pieces);
  bool is_visible(TokenId token) const {
    return hidden_ == HiddenTokens::shown || !tokenizer_.is_hidden(token);
  }

  Tokenizer tokenizer_;
  HiddenTokens hidden_;
  StreamDecoder decoder_;
  std::optional<HarmonyParser> parser_;
  std::optional<Thinking> thinking_;
  std::optional<CallReader> calls_;            // of an answer without channels
  std::vector<AnswerPiece> read_;              // by it, just now
  std::shared_ptr<const OfferedTools> tools_;  // of harmony
  std::vector<AnswerPiece> begun_;  // the call that the prompt leaves open; told with the first token
  bool calls_function_ = false;     // the message that began last
  bool has_arguments_ = false;      // it told something
  std::vector<HarmonyEvent> events_;
  HarmonyPart part_ = HarmonyPart::answer;  // of the message that began last
  bool open_ = false;                       // that message has not ended
  StopStrings stop_;
  Stops stops_ = Stops::count;
  int tokens_ = 0;  // pushed so far
  std::optional<AnswerShares> shares_;
  std::vector<AnswerShares::Held> header_;  // tokens of the open header, which may surface
  bool over_ = false;
};

}  // namespace nibble
