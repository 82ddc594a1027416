#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace nibble {

Result<StopStrings> StopStrings::make(const std::vector<std::string>& strings) {
  if (strings.size() > kMost) {
    return invalid_argument("stop has " + std::to_string(strings.size()) + " strings; at most " +
                            std::to_string(kMost) + " are allowed");
  }
  std::vector<Automaton> automata;
  for (const std::string& text : strings) {
    if (text.empty()) return invalid_argument("stop has an empty string; each needs at least one character");
    if (!is_valid_utf8(text)) return invalid_argument("stop has a string that is not UTF-8");
    Automaton automaton;
    automaton.text = text;
    automaton.fallback.assign(text.size(), 0);
    for (std::size_t i = 1, border = 0; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = automaton.fallback[border - 1];
      if (text[i] == text[border]) ++border;
      automaton.fallback[i] = static_cast<std::uint32_t>(border);
    }
    automata.push_back(std::move(automaton));
  }
  StopStrings stops;
  stops.lengths_.assign(automata.size(), 0);
  stops.automata_ = std::make_shared<const std::vector<Automaton>>(std::move(automata));
  return stops;
}

bool StopStrings::Automaton::advance(char byte, std::size_t& held) const {
  while (held > 0 && text[held] != byte) held = fallback[held - 1];
  if (text[held] == byte) ++held;
  return held == text.size();
}

std::string StopStrings::push(std::string_view text) {
  if (stopped()) return {};
  std::string shown = std::exchange(held_, {});
  for (const char byte : text) {
    shown.push_back(byte);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      const Automaton& automaton = (*automata_)[i];
      const bool complete = automaton.advance(byte, lengths_[i]);
      if (complete && (!stopped() || automaton.text.size() > matched().size())) matched_ = i;
    }
    if (stopped()) {
      shown.resize(shown.size() - matched().size());
      return shown;
    }
  }
  std::size_t hold = 0;
  for (const std::size_t length : lengths_) hold = std::max(hold, length);
  held_ = shown.substr(shown.size() - hold);
  shown.resize(shown.size() - hold);
  return shown;
}

std::string StopStrings::flush() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
  return std::exchange(held_, {});
}

}  // namespace nibble
