#include "sched/scheduler.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace nibble {

Scheduler::Scheduler(const SchedulerLimits& limits, std::span<PageCache* const> owners)
    : limits_(limits), pages_(*owners[0]) {
  const PageCache& pages = pages_;
  NIBBLE_CHECK(owners.size() <= most_owners);
  for (PageCache* each : owners) owners_.push_back({.pages = each});
  if (limits_.owner_seqs == 0) limits_.owner_seqs = limits.max_num_seqs;
  if (limits_.owner_rows == 0) limits_.owner_rows = limits.max_num_batched_tokens;
  NIBBLE_CHECK(limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0 && limits.max_model_len > 0);
  NIBBLE_CHECK(limits.max_logit_rows >= limits.max_num_seqs, "every sequence may want a row of logits");
  NIBBLE_CHECK(
      !pages.keeps_snapshots() || (limits.snapshot_interval > 0 &&
                                   pages.last_border(limits.snapshot_interval) == limits.snapshot_interval),
      "snapshots stand at borders");
  NIBBLE_CHECK(!pages.has_windows() || pages.page_count(window_pages) >= pages.pages_in_window() + 2,
               "a sequence alone can always go on");
  for (Step& step : steps_) {
    step.batch.tokens.reserve(static_cast<std::size_t>(limits.max_num_batched_tokens));
    step.batch.logit_rows.reserve(static_cast<std::size_t>(limits.max_logit_rows));
    step.batch.sequences.reserve(static_cast<std::size_t>(limits.max_num_seqs));
    step.entries.reserve(static_cast<std::size_t>(limits.max_num_seqs));
  }
}

// The last token of an answer is never fed back, so it needs no slot.
int Scheduler::most_stored(const Entry& entry) const {
  return entry.prompt + std::max(0, entry.request.sampling.max_tokens - 1);
}

Status Scheduler::submit(Request request) {
  const std::size_t prompt = request.prompt.size();
  const std::size_t context = static_cast<std::size_t>(limits_.max_model_len);
  const std::size_t stored =
      static_cast<std::size_t>(pages_.page_count(full_pages)) * static_cast<std::size_t>(pages_.page_size());
  if (prompt == 0) return invalid_argument("the prompt is empty; give at least one token");
  if (prompt > context || (prompt == context && request.sampling.max_tokens > 0)) {
    return invalid_argument("the prompt has " + std::to_string(prompt) + " tokens and the context holds " +
                            std::to_string(context) + "; shorten the prompt or raise --max-model-len");
  }
  if (prompt > stored) {
    return invalid_argument("the prompt has " + std::to_string(prompt) + " tokens and the KV cache holds " +
                            std::to_string(stored) + "; shorten the prompt");
  }
  // The answer ends where the context or all pages together do.
  const std::size_t room = std::min(context - prompt, stored - prompt + 1);
  request.sampling.max_tokens = std::clamp(request.sampling.max_tokens, 0, static_cast<int>(room));
  Entry entry;
  entry.prompt = static_cast<int>(prompt);
  entry.tokens = std::move(request.prompt);
  entry.tokens.reserve(prompt + static_cast<std::size_t>(request.sampling.max_tokens));
  entry.scores = request.sampling.prompt_logprobs;
  if (entry.scores) {
    entry.prompt_logprobs.resize(prompt);
    if (request.sampling.prompt_ranks) entry.prompt_ranks.resize(prompt);
    entry.prompt_top.resize(prompt * static_cast<std::size_t>(request.sampling.prompt_top_logprobs));
  }
  if (request.sampling.logprobs > 0) {
    for (auto& top : entry.top)
      top.resize(static_cast<std::size_t>(request.sampling.logprobs) *
                 (static_cast<std::size_t>(limits_.max_drafts) + 1));
  }
  if (request.constraint)
    entry.constrained =
        ConstrainedAnswer(std::move(request.constraint), limits_.vocabulary, limits_.max_drafts);
  // Penalties look at all tokens before the one that is chosen, and the answer has no drafts.
  const int most_drafts = request.sampling.penalizes() ? 0 : limits_.max_drafts;
  entry.drafts = Drafts(most_drafts, limits_.looks_up_drafts);
  entry.behind_drafts.resize(static_cast<std::size_t>(most_drafts));
  if (!request.cache_salt.empty()) entry.salt = std::make_shared<const std::string>(request.cache_salt);
  entry.request = std::move(request);
  const int pages = pages_.pages_for(most_stored(entry));
  Queued queued;
  const int snapshots = snapshots_a_step();
  queued.pages.reserve(pages, 2 * snapshots);
  for (auto& each : entry.snapshots) each.reserve(static_cast<std::size_t>(snapshots));
  entry.state = std::move(queued);
  if (pages_.keeps_prefixes()) {
    entry.hashes.reserve(static_cast<std::size_t>(pages) + 1);
    add_hashes(entry);
  }
  requests_.push_back(std::move(entry));
  return {};
}

