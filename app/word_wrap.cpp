#include "app/word_wrap.h"

#include <algorithm>

#include "app/display_text.h"

namespace nibble {

std::string WordWrapper::push(std::string_view text, int columns) {
  columns_ = std::max(columns, 1);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = next_character(text, at);
    take(text.substr(at, end - at), out);
    at = end;
  }
  return out;
}

std::string WordWrapper::flush() {
  std::string out;
  end_word(out);
  out += blanks_;
  column_ += static_cast<int>(blanks_.size());
  blanks_.clear();
  return out;
}

void WordWrapper::take(std::string_view character, std::string& out) {
  if (character == "\n") {
    end_word(out);
    blanks_.clear();  // at the end of a line they show nothing
    out += '\n';
    column_ = 0;
  } else if (character == " " || character == "\t") {
    end_word(out);
    blanks_ += character == " " ? " " : "    ";
  } else if (character_columns(character) == 2) {
    // Scripts of wide characters break anywhere.
    end_word(out);
    word_ = character;
    end_word(out);
  } else {
    word_ += character;
  }
}

void WordWrapper::end_word(std::string& out) {
  if (word_.empty()) return;
  const int blanks = static_cast<int>(blanks_.size());
  const int width = text_columns(word_);
  if (column_ > 0 && column_ + blanks + width > columns_) {
    out += '\n';
    column_ = 0;
  } else {
    out += blanks_;
    column_ += blanks;
  }
  out += word_;
  column_ += width;
  // A word wider than the terminal is broken by it.
  if (column_ > columns_) column_ = (column_ - 1) % columns_ + 1;
  blanks_.clear();
  word_.clear();
}

}  // namespace nibble
