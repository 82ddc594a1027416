#include "text/answer_reader.h"

#include <algorithm>
#include <utility>

namespace nibble {

namespace {

AnswerStart start_without_channels(const Tokenizer& tokenizer, std::span<const TokenId> prompt) {
  const auto tokens = ThinkTokens::find(tokenizer);
  if (!tokens) return {};
  return {.format = AnswerFormat::thinking, .header = {}, .think = think_state_behind(*tokens, prompt)};
}

// "functions.get_weather" without its namespace.
std::string function_of(const HarmonyHeader& header) {
  constexpr std::string_view space = "functions.";
  return header.recipient.substr(header.recipient.starts_with(space) ? space.size() : 0);
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
      decoder_(tokenizer, /*show_hidden=*/false),
      calls_(start.calls),
      stop_(std::move(stop)) {
  if (shares == Shares::kept) shares_.emplace();
  if (start.format == AnswerFormat::thinking) {
    if (const auto tokens = ThinkTokens::find(tokenizer)) thinking_.emplace(*tokens, start.think);
  }
  if (start.format != AnswerFormat::harmony && calls_ != AnswerStart::Calls::none)
    call_tokens_ = CallTokens::find(tokenizer);
  if (start.format != AnswerFormat::harmony) return;
  const auto tokens = HarmonyTokens::find(tokenizer);
  if (!tokens) return;
  parser_.emplace(tokenizer, *tokens, std::nullopt);
  for (const TokenId token : start.header) parser_->push(token, events_);
  parser_->prompt_ended();
  for (const HarmonyEvent& event : events_) {
    if (event.kind != HarmonyEvent::Kind::begin) continue;
    part_ = harmony_part(event.header);
    open_ = true;
  }
  events_.clear();
}

void AnswerReader::show(std::string text, std::vector<AnswerPiece>& pieces) {
  if (text.empty()) return;
  if (shares_) shares_->shown(text);
  pieces.push_back({AnswerPart::answer, std::move(text)});
}

void AnswerReader::take_answer(std::string text, std::vector<AnswerPiece>& pieces) {
  if (shares_) shares_->decoded(text.size());
  show(stops_ == Stops::count ? stop_.push(text) : std::move(text), pieces);
}

void AnswerReader::push(TokenId token, std::vector<AnswerPiece>& pieces, Stops stops) {
  stops_ = stops;
  const int number = tokens_++;
  if (!parser_) return take_text(token, number, pieces);
  const bool in_header = parser_->in_header(), visible = !tokenizer_.is_hidden(token);
  if (in_header && visible && shares_)
    header_.push_back({.token = number, .bytes = tokenizer_.bytes(token).size()});
  parser_->push(token, events_);
  take_events(pieces, in_header);
  if (!parser_->in_header()) header_.clear();
  const bool answers =
      part_ == HarmonyPart::answer || (part_ == HarmonyPart::tool_call && calls_ == AnswerStart::Calls::none);
  const bool content = !in_header && parser_->in_content() && answers;
  if (shares_ && content && visible) shares_->token(number, parser_->waiting());
}

// Of an answer without channels.
void AnswerReader::take_text(TokenId token, int number, std::vector<AnswerPiece>& pieces) {
  if (take_call(token, number, pieces)) return;
  if (thinking_ && thinking_->turns_at(token)) {
    take_side(decoder_.flush(), pieces);
    thinking_->turn();
    return;
  }
  const bool answers = take_side(decoder_.push(token), pieces);
  if (shares_ && answers && !tokenizer_.is_hidden(token)) shares_->token(number, decoder_.waiting());
}

// Whether the token is a call's.
bool AnswerReader::take_call(TokenId token, int number, std::vector<AnswerPiece>& pieces) {
  if (!call_tokens_ || (thinking_ && thinking_->reasons())) return false;
  if (!call_) {
    if (token != call_tokens_->open) return false;
    take_side(decoder_.flush(), pieces);
    call_.emplace();
  } else if (token != call_tokens_->close) {
    *call_ += decoder_.push(token);
  }
  if (shares_ && !tokenizer_.is_hidden(token))
    header_.push_back({.token = number, .bytes = tokenizer_.bytes(token).size()});
  if (token == call_tokens_->close) end_call(tokenizer_.bytes(token), pieces);
  return true;
}

// `end`: what marks the call's end; empty where the answer ended first.
void AnswerReader::end_call(std::string_view end, std::vector<AnswerPiece>& pieces) {
  std::string text = std::move(*call_) + decoder_.flush();
  call_.reset();
  std::optional<SpokenCall> call = end.empty() ? std::nullopt : read_call(text);
  if (call) {
    pieces.push_back({AnswerPart::call, std::move(call->name)});
    if (!call->arguments.empty()) pieces.push_back({AnswerPart::arguments, std::move(call->arguments)});
    header_.clear();
    behind_call_ = true;
    called_ = calls_ == AnswerStart::Calls::one;
    return;
  }
  text.insert(0, tokenizer_.bytes(call_tokens_->open));
  text += end;
  const std::size_t bytes = text.size();
  take_answer(std::move(text), pieces);
  if (shares_) shares_->spread(std::exchange(header_, {}), bytes);
}

// Whether the text is the answer's; a token that brought none but newlines around reasoning or a call is
// nobody's.
bool AnswerReader::take_side(std::string text, std::vector<AnswerPiece>& pieces) {
  if (behind_call_ && !text.empty()) {
    text.erase(0, std::min(text.size(), text.find_first_not_of('\n')));
    if (text.empty()) return false;
    behind_call_ = false;
  }
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
  if (parser_) {
    const bool in_header = parser_->in_header();
    parser_->finish(events_);
    take_events(pieces, in_header);
  } else if (!stopped()) {
    if (call_) end_call({}, pieces);
    take_side(decoder_.flush(), pieces);
    if (shares_) shares_->message_ended();
  }
  if (!stopped()) show(stop_.flush(), pieces);
}

// What a header's tokens say surfaces where it turns out to be none.
void AnswerReader::take_events(std::vector<AnswerPiece>& pieces, bool from_header) {
  for (HarmonyEvent& event : events_) {
    if (stopped()) break;
    const bool calls = part_ == HarmonyPart::tool_call && calls_ != AnswerStart::Calls::none;
    const bool answers = part_ != HarmonyPart::reasoning && !calls;
    if (event.kind == HarmonyEvent::Kind::begin) {
      part_ = harmony_part(event.header);
      open_ = true;
      if (part_ == HarmonyPart::tool_call && calls_ != AnswerStart::Calls::none)
        pieces.push_back({AnswerPart::call, function_of(event.header)});
    } else if (event.kind == HarmonyEvent::Kind::end) {
      open_ = false;
      from_header = false;
      if (answers && shares_) shares_->message_ended();
      called_ = calls && calls_ == AnswerStart::Calls::one;
    } else if (calls) {
      pieces.push_back({AnswerPart::arguments, std::move(event.text)});
    } else if (answers) {
      const std::size_t bytes = event.text.size();
      take_answer(std::move(event.text), pieces);
      if (from_header && shares_) shares_->spread(std::exchange(header_, {}), bytes);
    } else {
      pieces.push_back({AnswerPart::reasoning, std::move(event.text)});
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
