#include "server/api/truncation.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble::api {
namespace {

std::vector<Message> of(std::string_view roles) {
  std::vector<Message> messages;
  for (const char role : roles) {
    messages.push_back({.role = role == 's'   ? Role::system
                                : role == 'd' ? Role::developer
                                : role == 'u' ? Role::user
                                : role == 't' ? Role::tool
                                              : Role::assistant,
                        .content = std::to_string(messages.size())});
  }
  return messages;
}

std::string texts(const std::vector<Message>& messages) {
  std::string text;
  for (const Message& message : messages) text += *message.content;
  return text;
}

TEST(Truncation, ATurnIsKeptWholeAndSoAreInstructions) {
  const std::vector<Message> messages = of("suatadua");
  EXPECT_EQ(later_turns(messages), (std::vector<std::size_t>{6}));
  EXPECT_EQ(texts(from_turn(messages, 6)), "0567");
  EXPECT_TRUE(later_turns(of("sua")).empty()) << "one turn alone is all there is";
  EXPECT_TRUE(later_turns(of("")).empty());
}

TEST(Truncation, AsLittleAsPossibleFallsAway) {
  const std::vector<std::size_t> turns = {2, 4, 6, 8, 10};
  for (std::size_t least = 0; least < 13; ++least) {
    const std::size_t found = earliest_that_fits(turns, [&](std::size_t turn) { return turn >= least; });
    EXPECT_EQ(found,
              static_cast<std::size_t>(std::lower_bound(turns.begin(), turns.end(), least) - turns.begin()));
  }
}

}  // namespace
}  // namespace nibble::api
