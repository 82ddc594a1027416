#include "text/answer_reader.h"

#include <utility>

namespace nibble {
namespace {

void append(std::vector<AnswerPiece>& pieces, AnswerPart part, std::string text) {
  if (!text.empty()) pieces.push_back({part, std::move(text)});
}

}  // namespace

AnswerReader::AnswerReader(const Tokenizer& tokenizer, AnswerFormat format, StopStrings stop)
    : decoder_(tokenizer, /*show_control=*/false), stop_(std::move(stop)) {
  if (format != AnswerFormat::harmony) return;
  if (const auto tokens = HarmonyTokens::find(tokenizer)) parser_.emplace(tokenizer, *tokens);
}

std::string AnswerReader::past_stops(std::string text) {
  return stops_ == Stops::count ? stop_.push(text) : text;
}

void AnswerReader::push(TokenId token, std::vector<AnswerPiece>& pieces, Stops stops) {
  stops_ = stops;
  if (parser_) {
    parser_->push(token, events_);
    take_events(pieces);
  } else {
    append(pieces, AnswerPart::answer, past_stops(decoder_.push(token)));
  }
}

void AnswerReader::finish(std::vector<AnswerPiece>& pieces) {
  if (parser_) {
    parser_->finish(events_);
    take_events(pieces);
  } else if (!stopped()) {
    append(pieces, AnswerPart::answer, past_stops(decoder_.flush()));
  }
  if (!stopped()) append(pieces, AnswerPart::answer, stop_.flush());
}

void AnswerReader::take_events(std::vector<AnswerPiece>& pieces) {
  for (HarmonyEvent& event : events_) {
    if (stopped()) break;
    if (event.kind == HarmonyEvent::Kind::begin) part_ = harmony_part(event.header);
    if (event.kind != HarmonyEvent::Kind::content) open_ = event.kind == HarmonyEvent::Kind::begin;
    if (event.kind != HarmonyEvent::Kind::content) continue;
    if (part_ == HarmonyPart::reasoning) {
      append(pieces, AnswerPart::reasoning, std::move(event.text));
    } else {
      append(pieces, AnswerPart::answer, past_stops(std::move(event.text)));
    }
  }
  events_.clear();
}

}  // namespace nibble
