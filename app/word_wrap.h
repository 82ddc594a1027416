// Text that comes in pieces, broken between words at the edge of the terminal instead of inside of them.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

class WordWrapper {
 public:
  // The text that can be placed now, for a terminal of this width; the last word waits for its end.
  std::string push(std::string_view text, int columns);
  // What still waits; the line goes on.
  std::string flush();

 private:
  void take(std::string_view character, std::string& out);
  void end_word(std::string& out);

  std::string blanks_;  // before the word that waits
  std::string word_;
  int column_ = 0;
  int columns_ = 80;
};

}  // namespace nibble
