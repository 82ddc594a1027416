#include "sched/scheduler.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace nibble {

Scheduler::Scheduler(const SchedulerLimits& limits, PagePool& pages) : limits_(limits), pages_(pages) {
  NIBBLE_CHECK(limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0 && limits.max_model_len > 0);
  NIBBLE_CHECK(limits.max_logit_rows >= limits.max_num_seqs, "every sequence may want a row of logits");
  batch_.tokens.reserve(static_cast<std::size_t>(limits.max_num_batched_tokens));
  batch_.logit_rows.reserve(static_cast<std::size_t>(limits.max_logit_rows));
  batch_.sequences.reserve(static_cast<std::size_t>(limits.max_num_seqs));
  planned_.reserve(static_cast<std::size_t>(limits.max_num_seqs));
}

// The last token of an answer is never fed back, so it needs no slot.
int Scheduler::pages_needed(const Request& request) const {
  const int prompt = static_cast<int>(request.prompt.size());
  return pages_.pages_for(prompt + std::max(0, request.sampling.max_tokens - 1));
}

Status Scheduler::submit(Request request) {
  const std::size_t prompt = request.prompt.size();
  const std::size_t context = static_cast<std::size_t>(limits_.max_model_len);
  if (prompt == 0) return invalid_argument("the prompt is empty; give at least one token");
  if (prompt > context || (prompt == context && request.sampling.max_tokens > 0)) {
    return invalid_argument("the prompt has " + std::to_string(prompt) + " tokens and the context holds " +
                            std::to_string(context) + "; shorten the prompt or raise --max-model-len");
  }
  request.sampling.max_tokens =
      std::clamp(request.sampling.max_tokens, 0, limits_.max_model_len - static_cast<int>(prompt));
  if (pages_needed(request) > pages_.page_count()) {
    return invalid_argument("the request needs " + std::to_string(pages_needed(request)) + " pages of " +
                            std::to_string(pages_.page_size()) + " tokens and the KV cache has " +
                            std::to_string(pages_.page_count()) + "; lower max_tokens");
  }
  Entry entry;
  Queued queued;
  queued.pages.reserve(pages_needed(request));
  entry.state = std::move(queued);
  if (request.sampling.logprobs > 0) entry.top.resize(static_cast<std::size_t>(request.sampling.logprobs));
  if (request.sampling.prompt_logprobs) {
    entry.prompt_logprobs.resize(prompt);
    entry.prompt_top.resize(prompt * static_cast<std::size_t>(request.sampling.prompt_top_logprobs));
  }
  if (request.sampling.penalizes() || request.sampling.min_tokens > 0)
    entry.answer.reserve(static_cast<std::size_t>(request.sampling.max_tokens));
  entry.request = std::move(request);
  requests_.push_back(std::move(entry));
  return {};
}

void Scheduler::cancel(RequestId id) {
  for (Entry& entry : requests_) {
    if (entry.request.id == id) entry.cancelled = true;
  }
}

std::size_t Scheduler::queued() const {
  return static_cast<std::size_t>(std::count_if(requests_.begin(), requests_.end(), [](const Entry& entry) {
    return std::holds_alternative<Queued>(entry.state);
  }));
}

const Batch& Scheduler::plan(std::vector<Event>& events) {
  batch_.clear();
  planned_.clear();
  finished_.clear();
  for (auto entry = requests_.begin(); entry != requests_.end();) {
    if (!entry->cancelled) {
      ++entry;
      continue;
    }
    events.push_back({.request = entry->request.id, .finish = FinishReason::cancelled});
    entry = requests_.erase(entry);
  }
  for (auto entry = requests_.begin(); entry != requests_.end(); ++entry) {
    if (!std::holds_alternative<Decoding>(entry->state)) continue;
    // Fewer rows than sequences: the oldest go first, the others wait for the next step.
    if (static_cast<int>(batch_.tokens.size()) == limits_.max_num_batched_tokens) break;
    plan_decode(*entry);
    planned_.push_back(entry);
  }
  for (auto entry = requests_.begin(); entry != requests_.end(); ++entry) {
    if (std::holds_alternative<Decoding>(entry->state)) continue;
    if (!plan_prefill(*entry)) break;
    planned_.push_back(entry);
  }
  return batch_;
}

void Scheduler::plan_decode(Entry& entry) {
  const Decoding& state = std::get<Decoding>(entry.state);
  const int position = static_cast<int>(entry.request.prompt.size()) + state.generated - 1;
  add_sequence(entry, state.pages.pages(), position, 1);
  batch_.tokens.push_back(state.last);
}

