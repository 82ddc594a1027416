#include "text/answer_reader.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nibble {

namespace {

AnswerStart start_without_channels(const Tokenizer& tokenizer, std::span<const TokenId> prompt) {
  const auto tokens = ThinkTokens::find(tokenizer);
  if (!tokens) return {};
  return {.format = AnswerFormat::thinking, .header = {}, .think = think_state_behind(*tokens, prompt)};
}

}  // namespace

AnswerStart answer_start(const Tokenizer& tokenizer, std::span<const TokenId> prompt) {
  const auto tokens = HarmonyTokens::find(tokenizer);
  if (!tokens) return start_without_channels(tokenizer, prompt);
  const auto last = std::find(prompt.rbegin(), prompt.rend(), tokens->start);
  if (last == prompt.rend()) return start_without_channels(tokenizer, prompt);
  const std::span<const TokenId> message = prompt.subspan(static_cast<std::size_t>(prompt.rend() - last) - 1);
  AnswerStart start{.format = AnswerFormat::harmony, .header = {}};
  for (const TokenId token : message) {
    if (tokens->ends_message(token)) return {.format = AnswerFormat::harmony, .header = {}};
    const bool begun = !start.header.empty() && start.header.back() == tokens->message;
    if (!begun) start.header.push_back(token);
  }
  return start;
}

AnswerReader::AnswerReader(const Tokenizer& tokenizer, const AnswerStart& start, StopStrings stop,
                           Shares shares)
    : tokenizer_(tokenizer),
      hidden_(start.hidden),
      decoder_(tokenizer, start.hidden),
      stop_(std::move(stop)) {
  if (shares == Shares::kept) shares_.emplace();
  if (start.format == AnswerFormat::thinking) {
    if (const auto tokens = ThinkTokens::find(tokenizer)) thinking_.emplace(*tokens, start.think);
  }
  if (start.format != AnswerFormat::harmony) {
    if (start.tools && !call_marks(start.calls).open.empty())
      calls_.emplace(start.calls, start.tools, start.binding);
    return;
  }
  if (start.calls == CallForm::harmony) tools_ = start.tools;
  const auto tokens = HarmonyTokens::find(tokenizer);
  if (!tokens) return;
  parser_.emplace(tokenizer, *tokens, std::nullopt, start.hidden);
  for (const TokenId token : start.header) parser_->push(token, events_);
  parser_->prompt_ended();
  for (const HarmonyEvent& event : events_)
    if (event.kind == HarmonyEvent::Kind::begin) begin_message(event.header, begun_);
  events_.clear();
}

void AnswerReader::show(std::string text, std::vector<AnswerPiece>& pieces) {
  if (text.empty()) return;
  if (shares_) shares_->shown(text);
  pieces.push_back({AnswerPart::answer, std::move(text)});
}

void AnswerReader::take_answer(std::string text, std::vector<AnswerPiece>& pieces) {
  if (shares_) shares_->decoded(text.size());
  if (!calls_) return take_content(std::move(text), pieces);
  calls_->push(text, read_);
  take_pieces(pieces);
}

// What the reader of calls made of the answer's text.
void AnswerReader::take_pieces(std::vector<AnswerPiece>& pieces) {
  for (AnswerPiece& piece : read_) {
    if (stopped()) break;
    const std::size_t dropped = std::exchange(piece.dropped, 0);
    if (piece.part == AnswerPart::answer) {
      take_content(std::move(piece.text), pieces);
    } else {
      // The text before a call is complete.
      if (piece.part == AnswerPart::call) show(stop_.flush(), pieces);
      pieces.push_back(std::move(piece));
    }
    if (shares_) shares_->dropped(dropped);
  }
  read_.clear();
}

void AnswerReader::take_content(std::string text, std::vector<AnswerPiece>& pieces) {
  if (shares_) shares_->content(text.size());
  show(stops_ == Stops::count ? stop_.push(text) : std::move(text), pieces);
}

void AnswerReader::tell_begun(std::vector<AnswerPiece>& pieces) {
  std::move(begun_.begin(), begun_.end(), std::back_inserter(pieces));
  begun_.clear();
}