void Scheduler::cancel(RequestId id) {
  for (Entry& entry : requests_) {
    if (entry.request.id == id) entry.ending = Ending::cancelled;
  }
}

void Scheduler::add_hashes(Entry& entry) {
  if (!pages_.keeps_prefixes()) return;
  const std::size_t pages = entry.tokens.size() / static_cast<std::size_t>(pages_.page_size());
  while (entry.hashes.size() < pages) {
    const PageHash parent = entry.hashes.empty() ? pages_.root_hash(entry.salt) : entry.hashes.back();
    entry.hashes.push_back(pages_.hash(entry.tokens, static_cast<int>(entry.hashes.size()), parent));
  }
}

Scheduler::Step& Scheduler::next_step() {
  NIBBLE_CHECK(planned_ < 2, "at most one step is planned ahead");
  finished_.clear();
  Step& step = steps_[(first_ + static_cast<std::size_t>(planned_)) % 2];
  step.batch.clear();
  step.entries.clear();
  step.rows = {};
  step.dropped = 0;
  step.begun = false;
  return step;
}

bool Scheduler::preemption_is_due() const {
  return limits_.preempt_every > 0 && plans_ % limits_.preempt_every == limits_.preempt_every - 1;
}

const Batch& Scheduler::plan(Time now, std::vector<Event>& events) {
  NIBBLE_CHECK(planned_ == 0, "a step that runs is committed first, or planned ahead of");
  Step& step = next_step();
  end_overdue(now, events);
  if (preemption_is_due()) (void)preempt_youngest(false, any_owner);
  preempt_for_owners_without_rows();
  for (int owner; (owner = short_of_pages_for_decoding()) != any_owner;)
    NIBBLE_CHECK(preempt_youngest(true, owner), "a sequence alone can go on");
  fill(step, now);
  // Prompts may have left each other no window pages.
  while (step.batch.empty() && preempt_youngest(true, any_owner)) {
    give_turn_to_oldest();
    fill(step, now);
  }
  note_owners_without_rows(step);
  NIBBLE_CHECK(!step.batch.empty() || requests_.empty(), "a request waits although no sequence runs");
  if (step.batch.empty()) return step.batch;
  ++planned_;
  ++plans_;
  return step.batch;
}

const Batch& Scheduler::plan_ahead(Time now, std::vector<Event>& events) {
  NIBBLE_CHECK(planned_ == 1, "one step runs");
  Step& step = next_step();
  end_overdue(now, events);
  if (awaits_drafts()) return step.batch;
  // Who makes room must not be in a step that runs.
  if (preemption_is_due() || short_of_pages_for_decoding() != any_owner) return step.batch;
  ++planned_;
  fill(step, now);
  if (step.batch.empty()) {
    --planned_;
  } else {
    ++plans_;
  }
  return step.batch;
}

void Scheduler::begin_ahead() {
  NIBBLE_CHECK(planned_ == 2, "a step was planned ahead");
  steps_[1 - first_].begun = true;
}

