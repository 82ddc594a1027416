// Which drafts a step has.
#include <algorithm>

#include "sched/scheduler.h"

namespace nibble {

int Scheduler::decoding() const {
  return static_cast<int>(
      std::count_if(requests_.begin(), requests_.end(), [&](const Entry& entry) { return decodes(entry); }));
}

// How many drafts the step has room for: each of the `others` that decode too and come later has its row
// before.
int Scheduler::most_drafts(const Step& step, int others) const {
  const int rows = std::min(limits_.max_num_batched_tokens, limits_.max_drafts + 1);
  return std::min(rows - static_cast<int>(step.batch.tokens.size()),
                  limits_.max_logit_rows - static_cast<int>(step.batch.logit_rows.size())) -
         others - 1;
}

// Whether the running step's results tell where the next one goes on, or what it drafts.
bool Scheduler::awaits_drafts() const {
  if (limits_.max_drafts == 0) return false;
  const std::vector<BatchSequence>& running = steps_[first_].batch.sequences;
  if (std::any_of(running.begin(), running.end(),
                  [](const BatchSequence& sequence) { return sequence.draft_count > 0; }))
    return true;
  if (most_drafts(steps_[1 - first_], decoding() - 1) <= 0) return false;
  return std::any_of(requests_.begin(), requests_.end(), [&](const Entry& entry) {
    const TokenConstraint* const constraint = entry.constrained.constraint();
    return decodes(entry) && entry.drafts.may_come(entry.request.prediction != nullptr ||
                                                   (constraint != nullptr && constraint->may_draft()));
  });
}

// Of a sequence that decodes, for which no other one makes room.
int Scheduler::draft(Entry& entry, const Step& step, int others) {
  if (limits_.max_drafts == 0) return 0;
  if (planned_ > 0) {  // ahead: none may come
    entry.drafts.rest();
    return 0;
  }
  const Running& state = std::get<Running>(entry.state);
  int most = std::min({most_drafts(step, others), room_of_owner(step, entry) - others - 1,
                       most_stored(entry) - state.planned - 1});
  if (limits_.draft_border > 0)
    most = std::min(most, limits_.draft_border - 1 - (state.planned + 1) % limits_.draft_border);
  if (most <= 0) return 0;
  for (const int group : {full_pages, window_pages}) {
    if (group == window_pages && !pages_.has_windows()) continue;
    const PageCache& cache = pages_of(entry);
    if (cache.missing(state.pages, group, state.planned + 1 + most) + running_beside(entry) <=
        cache.available(group))
      continue;
    const int pages = static_cast<int>(state.pages.tables()[static_cast<std::size_t>(group)].size());
    most = std::min(most, pages * pages_.page_size() - state.planned - 1);
  }
  const std::vector<TokenId>* prediction = entry.request.prediction.get();
  return entry.drafts.guess(
      {.tokens = entry.tokens,
       .prompt = static_cast<std::size_t>(entry.prompt),
       .constraint = entry.constrained.constraint(),
       .prediction = prediction == nullptr ? std::span<const TokenId>() : std::span(*prediction),
       .ends = entry.request.sampling.stop_ids},
      most);
}

}  // namespace nibble
