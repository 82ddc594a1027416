#include "engine/self_test.h"

#include <utility>

namespace nibble {

Request SelfTest::begin() {
  answer_ = {};
  Request request{
      .id = id,
      .sampling = {.max_tokens = answer_tokens, .temperature = 0, .logprobs = 0, .prompt_logprobs = true}};
  // Ids from all of the vocabulary: rows of the embedding that are far apart.
  for (int i = 0; i < prompt_tokens; ++i)
    request.prompt.push_back(
        static_cast<TokenId>(static_cast<std::int64_t>(vocabulary_) * i / prompt_tokens));
  return request;
}

Status SelfTest::take(const Event& event) {
  answer_.logprobs.insert(answer_.logprobs.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  if (event.token >= 0) {
    answer_.tokens.push_back(event.token);
    answer_.logprobs.push_back(event.logprob);
  }
  if (event.finish == FinishReason::none) return {};
  if (event.finish != FinishReason::length)
    return internal_error("the self-test could not run: " +
                          (event.error.empty() ? "it was ended" : event.error));
  if (!first_) first_ = answer_;
  if (!(answer_ == *first_)) {
    return internal_error(
        "the self-test's answer has other bits than after the start, so this machine no longer computes what "
        "it did; run nibble doctor");
  }
  ++runs_;
  return {};
}

}  // namespace nibble
