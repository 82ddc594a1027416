#include "sched/drafts.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::size_t least_alike = 2, most_alike = 8;
constexpr int longest_pause = 32;

// How many tokens before `end` are those before the end of all, as far as it matters.
std::size_t alike_before(std::span<const TokenId> tokens, std::size_t end) {
  std::size_t count = 0;
  while (count < std::min(end, most_alike) && tokens[end - 1 - count] == tokens[tokens.size() - 1 - count])
    ++count;
  return count;
}

}  // namespace

int look_up_drafts(std::span<const TokenId> tokens, std::span<TokenId> room) {
  std::size_t found = 0, most = least_alike - 1;
  for (std::size_t end = tokens.size(); end-- > least_alike && most < most_alike;) {
    if (tokens[end - 1] != tokens.back()) continue;
    const std::size_t alike = alike_before(tokens, end);
    if (alike <= most) continue;
    most = alike;
    found = end;
  }
  if (found == 0) return 0;
  for (std::size_t i = 0; i < room.size(); ++i) {
    const std::size_t at = found + i;
    room[i] = at < tokens.size() ? tokens[at] : room[at - tokens.size()];
  }
  return static_cast<int>(room.size());
}

int Drafts::guess(std::span<const TokenId> tokens, TokenConstraint* constraint, std::span<const TokenId> ends,
                  int most) {
  count_ = 0;
  const int fitting = std::min(most, reach_);
  if (fitting <= 0) return 0;
  if (resting_ > 0) {
    --resting_;
    return 0;
  }
  const std::span<TokenId> room = std::span(room_).first(static_cast<std::size_t>(fitting));
  if (constraint != nullptr) count_ = constraint->draft(room);
  if (count_ == 0 && looks_up_) count_ = look_up_drafts(tokens, room);
  // Nothing comes behind an end.
  const std::span<const TokenId> guessed = this->tokens();
  const auto end = std::find_first_of(guessed.begin(), guessed.end(), ends.begin(), ends.end());
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
