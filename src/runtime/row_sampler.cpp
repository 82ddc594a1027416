#include "runtime/row_sampler.h"

#include <algorithm>
#include <vector>

namespace nibble {

namespace {

// How many tokens are likelier, and 1.
int rank_of(std::span<const float> logits, TokenId token) {
  const float own = logits[static_cast<std::size_t>(token)];
  return 1 + static_cast<int>(std::ranges::count_if(logits, [own](float logit) { return logit > own; }));
}

}  // namespace

LogitChanges logit_changes_of(const BatchSequence& sequence) {
  const SamplingParams& asked = *sequence.sampling;
  const bool may_end = static_cast<int>(sequence.answer.size()) >= asked.min_tokens;
  return {.bias = asked.logit_bias,
          .repetition_penalty = asked.repetition_penalty,
          .frequency_penalty = asked.frequency_penalty,
          .presence_penalty = asked.presence_penalty,
          .prompt = sequence.prompt,
          .answer = sequence.answer,
          .banned = may_end ? std::span<const TokenId>() : asked.stop_ids,
          .mask = sequence.mask()};
}

SampleParams sample_params_of(const BatchSequence& sequence) {
  const SamplingParams& asked = *sequence.sampling;
  return {.temperature = asked.temperature,
          .top_k = asked.top_k,
          .top_p = asked.top_p,
          .min_p = asked.min_p,
          .seed = asked.seed,
          .choice = asked.choice,
          .position = static_cast<std::uint32_t>(sequence.first_position + sequence.row_count)};
}

RowSampler::RowSampler(std::int64_t vocabulary) : vocabulary_(static_cast<std::size_t>(vocabulary)) {
  sampling_.reserve(vocabulary_);
  changes_.reserve(vocabulary_);
}

TokenId RowSampler::choose(const BatchSequence& sequence, std::span<const float> logits, TokenId first) {
  const LogitChanges changes = logit_changes_of(sequence);
  if (!changes.none()) {
    logits = change_logits(logits, changes, changes_);
    first = likeliest_token(logits);
  }
  return nibble::sample(logits, first, sample_params_of(sequence), sampling_);
}

void RowSampler::fill_top(std::span<const float> logits, const RowStatistics& statistics,
                          std::span<TokenLogprob> top) {
  if (top.empty()) return;
  std::vector<TokenId>& ids = sampling_.candidates;
  likeliest(logits, static_cast<int>(top.size()), ids);
  std::transform(ids.begin(), ids.end(), top.begin(), [&](TokenId id) {
    return TokenLogprob{id, logprob(logits, statistics, id)};
  });
}

StepResult RowSampler::sample(const Batch& batch, const BatchSequence& sequence, const float* all_logits) {
  StepResult result;
  std::size_t targets = 0;
  for (int i = 0; i < sequence.logit_count; ++i) {
    const LogitRow& wanted = batch.logit_rows[static_cast<std::size_t>(sequence.logit_begin + i)];
    const std::span<const float> logits(all_logits + static_cast<std::size_t>(i) * vocabulary_, vocabulary_);
    const RowStatistics statistics = row_statistics(logits);
    if (!statistics.finite) return {.finite = false};
    if (wanted.target >= 0) {
      const std::size_t top = static_cast<std::size_t>(sequence.sampling->prompt_top_logprobs);
      fill_top(logits, statistics, sequence.target_top.subspan(targets * top, top));
      if (!sequence.target_ranks.empty()) sequence.target_ranks[targets] = rank_of(logits, wanted.target);
      sequence.target_logprobs[targets++] = logprob(logits, statistics, wanted.target);
    }
    if (!sequence.samples || i + 1 < sequence.logit_count) continue;
    result.token = choose(sequence, logits, statistics.likeliest);
    if (sequence.sampling->constrained_logprobs && !sequence.mask().empty()) {
      const std::span<const float> allowed = change_logits(logits, {.mask = sequence.mask()}, changes_);
      const RowStatistics of_allowed = row_statistics(allowed);
      result.logprob = logprob(allowed, of_allowed, result.token);
      fill_top(allowed, of_allowed, sequence.top);
      for (TokenLogprob& entry : sequence.top) {
        if (allowed[static_cast<std::size_t>(entry.id)] == masked_logit) entry.id = -1;
      }
      continue;
    }
    result.logprob = logprob(logits, statistics, result.token);
    fill_top(logits, statistics, sequence.top);
  }
  return result;
}

}  // namespace nibble
