// What a request asks to be done to a row of logits before a token is chosen from it. In this order, which is
// vLLM's:
//   1. logit_bias                logit += bias
//   2. repetition_penalty r      of each token in prompt or answer: logit > 0 ? logit / r : logit * r
//   3. frequency_penalty f       logit -= f * (times the token stands in the answer)
//   4. presence_penalty p        logit -= p, if it stands there at all
//   5. banned tokens             the lowest logit there is
//   6. a mask's other tokens     below the lowest: none of them is chosen while one of the mask's is there,
//                                even where all of those are banned
// in single precision, each operation rounded. What is chosen from stays within +-largest_changed_logit, so
// that no penalty, however small or large, makes a NaN or an infinity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token_id.h"

namespace nibble {

inline constexpr float largest_changed_logit = 1e30f;
// Of a token that a mask leaves out: a number, as samplers want, and no weight is left of it at any
// temperature beside a logit that stays within the above.
inline constexpr float masked_logit = -3.4e38f;

struct LogitChanges {
  std::span<const TokenBias> bias;  // ids of the vocabulary; of one named twice, both count
  float repetition_penalty = 1.0f;  // above 0
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::span<const TokenId> prompt, answer;  // what the penalties look at; ids of the vocabulary
  std::span<const TokenId> banned;          // ids outside the vocabulary are passed over
  // A bit an id (core/token_constraint.h), at least one of them set; empty: every token may come.
  std::span<const std::uint32_t> mask;

  bool penalizes() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
  bool none() const { return mask.empty() && none_but_mask(); }
  bool none_but_mask() const { return bias.empty() && banned.empty() && !penalizes(); }
};

// Room that a worker keeps: once it is reserved for the vocabulary, changing a row allocates nothing.
struct LogitChangeRoom {
  std::vector<float> changed;         // [vocabulary] or more
  std::vector<std::uint32_t> counts;  // [vocabulary], all 0 between calls

  void reserve(std::size_t vocabulary) {
    changed.reserve(vocabulary);
    counts.resize(vocabulary);
  }
  std::span<float> row(std::size_t vocabulary) {
    if (changed.size() < vocabulary) changed.resize(vocabulary);
    return std::span(changed).first(vocabulary);
  }
};

// The changed row, in `room` until the next call. The cost beside a copy of the row is linear in what the
// changes name, not in the vocabulary.
std::span<const float> change_logits(std::span<const float> logits, const LogitChanges& changes,
                                     LogitChangeRoom& room);

// Where nothing but a mask changes the row, and that has few tokens: their logits in the changed row, in
// ascending order of ids, in `room` until the next call; else nothing. What is chosen from them is what is
// chosen from the row, for the other tokens have no weight. Its id is that of the token at its place in the
// mask.
std::span<const float> few_allowed_logits(std::span<const float> logits, std::span<const std::uint32_t> mask,
                                          LogitChangeRoom& room);
TokenId allowed_token(std::span<const std::uint32_t> mask, TokenId place);

}  // namespace nibble
