// Conversations to prompts, the way the model's own files ask for it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "text/answer_reader.h"
#include "text/chat_template.h"
#include "text/conversation.h"
#include "text/day.h"
#include "text/tokenizer.h"

namespace nibble {

struct ChatPrompt {
  std::string text;
  std::vector<TokenId> ids;
  AnswerStart answer;  // how the answer will read
};

class ChatPrompter {
 public:
  // The folder is the model's. `day`: what templates are told of the date; nothing: what the clock says.
  static Result<ChatPrompter> load(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                                   std::optional<Day> day = {});

  // Of a template that came with a request: it gets less time and memory than a model's own.
  // `tokenizer_config` is that of the model, as JSON.
  static Result<ChatPrompter> of_request(std::string_view source, std::string_view tokenizer_config,
                                         const Tokenizer& tokenizer, std::optional<Day> day);

  // Ends where the assistant begins to speak. The template variable `date` of a request, "2026-01-31", wins
  // over the day.
  Result<ChatPrompt> render(const ChatRequest& request) const;
  Result<ChatPrompt> render(std::vector<Message> messages) const;
  CallForm call_form() const { return template_.call_form(); }
  // How conversations become prompts, and why so.
  const std::string& why() const { return template_.why(); }
  // Whether requests may offer tools: the template has a form for calls that is known here.
  bool reads_calls() const { return template_.call_form() != CallForm::none; }

 private:
  ChatPrompter(ChatTemplate chat_template, const Tokenizer& tokenizer, std::optional<Day> day)
      : template_(std::move(chat_template)), tokenizer_(tokenizer), day_(day) {}
  Result<std::tm> time_of(const ChatRequest& request) const;

  ChatTemplate template_;
  Tokenizer tokenizer_;
  std::optional<Day> day_;
};

}  // namespace nibble
