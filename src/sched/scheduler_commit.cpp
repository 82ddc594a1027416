// What a step's results do to its requests.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler.h"

namespace nibble {

void Scheduler::commit(std::span<const StepResult> results, std::vector<Event>& events) {
  NIBBLE_CHECK(planned_ > 0, "a step was planned");
  Step& step = steps_[first_];
  NIBBLE_CHECK(results.size() == step.entries.size(), "one result a planned sequence");
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (step.entries[i] == requests_.end()) continue;  // ended once the step had begun
    commit_sequence(step.entries[i], step.batch.sequences[i], results[i], events);
  }
  step.batch.clear();
  step.entries.clear();
  first_ = 1 - first_;
  if (--planned_ == 0) return;
  drop_ended(first_);
  const Batch& ahead = steps_[first_].batch;
  if (!ahead.empty()) return;
  planned_ = 0;
  prompts_turn_ = ahead.of_prompts;  // it had no step
}

void Scheduler::commit_sequence(Entries::iterator entry, const BatchSequence& planned,
                                const StepResult& result, std::vector<Event>& events) {
  entry->slot[first_] = -1;
  if (entry->ending != Ending::none) return end_now(entry, events);
  Event event{.request = entry->request.id};
  if (!result.finite) {
    // Whatever made it, nobody else shall read it.
    pages_of(*entry).distrust(std::get<Running>(entry->state).pages);
    event.finish = FinishReason::error;
    event.error = "the model gave a logit that is not a number; the request cannot go on";
  } else {
    store(*entry, planned.row_count - planned.draft_count);
    if (planned.samples) return commit_tokens(entry, planned, result, events);
    if (entry->request.sampling.max_tokens > 0 || entry->prompt_logprobs_ready < entry->prompt) return;
    event.finish = FinishReason::length;  // nothing but the prompt was asked for
    tell_of_prompt(*entry, event);
  }
  tell(*entry, std::move(event), events);
  finish(entry);
}

// Drafts that hold are what as many steps of one row would have given; the others' rows are as if they had
// never been, and later ones are written over them.
void Scheduler::commit_tokens(Entries::iterator entry, const BatchSequence& planned, const StepResult& result,
                              std::vector<Event>& events) {
  const std::size_t tops = static_cast<std::size_t>(std::max(0, entry->request.sampling.logprobs));
  totals_.accepted_drafts += static_cast<std::uint64_t>(result.accepted);
  for (int i = 0; i <= result.accepted; ++i) {
    const std::size_t at = static_cast<std::size_t>(i);
    if (i > 0) store(*entry, 1);
    Event event{.request = entry->request.id, .top = planned.top.subspan(at * tops, tops)};
    const TokenLogprob first{.id = result.token, .logprob = result.logprob};
    take_token(*entry, i == 0 ? first : planned.behind_drafts[at - 1], event);
    tell_of_prompt(*entry, event);
    event.predicted = i < result.accepted && entry->drafts.of_prediction();
    if (i == result.accepted && planned.draft_count > 0 && entry->drafts.of_prediction())
      event.failed_predictions = planned.draft_count - result.accepted;
    const bool ends = event.finish != FinishReason::none;
    tell(*entry, std::move(event), events);
    if (ends) return finish(entry);
  }
  if (planned.draft_count == 0) return;
  Running& state = std::get<Running>(entry->state);
  state.planned = state.stored;
  entry->drafts.learn(result.accepted);
}

// With the first event of a request that asked for it.
void Scheduler::tell_of_prompt(Entry& entry, Event& event) {
  if (!entry.scores) return;
  event.prompt_logprobs = std::move(entry.prompt_logprobs);
  event.prompt_top = std::move(entry.prompt_top);
  event.prompt_ranks = std::move(entry.prompt_ranks);
  entry.scores = false;
}

void Scheduler::store(Entry& entry, int rows) {
  Running& state = std::get<Running>(entry.state);
  state.stored += rows;
  entry.computed = std::max(entry.computed, state.stored);
  entry.prompt_logprobs_ready = std::max(entry.prompt_logprobs_ready, std::min(state.stored, entry.prompt));
  pages_of(entry).store(state.pages, prefix_of(entry), served(entry, state.stored));
  pages_of(entry).leave_window(state.pages, state.stored);
}