void Scheduler::end_overdue(Time now, std::vector<Event>& events) {
  for (auto entry = requests_.begin(); entry != requests_.end();) {
    const auto next = std::next(entry);
    const std::optional<Time>& deadline = entry->request.deadline;
    if (entry->ending == Ending::none && deadline && now >= *deadline) entry->ending = Ending::timeout;
    // Of those in a step that runs its commit takes care.
    const bool runs = entry->slot[0] >= 0 || entry->slot[1] >= 0;
    if (entry->ending != Ending::none && !runs) end_now(entry, events);
    entry = next;
  }
}

void Scheduler::end_now(Entries::iterator entry, std::vector<Event>& events) {
  Event event{.request = entry->request.id, .finish = FinishReason::cancelled};
  if (entry->ending == Ending::timeout) {
    event.finish = FinishReason::timeout;
    event.error = "the request's time was over before its answer was complete";
  }
  tell(*entry, std::move(event), events);
  finish(entry);
}

bool Scheduler::awaits_token(const Entry& entry) const {
  const int slot = entry.slot[first_];
  return slot >= 0 && steps_[first_].batch.sequences[static_cast<std::size_t>(slot)].samples;
}

int Scheduler::token_count(const Entry& entry) const {
  return static_cast<int>(entry.tokens.size()) + (awaits_token(entry) ? 1 : 0);
}

bool Scheduler::goes_on(const Entry& entry) const {
  if (entry.ending != Ending::none) return false;
  return !awaits_token(entry) || entry.generated() + 1 < entry.request.sampling.max_tokens;
}

bool Scheduler::decodes(const Entry& entry) const {
  const Running* state = std::get_if<Running>(&entry.state);
  return state != nullptr && state->planned >= entry.prompt && state->planned + 1 == token_count(entry) &&
         goes_on(entry);
}

// The first owner that is, or any_owner.
int Scheduler::short_of_pages_for_decoding() const {
  std::array<std::array<int, page_groups>, most_owners> missing{};
  std::array<int, most_owners> rows{};
  for (const Entry& entry : requests_) {
    const std::size_t owner = static_cast<std::size_t>(entry.owner);
    if (!decodes(entry) || ++rows[owner] > limits_.owner_rows) continue;
    const Running& state = std::get<Running>(entry.state);
    for (int group = 0; group < page_groups; ++group)
      missing[owner][static_cast<std::size_t>(group)] +=
          pages_of(entry).missing(state.pages, group, state.planned + 1);
  }
  for (std::size_t owner = 0; owner < owners_.size(); ++owner) {
    const PageCache& pages = *owners_[owner].pages;
    if (missing[owner][full_pages] > pages.available(full_pages) ||
        missing[owner][window_pages] > pages.available(window_pages))
      return static_cast<int>(owner);
  }
  return any_owner;
}

// That have sequences of the step's kind.
void Scheduler::note_owners_without_rows(const Step& step) {
  for (Owner& owner : owners_) owner.without_rows = false;
  for (const Entry& entry : requests_) {
    const std::size_t owner = static_cast<std::size_t>(entry.owner);
    if (std::holds_alternative<Running>(entry.state) && step.rows[owner] == 0 && has_kind(entry, step))
      owners_[owner].without_rows = true;
  }
}

// Its sequences have left each other no window pages, and other owners' steps go on meanwhile.
void Scheduler::preempt_for_owners_without_rows() {
  for (std::size_t owner = 0; owner < owners_.size() && owners_.size() > 1; ++owner) {
    if (owners_[owner].without_rows) (void)preempt_youngest(true, static_cast<int>(owner));
  }
}

// `wanted`: for want of pages, which a sequence alone never has with its owner. Else who has done less since
// it came back than coming back had cost is left alone.
bool Scheduler::preempt_youngest(bool wanted, int owner) {
  for (auto entry = requests_.rbegin(); entry != requests_.rend(); ++entry) {
    const Running* state = std::get_if<Running>(&entry->state);
    if (state == nullptr || (owner != any_owner && owner != entry->owner)) continue;
    if (wanted && running_beside(*entry) < 2) continue;
    if (!wanted && (state->stored == 0 || state->stored < 2 * entry->preempted_at)) continue;
    preempt(*entry);
    return true;
  }
  return false;
}

