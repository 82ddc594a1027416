// What a generation says back, in OpenAI's shapes: whole answers and the chunks of a stream. Pure text from
// plain structs; the order of members never changes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "core/request.h"
#include "server/api/generation_request.h"
#include "text/tokenizer.h"

namespace nibble::api {

// The same in every chunk of one answer.
struct AnswerHead {
  Endpoint endpoint = Endpoint::chat;
  std::string id;            // ours
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
};

struct Usage {
  int prompt_tokens = 0;
  int completion_tokens = 0;
  int cached_tokens = 0;     // of the prompt
  int reasoning_tokens = 0;  // of the completion
};

// One token with what was asked to be known of it.
struct TokenRecord {
  TokenId token = -1;
  std::string shown;             // of a chat: its bytes of the content
  std::optional<float> logprob;  // of a prompt's first token there is none
  std::vector<TokenLogprob> top;
};

// A choice, or what a step adds to it.
struct ChoicePart {
  int index = 0;
  std::string text;
  std::string reasoning;                // of a chat
  std::vector<TokenRecord> tokens;      // when log-probabilities are asked for
  std::vector<TokenId> token_ids;       // when those are asked for; never the prompt's
  std::span<const TokenId> prompt_ids;  // likewise, in a choice's first part
  std::optional<std::string_view> finish_reason;
  std::size_t text_offset = 0;  // of completions: characters of the tokens before this part
};

// What of the request shapes its answer.
struct AnswerForm {
  bool logprobs = false;
  bool token_ids = false;
};

class AnswerWriter {
 public:
  // The tokenizer spells tokens; it outlives the writer.
  AnswerWriter(AnswerHead head, AnswerForm form, const Tokenizer& tokenizer)
      : head_(std::move(head)), form_(form), tokenizer_(tokenizer) {}

  std::string whole(std::span<const ChoicePart> choices, const Usage& usage) const;

  // The JSON of one chunk. `first`: the choice's first chunk, which names the role of a chat. A stream that
  // ends with its usage has one in every chunk: null, or what was used so far.
  enum class ChunkUsage : std::uint8_t { none, null, so_far };
  std::string chunk(const ChoicePart& part, bool first, ChunkUsage shown, const Usage& usage) const;
  std::string usage_chunk(const Usage& usage) const;
  // Characters of the tokens as they are spelled: how far text offsets go on by them.
  std::size_t spelled_characters(std::span<const TokenRecord> tokens) const;

 private:
  void begin(JsonWriter& json, bool stream) const;
  void add_chat_logprobs(JsonWriter& json, const ChoicePart& part) const;
  void add_completion_logprobs(JsonWriter& json, const ChoicePart& part) const;
  void add_ids(JsonWriter& json, std::string_view name, std::span<const TokenId> ids) const;
  void add_token(JsonWriter& json, TokenId token, std::string_view bytes, float logprob) const;
  void add_choice_end(JsonWriter& json, const ChoicePart& part) const;
  std::string spelling(TokenId token) const;

  AnswerHead head_;
  AnswerForm form_;
  const Tokenizer& tokenizer_;
};

// A server-sent event, and the stream's last.
std::string sse(std::string_view json);
inline constexpr std::string_view sse_done = "data: [DONE]\n\n";

}  // namespace nibble::api
