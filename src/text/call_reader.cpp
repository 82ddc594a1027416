#include "text/call_reader.h"

#include <algorithm>
#include <array>
#include <utility>

namespace nibble {
namespace {

constexpr std::string_view white = " \t\r\n";

}  // namespace

bool CallReader::needs(std::string_view spelling) const {
  const auto& inside = marks_.inside;
  return std::find(inside.begin(), inside.end(), spelling) != inside.end() || spelling == marks_.open ||
         spelling == marks_.close || spelling == marks_.section_open || spelling == marks_.section_close;
}

// The first mark in text_ that counts outside of a call; at npos: none.
CallReader::Mark CallReader::next_mark() const {
  Mark first{std::string::npos, {}};
  for (const std::string_view mark : {marks_.open, marks_.section_open, marks_.section_close}) {
    if (mark.empty()) continue;
    const std::size_t at = text_.find(mark);
    if (at < first.at) first = {at, mark};
  }
  return first;
}

// Where the end of text_ may yet become a mark.
std::size_t CallReader::begun_mark() const {
  std::size_t held = 0;
  for (const std::string_view mark : {marks_.open, marks_.section_open, marks_.section_close}) {
    if (mark.empty()) continue;
    for (std::size_t length = std::min(mark.size() - 1, text_.size()); length > held; --length) {
      if (text_.ends_with(mark.substr(0, length))) held = length;
    }
  }
  return text_.size() - held;
}

// White space waits, as around calls it is the template's.
void CallReader::show(std::string_view text, std::vector<AnswerPiece>& pieces) {
  white_ += text;
  const std::size_t last = white_.find_last_not_of(white);
  if (last == std::string::npos) return;
  all_text_ = binding_ == CallBinding::bound_first && !called_;
  std::string rest = white_.substr(last + 1);
  white_.resize(last + 1);
  pieces.push_back({AnswerPart::answer, std::exchange(white_, std::move(rest))});
}

// `spelled`: the bytes between the marks and of the marks.
bool CallReader::take_call(std::optional<ReadCall> call, std::size_t spelled,
                           std::vector<AnswerPiece>& pieces) {
  if (!call) return false;
  const std::size_t dropped = white_.size() + spelled;
  white_.clear();
  called_ = true;
  pieces.push_back({AnswerPart::call, std::move(call->name), std::move(call->id), dropped});
  pieces.push_back({AnswerPart::arguments, std::move(call->arguments)});
  return true;
}

void CallReader::push(std::string_view text, std::vector<AnswerPiece>& pieces) {
  if (bare_) return bare_->push(text, pieces);
  text_ += text;
  for (;;) {
    if (all_text_) {
      show(std::exchange(text_, {}), pieces);
      return;
    }
    if (inside_) {
      const std::size_t end = text_.find(marks_.close, searched_);
      if (end == std::string::npos) {
        searched_ = text_.size() - std::min(text_.size(), marks_.close.size() - 1);
        return;
      }
      const std::size_t behind = end + marks_.close.size();
      const std::string_view body = std::string_view(text_).substr(0, end);
      if (!take_call(read_call(form_, body, *tools_, binding_), marks_.open.size() + behind, pieces)) {
        show(marks_.open, pieces);
        show(std::string_view(text_).substr(0, behind), pieces);
      }
      text_.erase(0, behind);
      inside_ = false;
    } else {
      const Mark mark = next_mark();
      const bool found = mark.at != std::string::npos;
      const std::size_t end = found ? mark.at : begun_mark();
      show(std::string_view(text_).substr(0, end), pieces);
      text_.erase(0, end);
      if (all_text_) continue;
      text_.erase(0, mark.spelling.size());
      if (!found) return;
      if (mark.spelling != marks_.open)
        pieces.push_back({.part = AnswerPart::answer, .text = {}, .dropped = mark.spelling.size()});
      inside_ = mark.spelling == marks_.open;
      searched_ = 0;
    }
  }
}

void CallReader::finish(std::vector<AnswerPiece>& pieces) {
  if (bare_) return bare_->finish(pieces);
  // A call whose closing mark alone is missing is one. A bound one is a call from its beginning on.
  if (inside_ && !take_call(read_call(form_, text_, *tools_, CallBinding::free), text_.size(), pieces)) {
    if (binding_ != CallBinding::free) {
      take_call(read_cut_call(form_, text_, *tools_), text_.size(), pieces);
      text_.clear();
    } else {
      show(marks_.open, pieces);
    }
  } else if (inside_) {
    text_.clear();
  }
  show(text_, pieces);
  text_.clear();
  inside_ = false;
  if (!called_ && !white_.empty()) pieces.push_back({AnswerPart::answer, std::exchange(white_, {})});
}

}  // namespace nibble
