// What a generation says back, and how an endpoint tells it. An endpoint is its fields (request_fields.h), an
// encoder of its own, and the shape of its errors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "server/api/api_error.h"
#include "server/http/response.h"
#include "text/answer_reader.h"
#include "text/tokenizer.h"

namespace nibble::api {

struct GenerationRequest;

// The same in all of one answer.
struct AnswerHead {
  std::string id;            // ours
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
};

// Tokens of a request's prediction that were checked.
struct PredictionUsage {
  int accepted = 0, rejected = 0;
};

struct Usage {
  int prompt_tokens = 0;
  int completion_tokens = 0;
  int cached_tokens = 0;     // of the prompt
  int reasoning_tokens = 0;  // of the completion
  std::optional<PredictionUsage> prediction;
};

// One token with what was asked to be known of it.
struct TokenRecord {
  TokenId token = -1;
  std::string shown;             // where only the content's tokens are told: its bytes of the content
  std::optional<float> logprob;  // of a prompt's first token there is none
  std::vector<TokenLogprob> top;
};

// A prompt's tokens with their log-probabilities; the first has none.
struct PromptLogprobs {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;    // [ids]
  std::vector<TokenLogprob> top;  // [ids][count], the likeliest first
  std::vector<int> ranks;         // [ids]
  std::size_t count = 0;
  std::size_t told = 0;  // of them
};

// A choice, or what a step adds to it.
struct ChoicePart {
  int index = 0;
  bool first = true;                             // nothing of the choice was told before
  std::vector<AnswerPiece> pieces;               // in the order they came; neighbours of one kind are joined
  std::vector<TokenRecord> tokens;               // when log-probabilities are asked for
  std::vector<TokenId> token_ids;                // when those are asked for; never the prompt's
  std::span<const TokenId> prompt_ids;           // likewise, in a choice's first part
  std::shared_ptr<const PromptLogprobs> prompt;  // of a whole answer that was asked for them
  std::optional<FinishReason> finish;
  int calls = 0;                // of tools that began before this part
  std::string stop_string;      // that ended it; empty: none did
  std::size_t text_offset = 0;  // characters of the tokens before this part, as they are spelled

  // All that the pieces have of one kind.
  std::string text_of(AnswerPart part) const;
  // Calls that begin in it.
  int new_calls() const;
};

// One answer's. What the calls return are events of a stream as they are sent, several or none, but for
// whole(), which is the answer's body.
class AnswerEncoder {
 public:
  virtual ~AnswerEncoder() = default;

  virtual std::string whole(std::span<const ChoicePart> choices, const Usage& usage) = 0;

  // The stream is open: the prompt is known and no token is.
  virtual std::string begin(const Usage&) { return {}; }
  virtual std::string part(const ChoicePart& part, const Usage& usage) = 0;
  // Every choice has ended.
  virtual std::string end(const Usage& usage) = 0;
  // The answer will not be completed: what ends its stream, or its body if it is no stream.
  virtual std::string stream_failure(const ApiError& error) = 0;
  virtual std::string failure(const ApiError& error) { return error.json(); }

  const AnswerHead& head() const { return head_; }

 protected:
  explicit AnswerEncoder(AnswerHead head) : head_(std::move(head)) {}

 private:
  AnswerHead head_;
};

// Of chat, completions and messages; a response's has its own owner (response_encoder.h). The tokenizer
// spells tokens; it outlives the encoder.
std::unique_ptr<AnswerEncoder> make_encoder(const GenerationRequest& request, AnswerHead head,
                                            const Tokenizer& tokenizer);

// How tokens are told: bytes that are no UTF-8 by themselves become U+FFFD.
std::string spelling(const Tokenizer& tokenizer, TokenId token);
// Characters of the tokens as they are spelled: how far text offsets go on by them.
std::size_t spelled_characters(const Tokenizer& tokenizer, std::span<const TokenRecord> tokens);

// How a stream of server-sent events begins.
http::Response event_stream_head();
// A server-sent event without a name, and with one.
std::string sse(std::string_view json);
std::string sse(std::string_view name, std::string_view json);

}  // namespace nibble::api
