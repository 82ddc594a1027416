// Which rows a step has.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler.h"

namespace nibble {

void Scheduler::fill(Step& step, Time now) {
  if (!limits_.prompts_apart) return fill_with_kind(step, now);
  // Answers once more: a request that a step of prompts admits may find its whole prompt in the cache.
  for (const bool of_prompts : {prompts_turn_, !prompts_turn_, false}) {
    step.batch.of_prompts = of_prompts;
    fill_with_kind(step, now);
    if (step.batch.empty()) continue;
    prompts_turn_ = !of_prompts;
    return;
  }
}

// The oldest that runs has its rows before one is admitted that would need the same window pages.
void Scheduler::give_turn_to_oldest() {
  for (const Entry& entry : requests_) {
    const Running* state = std::get_if<Running>(&entry.state);
    if (state == nullptr) continue;
    prompts_turn_ = state->planned < entry.prompt;
    return;
  }
}

void Scheduler::fill_with_kind(Step& step, Time now) {
  const std::size_t index = static_cast<std::size_t>(&step - steps_.data());
  if (!step.batch.of_prompts && !plan_decoding(step)) return;
  bool admits = !limits_.prompts_apart || step.batch.of_prompts;
  for (auto entry = requests_.begin(); entry != requests_.end(); ++entry) {
    if (entry->slot[index] >= 0 || !goes_on(*entry)) continue;
    if (std::holds_alternative<Queued>(entry->state)) {
      if (static_cast<int>(step.batch.tokens.size()) == limits_.max_num_batched_tokens) return;
      if (!admits || begins_like_another(*entry)) continue;
      admits = admit(*entry, now);
      if (!admits) continue;
    }
    if (has_kind(*entry, step) && !plan_rows(step, entry)) return;
  }
}

// False when the step is full.
bool Scheduler::plan_decoding(Step& step) {
  int others = limits_.max_drafts > 0 ? decoding() : 0;
  for (auto entry = requests_.begin(); entry != requests_.end(); ++entry) {
    if (!decodes(*entry)) continue;
    // Fewer rows than sequences: the oldest go first, the others wait for the next step.
    if (!plan_rows(step, entry, draft(*entry, step, --others))) return false;
  }
  return true;
}

bool Scheduler::has_kind(const Entry& entry, const Step& step) const {
  if (!limits_.prompts_apart) return true;
  return (std::get<Running>(entry.state).planned < entry.prompt) == step.batch.of_prompts;
}

// Of rows up to `end`, how far those of the first one's kind go.
int Scheduler::end_of_kind(const Entry& entry, int end) const {
  const bool of_prompt = std::get<Running>(entry.state).planned < entry.prompt;
  return limits_.prompts_apart && of_prompt ? std::min(end, entry.prompt) : end;
}

// Rows whose window pages can be had, while each other sequence is left one.
int Scheduler::room_in_window(const Entry& entry, int rows) const {
  if (!pages_.has_windows()) return rows;
  const Running& state = std::get<Running>(entry.state);
  const int running = running_beside(entry);
  const int spare = pages_of(entry).available(window_pages) - (running > 1 && !decodes(entry) ? running : 0);
  const int pages = static_cast<int>(state.pages.tables()[window_pages].size()) + std::max(spare, 0);
  return std::min(rows, pages * pages_.page_size() - state.planned);
}

int Scheduler::room_of_owner(const Step& step, const Entry& entry) const {
  return limits_.owner_rows - step.rows[static_cast<std::size_t>(entry.owner)];
}

// False when the step is full.
bool Scheduler::plan_rows(Step& step, Entries::iterator entry, int drafts) {
  const Running& state = std::get<Running>(entry->state);
  const int room = limits_.max_num_batched_tokens - static_cast<int>(step.batch.tokens.size());
  const int logit_room = limits_.max_logit_rows - static_cast<int>(step.batch.logit_rows.size());
  if (room <= 0 || logit_room <= 0) return false;
  const int of_owner = room_of_owner(step, *entry);
  if (of_owner <= 0) return true;
  const int end = end_of_kind(*entry, token_count(*entry) + drafts);
  int rows = std::min({room, of_owner, end - state.planned});
  if (entry->scores) rows = std::min(rows, logit_room);
  rows = room_in_window(*entry, rows);
  NIBBLE_CHECK(drafts == 0 || rows == 1 + drafts, "room for drafts was counted");
  if (rows > 0) add_sequence(step, entry, rows, drafts);
  return true;
}

void Scheduler::add_sequence(Step& step, Entries::iterator entry, int rows, int drafts) {
  Running& state = std::get<Running>(entry->state);
  Batch& batch = step.batch;
  const std::size_t index = static_cast<std::size_t>(&step - steps_.data());
  const int first = state.planned, end = first + rows;
  const std::size_t tops = static_cast<std::size_t>(std::max(0, entry->request.sampling.logprobs));
  NIBBLE_CHECK(pages_of(*entry).grow(state.pages, end, end), "pages for these rows were counted");
  plan_snapshots(*entry, index, first, end);
  BatchSequence sequence{
      .request = entry->request.id,
      .owner = entry->owner,
      .row_begin = static_cast<int>(batch.tokens.size()),
      .row_count = rows,
      .draft_count = drafts,
      .first_position = first,
      .pages = state.pages.tables(),
      .state = state.pages.state(),
      .resumes = state.pages.resumes(),
      .snapshots = entry->snapshots[index],
      .sampling = &entry->request.sampling,
      .prompt = entry->prompt_tokens(),
      .answer = entry->answer(),
      .top = std::span(entry->top[index]).first(tops * (static_cast<std::size_t>(drafts) + 1)),
      .behind_drafts = std::span(entry->behind_drafts).first(static_cast<std::size_t>(drafts)),
      .logit_begin = static_cast<int>(batch.logit_rows.size()),
      .prefill = first < entry->prompt,
      .samples = end - drafts == token_count(*entry) && entry->request.sampling.max_tokens > 0};
  for (int position = first; position < end - drafts; ++position) {
    const std::size_t at = static_cast<std::size_t>(position);
    batch.tokens.push_back(at < entry->tokens.size() ? entry->tokens[at] : -1);
  }
  if (sequence.samples && entry->constrained.constraint() != nullptr) {
    entry->constrained.set_drafts(entry->drafts.tokens().first(static_cast<std::size_t>(drafts)));
    sequence.constrained = &entry->constrained;
  }
  if (drafts > 0) {
    const int border = limits_.draft_border;
    NIBBLE_CHECK(sequence.state < 0 || (border > 0 && end / border == (first + 1) / border),
                 "a state that a draft brought to a border could not be taken back");
    const std::span<const TokenId> guessed = entry->drafts.tokens();
    batch.tokens.insert(batch.tokens.end(), guessed.begin(), guessed.end());
    totals_.drafted_tokens += guessed.size();
  }
  if (batch.tokens.back() < 0) sequence.awaits = entry->slot[first_];
  add_logit_rows(batch, *entry, sequence);
  totals_.recomputed_tokens +=
      static_cast<std::uint64_t>(std::max(0, std::min(end, entry->computed) - first));
  totals_.snapshots_resumed += sequence.resumes >= 0;
  pages_of(*entry).resumed(state.pages);
  step.rows[static_cast<std::size_t>(entry->owner)] += rows;
  entry->slot[index] = static_cast<int>(batch.sequences.size());
  state.planned = end;
  batch.sequences.push_back(sequence);
  step.entries.push_back(entry);
}

void Scheduler::add_logit_rows(Batch& batch, Entry& entry, BatchSequence& sequence) {
  int targets = 0;
  for (int i = 0; i < sequence.row_count; ++i) {
    const int position = sequence.first_position + i;
    const bool has_target = entry.scores && position + 1 < entry.prompt;
    const bool sampled = sequence.samples && i >= sequence.row_count - 1 - sequence.draft_count;
    if (!has_target && !sampled) continue;
    targets += has_target;
    batch.logit_rows.push_back(
        {.row = sequence.row_begin + i,
         .target = has_target ? entry.tokens[static_cast<std::size_t>(position) + 1] : -1});
  }
  sequence.logit_count = static_cast<int>(batch.logit_rows.size()) - sequence.logit_begin;
  if (targets == 0) return;
  // The row at position p tells of prompt[p + 1].
  const std::size_t first_target = static_cast<std::size_t>(sequence.first_position) + 1;
  const std::size_t count = static_cast<std::size_t>(targets);
  const std::size_t top = static_cast<std::size_t>(entry.request.sampling.prompt_top_logprobs);
  sequence.target_logprobs = std::span(entry.prompt_logprobs).subspan(first_target, count);
  if (!entry.prompt_ranks.empty())
    sequence.target_ranks = std::span(entry.prompt_ranks).subspan(first_target, count);
  sequence.target_top = std::span(entry.prompt_top).subspan(first_target * top, count * top);
}

}  // namespace nibble
