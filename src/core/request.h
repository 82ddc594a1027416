// The plain structs that travel between server, engine, scheduler and runtime.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "core/token_constraint.h"

namespace nibble {

struct SamplingParams {
  int max_tokens = 128;
  float temperature = 1.0f;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  // What changes logits before a token is chosen (ops/sample/logit_changes.h); reported log-probabilities
  // stay those of the logits as they were.
  float repetition_penalty = 1.0f;  // of tokens in prompt or answer; above 0
  float frequency_penalty = 0.0f;   // of tokens in the answer, for each time
  float presence_penalty = 0.0f;    // of tokens in the answer, once
  std::vector<TokenBias> logit_bias;
  int min_tokens = 0;  // none of stop_ids is chosen before the answer has as many
  // A draw depends on (seed, choice, position) alone, never on what else runs.
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::vector<TokenId> stop_ids;  // generation ends on one of these, which is counted but not shown
  int logprobs = -1;              // likeliest tokens reported a step; -1: not even the chosen one's
  // They are of the tokens that the constraint allows: the others weigh nothing and are not among the
  // likeliest.
  bool constrained_logprobs = false;
  bool prompt_logprobs = false;
  bool prompt_ranks = false;    // with prompt_logprobs
  int prompt_top_logprobs = 0;  // with prompt_logprobs: likeliest tokens reported beside each of the prompt's

  bool penalizes() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

using RequestId = std::uint64_t;

struct Request {
  RequestId id = 0;
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  // Keys and values are shared only among requests of equal salt.
  std::string cache_salt;
  // When the request ends with `timeout`, on the clock of base/clock.h; nothing: never.
  std::optional<std::chrono::nanoseconds> deadline;
  // What its answer may be, and no other request's; null: anything.
  std::shared_ptr<TokenConstraint> constraint;
  // What its answer likely is: a step may check several tokens of it. It changes no token; null: nothing.
  std::shared_ptr<const std::vector<TokenId>> prediction;
};

// cut: one of stop_ids came because the constraint left nothing else, and the answer is not whole.
enum class FinishReason : std::uint8_t { none, stop, length, cut, cancelled, error, timeout };
// Whether the last token only ends the answer and is no part of its text.
constexpr bool ends_unshown(FinishReason reason) {
  return reason == FinishReason::stop || reason == FinishReason::cut;
}
// Whether more would have come.
constexpr bool leaves_off(FinishReason reason) {
  return reason == FinishReason::length || reason == FinishReason::cut;
}
// As users read it: both ways of leaving off are "length".
std::string_view finish_reason_name(FinishReason reason);

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;
};

// One token of one request, or its end.
struct Event {
  RequestId request = 0;
  TokenId token = -1;                 // -1: none (the request ended without one)
  float logprob = 0;                  // natural logarithm over the whole vocabulary, before any filter
  std::span<const TokenLogprob> top;  // in the scheduler, until the next step; id -1: there are no more
  FinishReason finish = FinishReason::none;
  bool predicted = false;      // the token was checked as one of the prediction's
  int failed_predictions = 0;  // of its tokens, that were checked in vain beside this one
  // With the first event: prompt tokens whose keys and values were not computed for this request. Whole
  // pages, and fewer than the prompt has.
  int cached_tokens = 0;
  // With the first event: when the request's first rows were planned, on the clock of base/clock.h; nothing:
  // it ended in the queue.
  std::optional<std::chrono::nanoseconds> begun;
  // With the first event of a request that asked for them: entry i is the log-probability of prompt[i]
  // after prompt[0..i); entry 0 is 0.
  std::vector<float> prompt_logprobs;
  std::vector<TokenLogprob>
      prompt_top;                 // [prompt][prompt_top_logprobs], with them; the first row means nothing
  std::vector<int> prompt_ranks;  // [prompt], likewise: 1 and how many tokens are likelier
  std::string error;              // why, when finish is error or timeout
};

}  // namespace nibble
