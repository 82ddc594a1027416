#include "server/api/answer_encoder.h"

#include <algorithm>

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

int ChoicePart::calls() const {
  return static_cast<int>(std::count_if(
      pieces.begin(), pieces.end(), [](const AnswerPiece& piece) { return piece.part == AnswerPart::call; }));
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

std::string call_id(std::string_view kind, const AnswerHead& head, int choice, int call) {
  const std::size_t own = head.id.find_first_of("-_") + 1;  // behind "chatcmpl-"
  return std::string(kind) + head.id.substr(own) + "_" + std::to_string(choice) + "_" + std::to_string(call);
}

std::string spelling(const Tokenizer& tokenizer, TokenId token) {
  return to_valid_utf8(tokenizer.bytes(token));
}

std::size_t spelled_characters(const Tokenizer& tokenizer, std::span<const TokenRecord> tokens) {
  std::size_t count = 0;
  for (const TokenRecord& record : tokens) count += characters(spelling(tokenizer, record.token));
  return count;
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
