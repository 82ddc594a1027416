#include "app/answer_reader.h"

#include <utility>

namespace nibble {
namespace {

void append(std::vector<AnswerPiece>& pieces, AnswerPart part, std::string text) {
  if (!text.empty()) pieces.push_back({part, std::move(text)});
}

}  // namespace

void AnswerReader::push(TokenId token, std::vector<AnswerPiece>& pieces) {
  append(pieces, AnswerPart::answer, stop_.push(decoder_.push(token)));
}

void AnswerReader::finish(std::vector<AnswerPiece>& pieces) {
  if (!stopped()) append(pieces, AnswerPart::answer, stop_.push(decoder_.flush()));
  if (!stopped()) append(pieces, AnswerPart::answer, stop_.flush());
}

}  // namespace nibble