void Scheduler::preempt(Entry& entry) {
  Running& state = std::get<Running>(entry.state);
  entry.preempted_at = std::max(state.stored, 1);
  Queued queued{.pages = std::move(state.pages)};
  queued.pages.release();
  entry.state = std::move(queued);
  --running_;
  --owners_[static_cast<std::size_t>(entry.owner)].running;
  ++totals_.preemptions;
}

// Of its first `tokens` tokens, those whose keys, values and states are what every prompt that begins with
// them computes.
int Scheduler::served(const Entry& entry, int tokens) const {
  return limits_.prompts_apart ? std::min(tokens, entry.prompt) : tokens;
}

// Whether the next page that it needs is being computed for another sequence.
bool Scheduler::begins_like_another(const Entry& entry) {
  if (!may_share(entry)) return false;
  const int page_size = pages_.page_size();
  const std::size_t usable = static_cast<std::size_t>(shareable(entry) / page_size);
  for (Entry& other : requests_) {
    const Running* state = std::get_if<Running>(&other.state);
    if (state == nullptr) continue;
    const std::size_t next = static_cast<std::size_t>(state->stored / page_size);
    const std::size_t pages = static_cast<std::size_t>(served(other, static_cast<int>(other.tokens.size()))) /
                              static_cast<std::size_t>(page_size);
    if (next < std::min(usable, pages) && other.hashes[next] == entry.hashes[next] &&
        (!pages_.keeps_snapshots() || leaves_snapshot(other, entry)))
      return true;
  }
  return false;
}

// Of requests that begin alike and whose layers keep a state: whether the one that runs will leave a snapshot
// that the other can go on from. One is asked for where their tokens part, if no other place is.
bool Scheduler::leaves_snapshot(Entry& other, const Entry& entry) const {
  Running& state = std::get<Running>(other.state);
  const std::size_t most = std::min(other.hashes.size(), entry.hashes.size());
  const auto parting = std::mismatch(
      other.hashes.begin(), other.hashes.begin() + static_cast<std::ptrdiff_t>(most), entry.hashes.begin());
  const int shared = static_cast<int>(parting.first - other.hashes.begin()) * pages_.page_size();
  const int border = pages_.last_border(std::min(served(other, shared), shareable(entry)));
  if (border > state.planned && state.awaited <= state.planned) state.awaited = border;
  for (int at = border; at > state.stored; at = pages_.last_border(at - 1)) {
    if (takes_snapshot(other, at)) return true;
  }
  return false;
}

// A conversation's next turn begins like its last prompt, but for the tokens that open an answer; so the
// border is one before those.
int Scheduler::prompt_border(const Entry& entry) const {
  constexpr int opening = 16;
  return pages_.last_border(std::max(0, entry.prompt - opening));
}

bool Scheduler::takes_snapshot(const Entry& entry, int position) const {
  const Running& state = std::get<Running>(entry.state);
  return position % limits_.snapshot_interval == 0 || position == prompt_border(entry) ||
         position == state.pages.branch() || position == state.awaited;
}

// The most that one step takes of one sequence: its three places, and those of the interval.
int Scheduler::snapshots_a_step() const {
  return pages_.keeps_snapshots() ? limits_.max_num_batched_tokens / limits_.snapshot_interval + 4 : 0;
}

void Scheduler::plan_snapshots(Entry& entry, std::size_t index, int first, int end) {
  std::vector<StateSnapshot>& planned = entry.snapshots[index];
  planned.clear();
  if (!pages_.keeps_snapshots()) return;
  Running& state = std::get<Running>(entry.state);
  const int step = pages_.snapshot_step();
  for (int at = pages_.last_border(first) + step; at <= served(entry, end); at += step) {
    if (!takes_snapshot(entry, at)) continue;
    const int slot = pages_of(entry).take_snapshot(state.pages, at);
    if (slot < 0) return;
    planned.push_back({.position = at, .slot = slot});
    ++totals_.snapshots_taken;
  }
}

