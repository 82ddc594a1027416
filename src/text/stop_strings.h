// Strings that end an answer. They are found wherever the text is cut into tokens, and never partly shown:
// text that may yet turn out to be the beginning of one is held back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble {

class StopStrings {
 public:
  static constexpr std::size_t kMost = 16;

  StopStrings() = default;  // none: all text passes at once
  // Refused: an empty string, more than kMost, or one that is not UTF-8.
  static Result<StopStrings> make(const std::vector<std::string>& strings);

  // The text that may be shown now. Of several stop strings the one whose last byte comes first wins, and of
  // those that end together the longest; it and all that follows is never shown.
  std::string push(std::string_view text);
  // The end of the text: what was held back is no stop string.
  std::string flush();

  bool stopped() const { return matched_ != kNone; }
  // The stop string that was found; empty if none was.
  std::string_view matched() const { return stopped() ? std::string_view((*automata_)[matched_].text) : ""; }

 private:
  // Knuth-Morris-Pratt: the automaton of one string, and how many of its bytes the text now ends with. Copies
  // share the strings.
  struct Automaton {
    std::string text;
    std::vector<std::uint32_t> fallback;  // [i] length of the longest proper border of text[0, i]
    // True when the whole string has been seen.
    bool advance(char byte, std::size_t& held) const;
  };
  std::shared_ptr<const std::vector<Automaton>> automata_;
  std::vector<std::size_t> lengths_;  // [automata_]
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t matched_ = kNone;  // index of the automaton that saw its whole string
  std::string held_;             // the longest end of the text that could begin a stop string
};

}  // namespace nibble
