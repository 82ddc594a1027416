#include "sched/drafts.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::size_t least_alike = 2, most_alike = 8;
constexpr int longest_pause = 32;

// How many tokens of `text` before `end` are the last ones of `tokens`, as far as it matters.
std::size_t alike_before(std::span<const TokenId> text, std::size_t end, std::span<const TokenId> tokens) {
  const std::size_t most = std::min({end, tokens.size(), most_alike});
  std::size_t count = 0;
  while (count < most && text[end - 1 - count] == tokens[tokens.size() - 1 - count]) ++count;
  return count;
}

// The beginning of the text, as far as there is room.
int copy_drafts(std::span<const TokenId> text, std::span<TokenId> room) {
  const std::size_t count = std::min(text.size(), room.size());
  std::copy_n(text.begin(), count, room.begin());
  return static_cast<int>(count);
}

}  // namespace

int look_up_drafts(std::span<const TokenId> tokens, std::span<const TokenId> text, std::span<TokenId> room) {
  if (tokens.empty()) return 0;
  std::size_t found = 0, most = least_alike - 1;
  for (std::size_t end = text.size(); end-- > least_alike && most < most_alike;) {
    if (text[end - 1] != tokens.back()) continue;
    const std::size_t alike = alike_before(text, end, tokens);
    if (alike <= most) continue;
    most = alike;
    found = end;
  }
  if (found == 0) return 0;
  const int count = copy_drafts(text.subspan(found), room);
  if (text.data() != tokens.data()) return count;
  for (std::size_t i = static_cast<std::size_t>(count); i < room.size(); ++i)
    room[i] = room[i - (text.size() - found)];
  return static_cast<int>(room.size());
}

int Drafts::guess(const DraftedText& text, int most) {
  count_ = 0;
  of_prediction_ = false;
  const int fitting = std::min(most, reach_);
  if (fitting <= 0) return 0;
  if (resting_ > 0) {
    --resting_;
    return 0;
  }
  const std::span<TokenId> room = std::span(room_).first(static_cast<std::size_t>(fitting));
  if (text.constraint != nullptr) count_ = text.constraint->draft(room);
  if (count_ == 0 && !text.prediction.empty()) {
    const std::span<const TokenId> answer = text.tokens.subspan(text.prompt);
    count_ =
        answer.empty() ? copy_drafts(text.prediction, room) : look_up_drafts(answer, text.prediction, room);
    of_prediction_ = count_ > 0;
  }
  if (count_ == 0 && looks_up_) count_ = look_up_drafts(text.tokens, text.tokens, room);
  // Nothing comes behind an end.
  const std::span<const TokenId> guessed = tokens();
  const auto end = std::find_first_of(guessed.begin(), guessed.end(), text.ends.begin(), text.ends.end());
  count_ = static_cast<int>(end - guessed.begin());
  return count_;
}

void Drafts::learn(int accepted) {
  if (count_ == 0) return;
  if (accepted == count_) {
    reach_ = std::min(static_cast<int>(room_.size()), 2 * reach_);
  } else {
    reach_ = std::max(1, accepted);
  }
  pause_ = accepted > 0 ? 0 : std::clamp(2 * pause_, 1, longest_pause);
  resting_ = pause_;
}

}  // namespace nibble
