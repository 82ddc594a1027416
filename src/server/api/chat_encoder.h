// Answers of /v1/chat/completions.
#pragma once

#include <span>
#include <string>

#include "server/api/answer_encoder.h"
#include "server/api/openai_form.h"

namespace nibble::api {

class ChatEncoder final : public AnswerEncoder {
 public:
  ChatEncoder(AnswerHead head, OpenAiForm form, const Tokenizer& tokenizer)
      : AnswerEncoder(std::move(head)), form_(form), tokenizer_(tokenizer) {}

  std::string whole(std::span<const ChoicePart> choices, const Usage& usage) override;
  std::string part(const ChoicePart& part, const Usage& usage) override;
  std::string end(const Usage& usage) override;
  std::string stream_failure(const ApiError& error) override { return sse(error.json()); }

 private:
  void add_choice_end(JsonWriter& json, const ChoicePart& part) const;

  OpenAiForm form_;
  const Tokenizer& tokenizer_;
};

}  // namespace nibble::api
