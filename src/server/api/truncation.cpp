#include "server/api/truncation.h"

#include <algorithm>

namespace nibble::api {

std::vector<std::size_t> later_turns(const std::vector<Message>& messages) {
  std::vector<std::size_t> turns;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == Role::user) turns.push_back(i);
  }
  if (!turns.empty()) turns.erase(turns.begin());
  return turns;
}

std::vector<Message> from_turn(const std::vector<Message>& messages, std::size_t turn) {
  std::vector<Message> left;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Role role = messages[i].role;
    if (i >= turn || role == Role::system || role == Role::developer) left.push_back(messages[i]);
  }
  return left;
}

std::size_t earliest_that_fits(const std::vector<std::size_t>& turns,
                               const std::function<bool(std::size_t turn)>& fits) {
  std::size_t low = 0, high = turns.size();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    fits(turns[middle]) ? high = middle : low = middle + 1;
  }
  return low;
}

}  // namespace nibble::api
