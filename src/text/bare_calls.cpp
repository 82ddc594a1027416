#include "text/bare_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace nibble {
namespace {

constexpr std::string_view white = " \t\r\n";

std::string_view mark() { return call_marks(CallForm::bare_json).open; }

// Whether the beginning of an object may be that of a call.
bool may_be_call(std::string_view object) {
  constexpr std::string_view begins[] = {"{\"name\"", "{\"type\"", "{\"parameters\"", "{\"arguments\""};
  std::string dense;
  for (const char byte : object) {
    if (white.find(byte) == white.npos) dense += byte;
    if (dense.size() >= begins[2].size()) break;
  }
  return std::ranges::any_of(begins, [&](std::string_view begin) {
    const std::size_t size = std::min(begin.size(), dense.size());
    return begin.substr(0, size) == std::string_view(dense).substr(0, size);
  });
}

// How much of the end of a text may yet become the mark.
std::size_t begun_mark(std::string_view text) {
  std::size_t length = std::min(mark().size() - 1, text.size());
  while (length > 0 && !text.ends_with(mark().substr(0, length))) --length;
  return length;
}

}  // namespace

void BareCalls::push(std::string_view text, std::vector<AnswerPiece>& pieces) {
  text_ += text;
  while (step(pieces)) continue;
}

// Whether there is more to find in text_.
bool BareCalls::step(std::vector<AnswerPiece>& pieces) {
  switch (place_) {
    case Place::before: return find_object(pieces);
    case Place::object: return read_object(pieces);
    case Place::text: break;
  }
  // Where calls are bound, those behind text are none.
  const bool marks = binding_ == CallBinding::free;
  const std::size_t found = marks ? text_.find(mark()) : text_.npos;
  show(found == text_.npos ? text_.size() - (marks ? begun_mark(text_) : 0) : found, pieces);
  if (found == text_.npos) return false;
  place_ = Place::before;
  return true;
}

bool BareCalls::find_object(std::vector<AnswerPiece>& pieces) {
  std::size_t at = text_.find_first_not_of(white);
  if (at == text_.npos) return false;
  if (called_ && text_[at] == ';') at = text_.find_first_not_of(white, at + 1);
  if (at == text_.npos) return false;
  const std::string_view rest = std::string_view(text_).substr(at);
  if (rest.starts_with(mark())) {
    at = text_.find_first_not_of(white, at + mark().size());
    if (at == text_.npos) return false;
  } else if (rest.size() < mark().size() && mark().starts_with(rest)) {
    return false;
  }
  if (text_[at] != '{') {
    place_ = Place::text;
    show(at, pieces);
    return true;
  }
  place_ = Place::object;
  object_ = scanned_ = at;
  depth_ = 0;
  in_string_ = escaped_ = false;
  return true;
}

bool BareCalls::read_object(std::vector<AnswerPiece>& pieces) {
  for (; scanned_ < text_.size(); ++scanned_) {
    const char byte = text_[scanned_];
    if (in_string_) {
      in_string_ = escaped_ || byte != '"';
      escaped_ = !escaped_ && byte == '\\';
      continue;
    }
    in_string_ = byte == '"';
    if (byte == '{' || byte == '[') ++depth_;
    if ((byte != '}' && byte != ']') || --depth_ > 0) continue;
    const std::size_t end = scanned_ + 1;
    const std::string_view object = std::string_view(text_).substr(object_, end - object_);
    if (auto call = read_call(CallForm::bare_json, object, *tools_, binding_)) {
      take_call(*std::move(call), end, pieces);
      place_ = Place::before;
      return true;
    }
    break;
  }
  if (scanned_ == text_.size() && may_be_call(std::string_view(text_).substr(object_))) return false;
  // The mark before it is text too.
  show(object_ + 1, pieces);
  place_ = Place::text;
  return true;
}

void BareCalls::take_call(ReadCall call, std::size_t end, std::vector<AnswerPiece>& pieces) {
  called_ = true;
  pieces.push_back({AnswerPart::call, std::move(call.name), std::move(call.id), end});
  pieces.push_back({AnswerPart::arguments, std::move(call.arguments)});
  text_.erase(0, end);
}

void BareCalls::show(std::size_t end, std::vector<AnswerPiece>& pieces) {
  if (end > 0) pieces.push_back({AnswerPart::answer, text_.substr(0, end)});
  text_.erase(0, end);
}

void BareCalls::finish(std::vector<AnswerPiece>& pieces) {
  if (place_ == Place::object && binding_ != CallBinding::free) {
    const std::string_view object = std::string_view(text_).substr(object_);
    if (auto call = read_cut_call(CallForm::bare_json, object, *tools_))
      take_call(*std::move(call), text_.size(), pieces);
    text_.clear();
  }
  // White space behind calls is the template's.
  if (called_ && text_.find_first_not_of(white) == text_.npos) text_.clear();
  show(text_.size(), pieces);
}

}  // namespace nibble
