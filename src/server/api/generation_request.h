// What a client asks of an endpoint that generates, read from its JSON and checked: every value
// is in its range, and what this server does not do is refused by name. Nothing here knows the model beyond
// the size of its vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/token_id.h"
#include "grammar/grammar.h"
#include "server/api/api_error.h"
#include "server/api/response_options.h"
#include "text/conversation.h"

namespace nibble::api {

enum class Endpoint : std::uint8_t { chat, completions, responses, messages };

inline constexpr int most_choices = 128;
inline constexpr int most_top_logprobs = 20;
inline constexpr int default_completion_tokens = 16;  // of /v1/completions without max_tokens

// What the client set; the rest is the server's default.
struct Sampling {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;  // 0: all
  std::optional<std::int64_t> seed;
  std::optional<int> max_tokens;
  int min_tokens = 0;
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<TokenBias> logit_bias;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  std::vector<TokenId> allowed_token_ids;  // empty: all
  std::vector<std::string> bad_words;
  bool ignore_eos = false;
  bool constrained_logprobs = false;  // of the tokens that the format allows
  int logprobs = -1;                  // likeliest tokens beside the chosen one; -1: not even that one's
};

// How a text becomes tokens where no template makes the prompt.
struct TextTokens {
  bool add_special = true;     // those that the tokenizer's file puts around a text
  bool parse_special = false;  // control tokens spelled in the text count as such
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

// The tools that an answer may call, and whether it may, must or must not.
struct ToolUse {
  enum class Choice : std::uint8_t { automatic, none, required, named };
  // OpenAI's array of {"type":"function","function":{...}}, whichever endpoint's form they came in.
  std::optional<JsonValue> tools;
  std::optional<JsonDocument> own;  // what `tools` looks into where the body has another form
  Choice choice = Choice::automatic;
  std::vector<std::string> allowed;  // the only ones that may be called; empty: all
  std::vector<std::string> strict;   // those whose arguments always fit their schema
  bool parallel = true;              // several calls in one answer
};

// What the text of the answer is to be.
struct TextFormat {
  enum class Kind : std::uint8_t { text, json_object, json_schema, regex, choice, grammar };
  Kind kind = Kind::text;
  std::string name;
  std::optional<JsonValue> schema;
  bool strict = false;
  std::string field;                        // where it stands, for errors
  std::optional<JsonDocument> text_schema;  // of a schema that came as a text: what it looks into
  std::string pattern;                      // a regular expression, or a grammar
  std::vector<std::string> choices;
  JsonWhitespace whitespace = JsonWhitespace::flexible;  // of an answer in JSON
};

// The input of /v1/responses where it refers to items of earlier responses.
struct ResponseInput {
  std::optional<JsonValue> value;     // as it was sent
  std::vector<std::string> referred;  // ids of those items
  std::vector<JsonDocument> sources;  // the responses that have them in their output
};

struct GenerationRequest {
  Endpoint endpoint = Endpoint::chat;
  std::string model;                        // empty: the served one
  std::optional<std::string> instructions;  // before all messages
  std::vector<Message> messages;            // of all but completions
  ToolUse tool_use;
  TextFormat format;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::optional<std::string> chat_template;  // the client's own
  std::string reasoning_effort;              // empty: the template's default
  std::optional<JsonValue> chat_template_kwargs;
  std::vector<Prompt> prompts;  // of completions, at least one
  TextTokens text_tokens;
  bool echo = false;
  bool shows_special_tokens = false;
  int prompt_logprobs = -1;  // likeliest tokens beside each of the prompt's; -1: nothing of the prompt
  int n = 1;
  bool stream = false;
  bool has_stream_options = false;
  bool continuous_usage = false;  // with include_usage: what was used so far, in every chunk
  bool include_usage = false;     // one more chunk at the stream's end
  bool return_token_ids = false;
  bool include_reasoning = true;
  std::string cache_salt;
  std::optional<std::string> prediction;  // what the answer likely is
  Sampling sampling;
  ResponseOptions response;
  ResponseInput response_input;
  std::vector<std::string> ignored;  // fields that no one here knows, in order

  JsonDocument body;  // what the views above look into
};

// `body` is the request's bytes.
std::variant<GenerationRequest, ApiError> parse_generation_request(Endpoint endpoint, std::string body,
                                                                   TokenId vocabulary);

}  // namespace nibble::api
