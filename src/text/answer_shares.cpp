#include "text/answer_shares.h"

#include <algorithm>

namespace nibble {

void AnswerShares::shown(std::string_view text) {
  shown_ += text.size();
  unsettled_ += text;
}

void AnswerShares::dropped(std::size_t bytes) {
  if (bytes > 0) dropped_.push_back({.begin = placed_, .end = placed_ + bytes});
  placed_ += bytes;
}

// Bytes of content in the decoded text up to there.
std::size_t AnswerShares::content_before(std::size_t end) const {
  std::size_t content = end - forgotten_;
  for (const Dropped& drop : dropped_) {
    if (drop.begin >= end) break;
    content -= std::min(drop.end, end) - drop.begin;
  }
  return content;
}

void AnswerShares::token(int token, std::size_t waiting) {
  pending_.push_back({.token = token, .end = decoded_ + waiting});
}

void AnswerShares::spread(std::span<const Held> tokens, std::size_t bytes) {
  std::size_t end = decoded_ - bytes;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    end = i + 1 == tokens.size() ? decoded_ : std::min(decoded_, end + tokens[i].bytes);
    pending_.push_back({.token = tokens[i].token, .end = end});
  }
}

void AnswerShares::message_ended() {
  if (!pending_.empty()) pending_.back().end = std::max(pending_.back().end, decoded_);
}

void AnswerShares::settle(bool over, std::vector<AnswerShare>& shares) {
  std::size_t taken = 0;  // of unsettled_
  while (!pending_.empty()) {
    const Pending next = pending_.front();
    if (next.end > placed_ && !over) break;
    const std::size_t content = content_before(next.end);
    const bool is_dropped = content == settled_ && next.end > last_end_;
    if (content > shown_ && (!over || shown_ == settled_)) break;
    const std::size_t end = std::min(content, shown_);
    if (!is_dropped)
      shares.push_back({.token = next.token, .bytes = unsettled_.substr(taken, end - settled_)});
    taken += end - settled_;
    settled_ = end;
    last_end_ = std::max(last_end_, next.end);
    pending_.pop_front();
    for (; !dropped_.empty() && dropped_.front().end <= last_end_; dropped_.pop_front())
      forgotten_ += dropped_.front().end - dropped_.front().begin;
  }
  unsettled_.erase(0, taken);
  if (over) pending_.clear();
}

}  // namespace nibble
