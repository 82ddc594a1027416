// What the answers of /v1/chat/completions and /v1/completions have in common.
#pragma once

#include <span>
#include <string_view>

#include "base/json_writer.h"
#include "server/api/answer_encoder.h"

namespace nibble::api {

// What of a request shapes its answer. A stream that ends with its usage has one in every chunk: null, or
// what was used so far.
struct OpenAiForm {
  enum class ChunkUsage : std::uint8_t { none, null, so_far };
  bool logprobs = false;
  bool token_ids = false;
  bool named_call = false;  // the request named the function, so that its call is the answer and no turn
  ChunkUsage usage = ChunkUsage::none;
};

OpenAiForm openai_form(const GenerationRequest& request);

// Opens the answer's object and its list of choices.
void begin_openai(JsonWriter& json, const AnswerHead& head, std::string_view object);
void add_usage(JsonWriter& json, const Usage& usage);
void add_chunk_usage(JsonWriter& json, OpenAiForm::ChunkUsage shown, const Usage& usage);
void add_finish_reason(JsonWriter& json, const ChoicePart& part, const OpenAiForm& form);
void add_ids(JsonWriter& json, std::string_view name, std::span<const TokenId> ids);
// {"token", "logprob", "bytes", "top_logprobs"} of each.
void add_token_logprobs(JsonWriter& json, std::span<const TokenRecord> tokens, const Tokenizer& tokenizer);
// {"id": {"logprob", "rank", "decoded_token"}} of each, null of the first. Where ranks
// are not known, they are told of the likeliest alone.
void add_prompt_logprobs(JsonWriter& json, const PromptLogprobs& prompt, const Tokenizer& tokenizer);
// A stream's last events: its usage, if that was asked for, and [DONE].
std::string openai_end(const AnswerHead& head, std::string_view object, const OpenAiForm& form,
                       const Usage& usage);

}  // namespace nibble::api
