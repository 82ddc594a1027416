#include "app/conversation_memory.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

std::string shown(const ConversationMemory& memory) {
  std::string text;
  for (const Message& message : memory.messages()) {
    text += std::string(role_name(message.role)) + ":" + message.content.value_or("-") + " ";
  }
  return text;
}

TEST(ConversationMemory, TheSystemMessageComesFirstAndSurvivesAReset) {
  ConversationMemory memory;
  memory.add_user("hello");
  memory.set_system("be brief");
  EXPECT_EQ(shown(memory), "system:be brief user:hello ");
  memory.reset();
  EXPECT_EQ(shown(memory), "system:be brief ");
  memory.set_system("");
  EXPECT_EQ(shown(memory), "");
}

TEST(ConversationMemory, DropsTheOldestQuestionTogetherWithItsAnswer) {
  ConversationMemory memory;
  memory.set_system("s");
  for (const char* n : {"1", "2"}) {
    memory.add_user(std::string("q") + n);
    memory.add_assistant(std::string("a") + n);
  }
  memory.add_user("q3");
  EXPECT_TRUE(memory.drop_oldest_turn());
  EXPECT_EQ(shown(memory), "system:s user:q2 assistant:a2 user:q3 ");
  EXPECT_TRUE(memory.drop_oldest_turn());
  EXPECT_FALSE(memory.drop_oldest_turn());
  EXPECT_EQ(shown(memory), "system:s user:q3 ");
}

TEST(ConversationMemory, AQuestionThatCannotBeAnsweredIsTakenBack) {
  ConversationMemory memory;
  memory.add_user("q");
  memory.take_back();
  memory.take_back();
  EXPECT_EQ(shown(memory), "");
  EXPECT_FALSE(memory.drop_oldest_turn());
}

TEST(ConversationMemory, AQuestionIsTakenBackWithItsCallsAndResults) {
  ConversationMemory memory;
  memory.add_user("q1");
  memory.add_assistant("a1");
  memory.add_user("q2");
  memory.add_calls("", "hm", {{.id = "1", .name = "f", .arguments = "{}"}});
  memory.add_result({.role = Role::tool, .content = "r", .name = "f", .tool_call_id = "1"});
  EXPECT_EQ(shown(memory), "user:q1 assistant:a1 user:q2 assistant:- tool:r ");
  EXPECT_EQ(memory.messages()[3].reasoning, "hm");
  memory.take_back();
  EXPECT_EQ(shown(memory), "user:q1 assistant:a1 ");
}

}  // namespace
}  // namespace nibble
