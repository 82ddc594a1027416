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

LogitChanges logit_changes_of(const BatchSequence& sequence, int drafts) {
  const SamplingParams& asked = *sequence.sampling;
  const bool may_end = static_cast<int>(sequence.answer.size()) + drafts >= asked.min_tokens;
  return {.bias = asked.logit_bias,
          .repetition_penalty = asked.repetition_penalty,
          .frequency_penalty = asked.frequency_penalty,
          .presence_penalty = asked.presence_penalty,
          .prompt = sequence.prompt,
          .answer = sequence.answer,
          .banned = may_end ? std::span<const TokenId>() : asked.stop_ids,
          .mask = sequence.mask(drafts)};
}

SampleParams sample_params_of(const BatchSequence& sequence, int drafts) {
  const SamplingParams& asked = *sequence.sampling;
  const int position = sequence.first_position + sequence.row_count - sequence.draft_count + drafts;
  return {.temperature = asked.temperature,
          .top_k = asked.top_k,
          .top_p = asked.top_p,
          .min_p = asked.min_p,
          .seed = asked.seed,
          .choice = asked.choice,
          .position = static_cast<std::uint32_t>(position)};
}

RowSampler::RowSampler(std::int64_t vocabulary) : vocabulary_(static_cast<std::size_t>(vocabulary)) {
  sampling_.reserve(vocabulary_);
  changes_.reserve(vocabulary_);
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

// The log-probability of the prompt's next token, the `target`th of the sequence's, and what stands beside
// it.
void RowSampler::score(const BatchSequence& sequence, const LogitRow& row, std::span<const float> logits,
                       const RowStatistics& statistics, std::size_t target) {
  const std::size_t top = static_cast<std::size_t>(sequence.sampling->prompt_top_logprobs);
  fill_top(logits, statistics, sequence.target_top.subspan(target * top, top));
  if (!sequence.target_ranks.empty()) sequence.target_ranks[target] = rank_of(logits, row.target);
  sequence.target_logprobs[target] = logprob(logits, statistics, row.target);
}

TokenId RowSampler::choose(std::span<const float> logits, TokenId likeliest, const LogitChanges& changes,
                           const SampleParams& params) {
  if (changes.none()) return nibble::sample(logits, likeliest, params, sampling_);
  if (changes.none_but_mask()) {
    const std::span<const float> few = few_allowed_logits(logits, changes.mask, changes_);
    if (!few.empty())
      return allowed_token(changes.mask, nibble::sample(few, likeliest_token(few), params, sampling_));
  }
  const std::span<const float> changed = change_logits(logits, changes, changes_);
  return nibble::sample(changed, likeliest_token(changed), params, sampling_);
}

TokenLogprob RowSampler::choose_behind(int drafts, const BatchSequence& sequence,
                                       std::span<const float> logits, const RowStatistics& statistics) {
  const LogitChanges changes = logit_changes_of(sequence, drafts);
  TokenLogprob chosen{.id =
                          choose(logits, statistics.likeliest, changes, sample_params_of(sequence, drafts))};
  const std::span<TokenLogprob> top = sequence.top_behind(drafts);
  if (!sequence.sampling->constrained_logprobs || changes.mask.empty()) {
    chosen.logprob = logprob(logits, statistics, chosen.id);
    fill_top(logits, statistics, top);
    return chosen;
  }
  const std::span<const float> allowed = change_logits(logits, {.mask = changes.mask}, changes_);
  const RowStatistics of_allowed = row_statistics(allowed);
  chosen.logprob = logprob(allowed, of_allowed, chosen.id);
  fill_top(allowed, of_allowed, top);
  for (TokenLogprob& entry : top) {
    if (allowed[static_cast<std::size_t>(entry.id)] == masked_logit) entry.id = -1;
  }
  return chosen;
}

StepResult RowSampler::sample(const Batch& batch, const BatchSequence& sequence, const float* all_logits) {
  StepResult result;
  std::size_t targets = 0;
  const int first_sampled =
      sequence.samples ? sequence.logit_count - 1 - sequence.draft_count : sequence.logit_count;
  for (int i = 0; i < sequence.logit_count; ++i) {
    const LogitRow& wanted = batch.logit_rows[static_cast<std::size_t>(sequence.logit_begin + i)];
    const std::span<const float> logits(all_logits + static_cast<std::size_t>(i) * vocabulary_, vocabulary_);
    const RowStatistics statistics = row_statistics(logits);
    const int drafts = i - first_sampled;
    // Behind a draft it is the next step's matter, which then begins with this row.
    if (!statistics.finite && drafts > 0) break;
    if (!statistics.finite) return {.finite = false};
    if (wanted.target >= 0) score(sequence, wanted, logits, statistics, targets++);
    if (drafts < 0) continue;
    const TokenLogprob chosen = choose_behind(drafts, sequence, logits, statistics);
    if (drafts == 0) {
      result.token = chosen.id;
      result.logprob = chosen.logprob;
    } else {
      sequence.behind_drafts[static_cast<std::size_t>(drafts) - 1] = chosen;
      result.accepted = drafts;
    }
    const std::size_t next = static_cast<std::size_t>(wanted.row) + 1;
    if (drafts == sequence.draft_count || batch.tokens[next] != chosen.id) break;
  }
  return result;
}

}  // namespace nibble
