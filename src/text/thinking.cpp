#include "text/thinking.h"

#include <algorithm>
#include <utility>

namespace nibble {

std::optional<ThinkTokens> ThinkTokens::find(const Tokenizer& tokenizer) {
  const auto open = tokenizer.control_id("<think>"), close = tokenizer.control_id("</think>");
  if (!open || !close) return std::nullopt;
  return ThinkTokens{*open, *close};
}

ThinkState think_state_behind(const ThinkTokens& tokens, std::span<const TokenId> prompt) {
  const auto last = std::find_if(prompt.rbegin(), prompt.rend(), [&](TokenId token) {
    return token == tokens.open || token == tokens.close;
  });
  return last != prompt.rend() && *last == tokens.open ? ThinkState::reasoning : ThinkState::undecided;
}

void Thinking::turn() {
  state_ = reasons() ? ThinkState::answer : ThinkState::reasoning;
  at_begin_ = parted_ = true;
  newlines_.clear();
}

std::string Thinking::trim(std::string text) {
  if (state_ == ThinkState::undecided) {
    if (text.find_first_not_of(" \n\r\t") != std::string::npos) state_ = ThinkState::answer;
    return text;
  }
  if (at_begin_ && (reasons() || parted_)) {
    text.erase(0, std::min(text.size(), text.find_first_not_of('\n')));
    if (text.empty()) return text;
  }
  at_begin_ = false;
  if (!reasons()) return text;
  text.insert(0, std::exchange(newlines_, {}));
  const std::size_t end = text.find_last_not_of('\n');
  const std::size_t kept = end == std::string::npos ? 0 : end + 1;
  newlines_ = text.substr(kept);
  text.resize(kept);
  return text;
}

}  // namespace nibble