void Scheduler::take_token(Entry& entry, TokenLogprob chosen, Event& event) {
  const SamplingParams& sampling = entry.request.sampling;
  entry.tokens.push_back(chosen.id);
  add_hashes(entry);
  TokenConstraint* const constraint = entry.constrained.constraint();
  if (constraint != nullptr) constraint->accept(chosen.id);
  event.token = chosen.id;
  event.logprob = chosen.logprob;
  if (std::find(sampling.stop_ids.begin(), sampling.stop_ids.end(), chosen.id) != sampling.stop_ids.end()) {
    event.finish = constraint != nullptr && constraint->cut() ? FinishReason::cut : FinishReason::stop;
  } else if (entry.generated() == sampling.max_tokens) {
    event.finish = FinishReason::length;
  }
  const int slot = entry.slot[1 - first_];
  if (slot < 0) return;
  Batch& ahead = steps_[1 - first_].batch;
  BatchSequence& next = ahead.sequences[static_cast<std::size_t>(slot)];
  ahead.tokens[static_cast<std::size_t>(next.row_begin)] = chosen.id;
  next.answer = entry.answer();
  next.awaits = -1;
}

void Scheduler::tell(Entry& entry, Event event, std::vector<Event>& events) {
  if (!entry.first_event_sent) {
    event.cached_tokens = std::max(entry.cached_tokens, 0);
    event.begun = entry.begun;
  }
  entry.first_event_sent = true;
  events.push_back(std::move(event));
}

void Scheduler::finish(Entries::iterator entry) {
  if (std::holds_alternative<Running>(entry->state)) {
    --running_;
    --owners_[static_cast<std::size_t>(entry->owner)].running;
  }
  entry->state = Finished{};
  if (const int slot = entry->slot[1 - first_]; slot >= 0) {
    Step& ahead = steps_[1 - first_];
    ahead.entries[static_cast<std::size_t>(slot)] = requests_.end();
    if (ahead.begun) {
      ahead.batch.sequences[static_cast<std::size_t>(slot)] = {};
    } else {
      ++ahead.dropped;
    }
  }
  finished_.splice(finished_.end(), requests_, entry);
}

// Takes the rows of ended sequences out of a step that was planned ahead.
void Scheduler::drop_ended(std::size_t index) {
  Step& step = steps_[index];
  if (step.dropped == 0) return;
  Batch& batch = step.batch;
  std::size_t kept = 0, rows = 0, logits = 0;
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    if (step.entries[i] == requests_.end()) continue;
    BatchSequence sequence = batch.sequences[i];
    const int row_shift = sequence.row_begin - static_cast<int>(rows);
    for (int row = 0; row < sequence.row_count; ++row)
      batch.tokens[rows++] = batch.tokens[static_cast<std::size_t>(sequence.row_begin + row)];
    const std::size_t logit_begin = static_cast<std::size_t>(sequence.logit_begin);
    sequence.row_begin -= row_shift;
    sequence.logit_begin = static_cast<int>(logits);
    for (std::size_t l = 0; l < static_cast<std::size_t>(sequence.logit_count); ++l) {
      LogitRow wanted = batch.logit_rows[logit_begin + l];
      wanted.row -= row_shift;
      batch.logit_rows[logits++] = wanted;
    }
    step.entries[i]->slot[index] = static_cast<int>(kept);
    step.entries[kept] = step.entries[i];
    batch.sequences[kept++] = sequence;
  }
  step.entries.resize(kept);
  batch.sequences.resize(kept);
  batch.tokens.resize(rows);
  batch.logit_rows.resize(logits);
  step.dropped = 0;
}

void Scheduler::check() const {
  std::vector<std::vector<const SequencePages*>> held(owners_.size());
  int running = 0;
  for (const Entry& entry : requests_) {
    const Running* state = std::get_if<Running>(&entry.state);
    if (state == nullptr) continue;
    NIBBLE_CHECK(state->stored <= state->planned);
    NIBBLE_CHECK(planned_ > 0 || state->stored == state->planned,
                 "between steps all that was planned is stored");
    NIBBLE_CHECK(static_cast<int>(state->pages.tables()[full_pages].size()) >=
                 pages_.pages_for(std::max(state->planned, entry.prompt)));
    held[static_cast<std::size_t>(entry.owner)].push_back(&state->pages);
    ++running;
  }
  NIBBLE_CHECK(running == running_, "running sequences are counted");
  for (std::size_t owner = 0; owner < owners_.size(); ++owner) {
    NIBBLE_CHECK(static_cast<int>(held[owner].size()) == owners_[owner].running);
    owners_[owner].pages->check(held[owner]);
  }
}

}  // namespace nibble
