// Conversations to prompts, the way the model's own files ask for it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "text/answer_reader.h"
#include "text/chat_template.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace nibble {

struct ChatPrompt {
  std::string text;
  std::vector<TokenId> ids;
  AnswerFormat format = AnswerFormat::plain;  // how the model will answer
};

class ChatPrompter {
 public:
  // The folder is the model's.
  static Result<ChatPrompter> load(const std::filesystem::path& folder, const Tokenizer& tokenizer);

  // Ends where the assistant begins to speak.
  Result<ChatPrompt> render(const ChatRequest& request) const;
  Result<ChatPrompt> render(std::vector<Message> messages) const;

 private:
  ChatPrompter(ChatTemplate chat_template, const Tokenizer& tokenizer)
      : template_(std::move(chat_template)), tokenizer_(tokenizer) {}

  ChatTemplate template_;
  Tokenizer tokenizer_;
};

}  // namespace nibble