bool Scheduler::plan_prefill(Entry& entry) {
  const Request& request = entry.request;
  int room = limits_.max_num_batched_tokens - static_cast<int>(batch_.tokens.size());
  const int logit_room = limits_.max_logit_rows - static_cast<int>(batch_.logit_rows.size());
  if (request.sampling.prompt_logprobs) room = std::min(room, logit_room);
  if (room <= 0 || logit_room <= 0) return false;

  if (Queued* queued = std::get_if<Queued>(&entry.state)) {
    if (static_cast<int>(running()) == limits_.max_num_seqs) return false;
    if (!pages_.grow(queued->pages, pages_needed(request))) return false;
    PageLease pages = std::move(queued->pages);
    entry.state = Prefilling{.pages = std::move(pages)};
  }
  const Prefilling& state = std::get<Prefilling>(entry.state);
  const int rows = std::min(room, static_cast<int>(request.prompt.size()) - state.done);
  add_sequence(entry, state.pages.pages(), state.done, rows);
  const auto chunk = request.prompt.begin() + state.done;
  batch_.tokens.insert(batch_.tokens.end(), chunk, chunk + rows);
  return true;
}

void Scheduler::add_sequence(Entry& entry, std::span<const PageId> pages, int first_position, int rows) {
  const Request& request = entry.request;
  const int prompt = static_cast<int>(request.prompt.size());
  const int row_begin = static_cast<int>(batch_.tokens.size());
  const int end = first_position + rows;
  BatchSequence sequence{.request = request.id,
                         .row_begin = row_begin,
                         .row_count = rows,
                         .first_position = first_position,
                         .pages = pages,
                         .sampling = &request.sampling,
                         .prompt = request.prompt,
                         .answer = entry.answer,
                         .top = entry.top,
                         .logit_begin = static_cast<int>(batch_.logit_rows.size()),
                         .prefill = first_position < prompt,
                         .samples = end >= prompt && request.sampling.max_tokens > 0};
  int targets = 0;
  for (int i = 0; i < rows; ++i) {
    const int position = first_position + i;
    const bool has_target = request.sampling.prompt_logprobs && position + 1 < prompt;
    const bool sampled = sequence.samples && i == rows - 1;
    if (!has_target && !sampled) continue;
    targets += has_target;
    batch_.logit_rows.push_back(
        {.row = row_begin + i,
         .target = has_target ? request.prompt[static_cast<std::size_t>(position) + 1] : -1});
  }
  sequence.logit_count = static_cast<int>(batch_.logit_rows.size()) - sequence.logit_begin;
  // The row at position p tells of prompt[p + 1].
  if (targets > 0) {
    sequence.target_logprobs =
        std::span(entry.prompt_logprobs)
            .subspan(static_cast<std::size_t>(first_position) + 1, static_cast<std::size_t>(targets));
    const std::size_t top = static_cast<std::size_t>(request.sampling.prompt_top_logprobs);
    sequence.target_top = std::span(entry.prompt_top)
                              .subspan((static_cast<std::size_t>(first_position) + 1) * top,
                                       static_cast<std::size_t>(targets) * top);
  }
  batch_.sequences.push_back(sequence);
}

void Scheduler::commit(std::span<const StepResult> results, std::vector<Event>& events) {
  NIBBLE_CHECK(results.size() == planned_.size(), "one result a planned sequence");
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (commit_sequence(*planned_[i], batch_.sequences[i], results[i], events)) continue;
    planned_[i]->state = Finished{};
    finished_.splice(finished_.end(), requests_, planned_[i]);
  }
  planned_.clear();
  batch_.clear();
}

bool Scheduler::commit_sequence(Entry& entry, const BatchSequence& planned, const StepResult& result,
                                std::vector<Event>& events) {
  const Request& request = entry.request;
  const SamplingParams& sampling = request.sampling;
  if (!result.finite) {
    events.push_back({.request = request.id,
                      .finish = FinishReason::error,
                      .error = "the model gave a logit that is not a number; the request cannot go on"});
    return false;
  }
  Event event{.request = request.id};
  if (Prefilling* state = std::get_if<Prefilling>(&entry.state)) {
    state->done += planned.row_count;
    if (state->done < static_cast<int>(request.prompt.size())) return true;
    event.prompt_logprobs = std::move(entry.prompt_logprobs);
    event.prompt_top = std::move(entry.prompt_top);
    if (!planned.samples) {
      event.finish = FinishReason::length;
      events.push_back(std::move(event));
      return false;
    }
    PageLease pages = std::move(state->pages);
    entry.state = Decoding{.pages = std::move(pages)};
  }
  Decoding& state = std::get<Decoding>(entry.state);
  state.last = result.token;
  ++state.generated;
  if (sampling.penalizes() || sampling.min_tokens > 0) entry.answer.push_back(result.token);
  event.token = result.token;
  event.logprob = result.logprob;
  event.top = entry.top;
  if (std::find(sampling.stop_ids.begin(), sampling.stop_ids.end(), result.token) !=
      sampling.stop_ids.end()) {
    event.finish = FinishReason::stop;
  } else if (state.generated == sampling.max_tokens) {
    event.finish = FinishReason::length;
  }
  const bool goes_on = event.finish == FinishReason::none;
  events.push_back(std::move(event));
  return goes_on;
}

}  // namespace nibble
