#include "app/conversation_memory.h"

#include <algorithm>

namespace nibble {
namespace {

Message make_message(Role role, std::string text) {
  Message message;
  message.role = role;
  message.content = std::move(text);
  return message;
}

}  // namespace

void ConversationMemory::add_user(std::string text) {
  turns_.push_back(make_message(Role::user, std::move(text)));
}

void ConversationMemory::add_assistant(std::string text) {
  turns_.push_back(make_message(Role::assistant, std::move(text)));
}

void ConversationMemory::add_calls(std::string text, std::string reasoning, std::vector<ToolCall> calls) {
  Message message = make_message(Role::assistant, std::move(text));
  if (message.content->empty()) message.content.reset();
  message.reasoning = std::move(reasoning);
  message.tool_calls = std::move(calls);
  turns_.push_back(std::move(message));
}

void ConversationMemory::take_back() {
  while (!turns_.empty()) {
    const bool question = turns_.back().role == Role::user;
    turns_.pop_back();
    if (question) return;
  }
}

bool ConversationMemory::drop_oldest_turn() {
  const auto is_user = [](const Message& message) { return message.role == Role::user; };
  if (turns_.empty()) return false;
  const auto next = std::find_if(turns_.begin() + 1, turns_.end(), is_user);
  if (next == turns_.end()) return false;
  turns_.erase(turns_.begin(), next);
  return true;
}

std::vector<Message> ConversationMemory::messages() const {
  std::vector<Message> messages;
  if (!system_.empty()) messages.push_back(make_message(Role::system, system_));
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  return messages;
}

}  // namespace nibble
