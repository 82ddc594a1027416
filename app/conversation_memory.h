// What a chat in the terminal remembers: an optional system message and the turns since the last reset.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "text/conversation.h"

namespace nibble {

class ConversationMemory {
 public:
  // Empty: none.
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }

  void add_user(std::string text);
  void add_assistant(std::string text);
  // An answer that calls tools, and a call's result.
  void add_calls(std::string text, std::string reasoning, std::vector<ToolCall> calls);
  void add_result(Message result) { turns_.push_back(std::move(result)); }
  // Takes back the last question, which could not be answered, with the calls and results behind it.
  void take_back();
  void reset() { turns_.clear(); }
  // The oldest question and its answer go. False when only the question that waits for its answer is left.
  bool drop_oldest_turn();

  // System message first.
  std::vector<Message> messages() const;

 private:
  std::string system_;
  std::vector<Message> turns_;  // user and assistant in turn; results stand behind calls
};

}  // namespace nibble