void AnswerReader::push(TokenId token, std::vector<AnswerPiece>& pieces, Stops stops) {
  stops_ = stops;
  tell_begun(pieces);
  const int number = tokens_++;
  if (!parser_) return take_text(token, number, pieces);
  const bool in_header = parser_->in_header();
  // A header that turns out to be none surfaces without its control tokens.
  if (in_header && !tokenizer_.is_hidden(token) && shares_)
    header_.push_back({.token = number, .bytes = tokenizer_.bytes(token).size()});
  parser_->push(token, events_);
  take_events(pieces, in_header);
  if (!parser_->in_header()) header_.clear();
  const bool content =
      !in_header && parser_->in_content() && part_ != HarmonyPart::reasoning && !calls_function_;
  if (shares_ && content && is_visible(token)) shares_->token(number, parser_->waiting());
}

// Of an answer without channels.
void AnswerReader::take_text(TokenId token, int number, std::vector<AnswerPiece>& pieces) {
  if (thinking_ && thinking_->turns_at(token)) {
    const bool answers = take_side(decoder_.flush(), pieces);
    if (shares_ && answers) shares_->message_ended();
    thinking_->turn();
    return;
  }
  if (calls_ && tokenizer_.is_hidden(token) && calls_->needs(tokenizer_.bytes(token))) {
    const bool answers = take_side(decoder_.flush() + std::string(tokenizer_.bytes(token)), pieces);
    if (shares_ && answers) shares_->token(number, 0);
    return;
  }
  const bool answers = take_side(decoder_.push(token), pieces);
  if (shares_ && answers && is_visible(token)) shares_->token(number, decoder_.waiting());
}

// Whether the text is the answer's; a token that brought none but newlines around reasoning is nobody's.
bool AnswerReader::take_side(std::string text, std::vector<AnswerPiece>& pieces) {
  if (!thinking_) {
    take_answer(std::move(text), pieces);
    return true;
  }
  const bool answers = !thinking_->reasons(), had_text = !text.empty();
  text = thinking_->trim(std::move(text));
  if (answers && (!had_text || !text.empty())) {
    take_answer(std::move(text), pieces);
    return true;
  }
  if (!text.empty()) pieces.push_back({AnswerPart::reasoning, std::move(text)});
  return false;
}

void AnswerReader::finish(std::vector<AnswerPiece>& pieces) {
  over_ = true;
  tell_begun(pieces);
  if (parser_) {
    const bool in_header = parser_->in_header();
    parser_->finish(events_);
    take_events(pieces, in_header);
  } else if (!stopped()) {
    take_side(decoder_.flush(), pieces);
    if (calls_) {
      calls_->finish(read_);
      take_pieces(pieces);
    }
    if (shares_) shares_->message_ended();
  }
  if (!stopped()) show(stop_.flush(), pieces);
}

void AnswerReader::begin_message(const HarmonyHeader& header, std::vector<AnswerPiece>& pieces) {
  constexpr std::string_view functions = "functions.";
  part_ = harmony_part(header);
  open_ = true;
  calls_function_ = tools_ && part_ == HarmonyPart::tool_call && header.recipient.starts_with(functions) &&
                    tools_->has(std::string_view(header.recipient).substr(functions.size()));
  has_arguments_ = false;
  if (!calls_function_) return;
  show(stop_.flush(), pieces);
  pieces.push_back({AnswerPart::call, header.recipient.substr(functions.size())});
}

// What a header's tokens say surfaces where it turns out to be none.
void AnswerReader::take_events(std::vector<AnswerPiece>& pieces, bool from_header) {
  for (HarmonyEvent& event : events_) {
    if (stopped()) break;
    const bool answers = part_ != HarmonyPart::reasoning && !calls_function_;
    if (event.kind == HarmonyEvent::Kind::begin) {
      begin_message(event.header, pieces);
    } else if (event.kind == HarmonyEvent::Kind::end) {
      open_ = false;
      from_header = false;
      // A function without parameters may be called without a word; what parses as JSON is expected.
      if (calls_function_ && !has_arguments_) pieces.push_back({AnswerPart::arguments, "{}"});
      if (answers && shares_) shares_->message_ended();
    } else if (answers) {
      const std::size_t bytes = event.text.size();
      take_answer(std::move(event.text), pieces);
      if (from_header && shares_) shares_->spread(std::exchange(header_, {}), bytes);
    } else {
      has_arguments_ = true;
      pieces.push_back(
          {calls_function_ ? AnswerPart::arguments : AnswerPart::reasoning, std::move(event.text)});
    }
  }
  events_.clear();
}

void AnswerReader::take_shares(std::vector<AnswerShare>& shares) {
  if (shares_) shares_->settle(over_, shares);
}

int AnswerReader::first_open() const {
  const int next = header_.empty() ? tokens_ : header_.front().token;
  return shares_ ? shares_->first_open(next) : next;
}

}  // namespace nibble
