#include "server/api/answer_encoder.h"

#include "base/check.h"
#include "base/utf8.h"
#include "server/api/characters.h"
#include "server/api/chat_encoder.h"
#include "server/api/completion_encoder.h"
#include "server/api/generation_request.h"
#include "server/api/message_encoder.h"

namespace nibble::api {

std::string ChoicePart::text_of(AnswerPart part) const {
  std::string text;
  for (const AnswerPiece& piece : pieces) {
    if (piece.part == part) text += piece.text;
  }
  return text;
}

int ChoicePart::new_calls() const {
  int count = 0;
  for (const AnswerPiece& piece : pieces) count += piece.part == AnswerPart::call ? 1 : 0;
  return count;
}

std::unique_ptr<AnswerEncoder> make_encoder(const GenerationRequest& request, AnswerHead head,
                                            const Tokenizer& tokenizer) {
  if (request.endpoint == Endpoint::chat)
    return std::make_unique<ChatEncoder>(std::move(head), openai_form(request), tokenizer);
  if (request.endpoint == Endpoint::messages)
    return std::make_unique<MessageEncoder>(std::move(head), request.sampling.max_tokens.value_or(0));
  NIBBLE_CHECK(request.endpoint == Endpoint::completions);
  return std::make_unique<CompletionEncoder>(std::move(head), openai_form(request), tokenizer);
}

std::string spelling(const Tokenizer& tokenizer, TokenId token) {
  return to_valid_utf8(tokenizer.bytes(token));
}

std::size_t spelled_characters(const Tokenizer& tokenizer, std::span<const TokenRecord> tokens) {
  std::size_t count = 0;
  for (const TokenRecord& record : tokens) count += characters(spelling(tokenizer, record.token));
  return count;
}

http::Response event_stream_head() {
  return {.content_type = "text/event-stream",
          .fields = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

std::string sse(std::string_view json) {
  NIBBLE_CHECK(json.find_first_of("\r\n") == std::string_view::npos);
  std::string text = "data: ";
  text.append(json).append("\n\n");
  return text;
}

std::string sse(std::string_view name, std::string_view json) {
  std::string text = "event: ";
  text.append(name).append("\n").append(sse(json));
  return text;
}

}  // namespace nibble::api