// Gives a queued request its pages, as many as its known tokens take, with the best owner that has them.
bool Scheduler::admit(Entry& entry, Time now) {
  if (running_ == limits_.max_num_seqs) return false;
  std::array<OwnerFacts, most_owners> facts;
  std::size_t count = 0;
  for (std::size_t owner = 0; owner < owners_.size(); ++owner) {
    const int index = static_cast<int>(owner);
    if (!may_fit(index, std::get<Queued>(entry.state))) continue;
    facts[count++] = {
        .index = index, .running = owners_[owner].running, .pages = owners_[owner].pages->used(full_pages)};
  }
  const std::span<OwnerFacts> owners = std::span(facts).first(count);
  if (owners.size() > 1) {
    for (OwnerFacts& each : owners)
      each.prefix = owners_[static_cast<std::size_t>(each.index)].pages->stored_prefix(prefix_of(entry),
                                                                                       shareable(entry));
    sort_owners(owners);
  }
  return std::any_of(owners.begin(), owners.end(),
                     [&](const OwnerFacts& each) { return admit_to(each.index, entry, now); });
}

// Looking its prefix up again each step would cost more than it tells.
bool Scheduler::may_fit(int index, const Queued& queued) const {
  const Owner& owner = owners_[static_cast<std::size_t>(index)];
  if (owner.running == 0) return true;
  if (owner.running == limits_.owner_seqs) return false;
  if (owner.pages->available(full_pages) < queued.pages_needed[static_cast<std::size_t>(index)]) return false;
  return !pages_.has_windows() || owner.pages->available(window_pages) > owner.running;
}

// Of its tokens, those whose keys and values it may take from the cache. The last one's row gives the next.
int Scheduler::shareable(const Entry& entry) const {
  const int most = served(entry, static_cast<int>(entry.tokens.size()) - 1);
  return entry.scores ? std::min(entry.prompt_logprobs_ready, most) : most;
}

bool Scheduler::admit_to(int index, Entry& entry, Time now) {
  Owner& owner = owners_[static_cast<std::size_t>(index)];
  PageCache& cache = *owner.pages;
  Queued& queued = std::get<Queued>(entry.state);
  const bool alone = owner.running == 0;
  const int available = cache.available(full_pages);
  SequencePages pages = std::move(queued.pages);
  const int tokens = static_cast<int>(entry.tokens.size());
  const int adopted = cache.adopt(pages, prefix_of(entry), shareable(entry));
  // Alone it takes what it needs; in company it leaves the others a page each, and comes back from a
  // preemption only to stay.
  const int wished =
      entry.preempted_at > 0 ? std::max(tokens, std::min(2 * tokens, most_stored(entry))) : tokens;
  const int missing = alone ? cache.missing(pages, full_pages, tokens)
                            : cache.missing(pages, full_pages, wished) + owner.running;
  if (missing > cache.available(full_pages)) {
    queued.pages_needed[static_cast<std::size_t>(index)] = missing + available - cache.available(full_pages);
    pages.release();
    queued.pages = std::move(pages);
    return false;
  }
  NIBBLE_CHECK(cache.grow(pages, tokens, 0));
  entry.owner = index;
  ++owner.running;
  entry.state = Running{.pages = std::move(pages), .planned = adopted, .stored = adopted};
  ++running_;
  if (pages_.keeps_snapshots()) {
    for (const Entry& other : requests_) {
      if (std::holds_alternative<Queued>(other.state) && may_share(other))
        (void)leaves_snapshot(entry, other);
    }
  }
  if (entry.cached_tokens < 0) {
    entry.cached_tokens = adopted;
    entry.begun = now;
    // Prompts whose log-probabilities are wanted are computed whole.
    if (pages_.keeps_prefixes() && !entry.scores)
      totals_.prefix_query_tokens += static_cast<std::uint64_t>(entry.prompt);
    totals_.prefix_hit_tokens += static_cast<std::uint64_t>(adopted);
  }
  return true;
}

}  // namespace nibble
