// Answers of /v1/messages, as Anthropic's API sends them.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/json_writer.h"
#include "server/api/answer_encoder.h"

namespace nibble::api {

class MessageEncoder final : public AnswerEncoder {
 public:
  // `max_tokens`: what was asked for. An answer that ends earlier for want of room filled the context.
  MessageEncoder(AnswerHead head, int max_tokens) : AnswerEncoder(std::move(head)), max_tokens_(max_tokens) {}

  std::string whole(std::span<const ChoicePart> choices, const Usage& usage) override;
  std::string part(const ChoicePart& part, const Usage& usage) override;
  std::string end(const Usage& usage) override;
  std::string stream_failure(const ApiError& error) override;
  std::string failure(const ApiError& error) override { return error.anthropic_json(); }

 private:
  void add_stop(JsonWriter& json, const ChoicePart& part, const Usage& usage) const;
  std::string close_block();
  // Of the open block; JSON.
  std::string delta(std::string_view delta) const;

  int max_tokens_;
  bool begun_ = false;              // message_start is out
  std::optional<AnswerPart> open_;  // the kind of the block that is open
  int block_ = 0;                   // its index, or the next one's
  int calls_ = 0;                   // that have begun
  ChoicePart last_;                 // how the answer ended
};

}  // namespace nibble::api
