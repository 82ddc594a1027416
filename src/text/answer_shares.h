// Which token of an answer brought which bytes of its shown text. Shares are cut one behind the other, so
// that they join to exactly that text: a character that several tokens spell, text that a stop string holds
// back, and U+FFFD for what is no UTF-8 move the cuts and lose nothing. A token all of whose text is a call's
// has no share.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct AnswerShare {
  int token = 0;      // its place among the answer's tokens, from 0
  std::string bytes;  // of the shown text
};

class AnswerShares {
 public:
  // The text grew by this much; not all of it need be shown yet, or ever.
  void decoded(std::size_t bytes) { decoded_ += bytes; }
  // Of the decoded text, in order: so much is content, so much is none.
  void content(std::size_t bytes) { placed_ += bytes; }
  void dropped(std::size_t bytes);
  void shown(std::string_view text);
  // The token brought what the text has grown by, and bytes that still wait for the rest of their character.
  void token(int token, std::size_t waiting);
  // The text's last `bytes` are those of these tokens, which were held back until now.
  struct Held {
    int token = 0;
    std::size_t bytes = 0;  // of the token itself
  };
  void spread(std::span<const Held> tokens, std::size_t bytes);
  // No token will complete what waits: its replacement is the last token's.
  void message_ended();

  // Appends the shares that are shown whole. `over`: no more will be shown, so of the token in which it ends
  // the shown part, and nothing of those behind.
  void settle(bool over, std::vector<AnswerShare>& shares);
  // The first token whose share is open; nothing is known of tokens from `next` on.
  int first_open(int next) const { return pending_.empty() ? next : pending_.front().token; }

 private:
  struct Pending {
    int token = 0;
    std::size_t end = 0;  // of its share, in the decoded text
  };
  struct Dropped {
    std::size_t begin = 0, end = 0;  // in the decoded text
  };
  std::size_t content_before(std::size_t end) const;

  std::deque<Pending> pending_;  // in order
  std::deque<Dropped> dropped_;  // in order, behind what is settled
  std::size_t forgotten_ = 0;    // bytes that were dropped before those
  std::size_t placed_ = 0;       // decoded text of which it is known whether it is content
  std::size_t last_end_ = 0;     // of the last token that was settled
  std::size_t decoded_ = 0;
  std::size_t shown_ = 0;
  std::size_t settled_ = 0;  // where the last settled share ends
  std::string unsettled_;    // shown text behind that
};

}  // namespace nibble
