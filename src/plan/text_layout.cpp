#include "plan/text_layout.h"

#include <algorithm>

namespace nibble {

std::string padded(std::string text, int width) {
  text.resize(std::max(text.size(), static_cast<std::size_t>(width)), ' ');
  return text;
}
std::string right(const std::string& text, int width) {
  const std::size_t missing =
      text.size() < static_cast<std::size_t>(width) ? static_cast<std::size_t>(width) - text.size() : 0;
  return std::string(missing, ' ') + text;
}

// The words after `first`, in lines of at most `columns`; lines but the first begin with `indent` spaces.
std::string wrapped(std::string first, std::string_view words, int indent, int columns) {
  std::string text;
  std::string line = std::move(first);
  bool begun = false;  // the line has a word
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    const std::string_view word = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    if (begun && static_cast<int>(line.size() + 1 + word.size()) > columns) {
      text += line + "\n";
      line = std::string(static_cast<std::size_t>(indent), ' ');
      begun = false;
    }
    if (begun) line += ' ';
    line += word;
    begun = true;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return text + line + "\n";
}

}  // namespace nibble
