// Requests in, batches out: continuous batching with chunked prefill over a bounded page cache. Host only;
// knows tokens and pages, never a tensor.
//
// The caller plans a step, runs it, and commits its results. While one step runs, one more may be planned
// (plan_ahead). Tokens that the running step will produce are placeholders (-1) in it; the running step's
// commit fills them in, and sequences that turn out to have ended lose their rows. The caller may even start
// the planned step before that commit (begin_ahead), if its worker can read those tokens by itself. Then the
// rows of ended sequences stay in the batch, and their results are dropped.
#pragma once

#include <array>
#include <chrono>
#include <list>
#include <span>
#include <variant>
#include <vector>

#include "base/status.h"
#include "cache/page_cache.h"
#include "core/batch.h"
#include "core/request.h"
#include "sched/drafts.h"
#include "sched/owner_choice.h"

namespace nibble {

struct SchedulerLimits {
  int max_num_seqs = 0;            // sequences in one step
  int max_num_batched_tokens = 0;  // rows in one step
  // The same of one owner, where ranks have sequences of their own; 0: as many as of all.
  int owner_seqs = 0, owner_rows = 0;
  int max_logit_rows = 0;     // rows of one step whose logits are computed; at least max_num_seqs
  int max_model_len = 0;      // tokens of prompt and answer together
  int vocabulary = 0;         // bits of a constrained request's masks
  int snapshot_interval = 0;  // of states: positions from one snapshot to the next; where the cache has any
  // Drafts of next tokens that a step checks where one sequence decodes; as many fewer as others do, for rows
  // beyond so many cost what they save. 0: none.
  int max_drafts = 0;
  // Where layers keep a state: multiples of so many positions, at which it goes on for good. No draft brings
  // it there. 0: there are none.
  int draft_border = 0;
  bool looks_up_drafts = false;  // what followed the last tokens before, beside what a constraint drafts
  // A row of a prompt is computed otherwise than a row of an answer: a step has rows of one kind, and serves
  // other prompts only with what it computed as a prompt. For one owner.
  bool prompts_apart = false;
  // For tests: the youngest request that may be makes room every so many steps, wanted or not; 0: never.
  int preempt_every = 0;
};

// A request is a state, and the state owns its pages: whatever ends it gives them back.
struct Queued {
  SequencePages pages;                          // no pages yet, but capacity for their ids
  std::array<int, most_owners> pages_needed{};  // estimate: with fewer available pages it does not fit
};
struct Running {
  SequencePages pages;
  int planned = 0;  // tokens whose keys and values are stored once all planned steps have run
  int stored = 0;   // of them by committed steps
  int awaited = 0;  // where a request that waits for it leaves its tokens: a snapshot is taken there
};
struct Finished {};

struct SchedulerTotals {
  std::uint64_t prefix_query_tokens = 0;  // of prompts that were looked up in the cache
  std::uint64_t prefix_hit_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t snapshots_taken = 0;
  std::uint64_t snapshots_resumed = 0;
  std::uint64_t drafted_tokens = 0;
  std::uint64_t accepted_drafts = 0;
};

// Order of service is order of arrival: decoding sequences first, one row each, then prompt chunks. When
// pages run out, the youngest sequence is preempted: it gives its pages back and later recomputes its tokens,
// with the same bits. It is admitted again when it has room to grow twofold, which bounds the recomputation.
// A request whose prompt begins like one that is being computed waits for it.
//
// Where ranks have sequences of their own, each has a cache of pages: an owner. A request gets one when it is
// admitted (sched/owner_choice.h), or the next best that has room, and another maybe after a preemption. Rows
// and sequences of a step are limited for each owner too, so that none waits for another's prompt.
//
// Where prompts are apart, steps of prompts and of answers take turns, so that neither waits for more than
// one step of the other. A row's kind follows from its position alone, also when it is computed again.
//
// submit() allocates all that a request's steps need. Planning and committing allocate nothing but the vector
// of events and the text of an error.
class Scheduler {
 public:
  using Time = std::chrono::nanoseconds;  // of base/clock.h

  // `pages` outlives the scheduler.
  Scheduler(const SchedulerLimits& limits, PageCache& pages)
      : Scheduler(limits, std::array<PageCache*, 1>{&pages}) {}
  // One of each owner, all of one size and key.
  Scheduler(const SchedulerLimits& limits, std::span<PageCache* const> owners);

  // Refused when the request could never run: an empty prompt, no room in the context or in all pages.
  Status submit(Request request);
  // The request ends with the next step, or the one after if that is running already. An unknown id (it may
  // just have finished) is no error.
  void cancel(RequestId id);
  bool idle() const { return requests_.empty(); }
  int queued() const { return static_cast<int>(requests_.size()) - running_; }
  int running() const { return running_; }
  const SchedulerTotals& totals() const { return totals_; }
  const PageCache& pages() const { return pages_; }

  // The next step. The batch points into the scheduler until its commit(). Cancelled requests and those past
  // their deadline end here. Invalidates what earlier events point to. Empty only if no request is left.
  const Batch& plan(Time now, std::vector<Event>& events);
  // The step after the running one; the running step's commit fills in its placeholders (-1). Empty where it
  // depends on results that are not known yet, as drafts do and what comes behind them; then the caller plans
  // it after the commit.
  const Batch& plan_ahead(Time now, std::vector<Event>& events);
  // Call when the worker starts the step planned ahead. Rows of a sequence that ends from here on are
  // computed and dropped; in the batch that sequence is then empty.
  void begin_ahead();
  // Results of the oldest planned step, in the order of its sequences.
  void commit(std::span<const StepResult> results, std::vector<Event>& events);

  // CHECKs the accounting of pages. For tests.
  void check() const;

 private:
  enum class Ending : std::uint8_t { none, cancelled, timeout };
  struct Entry {
    Request request;  // its prompt is in `tokens`, its constraint in `constrained`
    ConstrainedAnswer constrained;
    Drafts drafts;
    std::variant<Queued, Running, Finished> state;
    std::vector<TokenId> tokens;   // of prompt and answer
    std::vector<PageHash> hashes;  // of their whole pages
    Salt salt;
    int prompt = 0;
    int computed = 0;      // most tokens ever stored at once; computing one of them again is recomputing
    int preempted_at = 0;  // tokens that were stored when it last had to make room; 0: it never had to
    int prompt_logprobs_ready = 0;  // prompt tokens whose log-probabilities have been computed
    int cached_tokens = -1;         // -1: not begun
    std::optional<Time> begun;
    bool first_event_sent = false;
    bool scores = false;  // prompt log-probabilities are wanted and not all here: their rows must be computed
    Ending ending = Ending::none;
    int owner = 0;  // while it runs
    // Where it stands in each planned step; -1: nowhere.
    std::array<int, 2> slot{-1, -1};
    // [1 + drafts][sampling.logprobs], of each planned step
    std::array<std::vector<TokenLogprob>, 2> top;
    std::vector<TokenLogprob> behind_drafts;              // [most drafts]
    std::array<std::vector<StateSnapshot>, 2> snapshots;  // that each planned step takes
    std::vector<float> prompt_logprobs;    // [prompt], when asked for; until the event that takes them
    std::vector<int> prompt_ranks;         // [prompt], likewise, where they are wanted
    std::vector<TokenLogprob> prompt_top;  // [prompt][sampling.prompt_top_logprobs], likewise

    std::span<const TokenId> prompt_tokens() const {
      return std::span(tokens).first(static_cast<std::size_t>(prompt));
    }
    std::span<const TokenId> answer() const {
      return std::span(tokens).subspan(static_cast<std::size_t>(prompt));
    }
    int generated() const { return static_cast<int>(tokens.size()) - prompt; }
  };
  using Entries = std::list<Entry>;
  struct Step {
    Batch batch;
    std::vector<Entries::iterator> entries;  // of each of its sequences
    std::array<int, most_owners> rows{};     // of each owner
    int dropped = 0;
    bool begun = false;  // before the step ahead of it was committed
  };

  Step& next_step();
  bool preemption_is_due() const;
  void end_overdue(Time now, std::vector<Event>& events);
  void end_now(Entries::iterator entry, std::vector<Event>& events);
  void fill(Step& step, Time now);
  void give_turn_to_oldest();
  void fill_with_kind(Step& step, Time now);
  bool plan_decoding(Step& step);
  bool has_kind(const Entry& entry, const Step& step) const;
  int end_of_kind(const Entry& entry, int end) const;
  int served(const Entry& entry, int tokens) const;
  int short_of_pages_for_decoding() const;
  bool preempt_youngest(bool wanted, int owner);
  void note_owners_without_rows(const Step& step);
  void preempt_for_owners_without_rows();
  void preempt(Entry& entry);
  bool admit(Entry& entry, Time now);
  bool may_fit(int owner, const Queued& queued) const;
  int shareable(const Entry& entry) const;
  bool admit_to(int owner, Entry& entry, Time now);
  bool begins_like_another(const Entry& entry);
  bool leaves_snapshot(Entry& other, const Entry& entry) const;
  bool takes_snapshot(const Entry& entry, int position) const;
  void plan_snapshots(Entry& entry, std::size_t index, int first, int end);
  int prompt_border(const Entry& entry) const;
  int snapshots_a_step() const;
  int decoding() const;
  int most_drafts(const Step& step, int others) const;
  bool awaits_drafts() const;
  int draft(Entry& entry, const Step& step, int others);
  bool plan_rows(Step& step, Entries::iterator entry, int drafts = 0);
  void add_sequence(Step& step, Entries::iterator entry, int rows, int drafts);
  void add_logit_rows(Batch& batch, Entry& entry, BatchSequence& sequence);
  int room_in_window(const Entry& entry, int rows) const;

  void commit_sequence(Entries::iterator entry, const BatchSequence& planned, const StepResult& result,
                       std::vector<Event>& events);
  void commit_tokens(Entries::iterator entry, const BatchSequence& planned, const StepResult& result,
                     std::vector<Event>& events);
  static void tell_of_prompt(Entry& entry, Event& event);
  void store(Entry& entry, int rows);
  void take_token(Entry& entry, TokenLogprob chosen, Event& event);
  void tell(Entry& entry, Event event, std::vector<Event>& events);
  void finish(Entries::iterator entry);
  void drop_ended(std::size_t index);

  bool awaits_token(const Entry& entry) const;  // from the running step
  int token_count(const Entry& entry) const;    // tokens that are not known yet included
  bool decodes(const Entry& entry) const;
  bool goes_on(const Entry& entry) const;  // unless the running step's result ends it
  int most_stored(const Entry& entry) const;
  TokenPrefix prefix_of(const Entry& entry) const { return {entry.tokens, entry.hashes, entry.salt}; }
  void add_hashes(Entry& entry);
  bool may_share(const Entry& entry) const { return pages_.keeps_prefixes() && !entry.scores; }

  static constexpr int any_owner = -1;
  struct Owner {
    PageCache* pages = nullptr;
    int running = 0;
    bool without_rows = false;  // in the step planned last, although sequences of its kind run
  };
  PageCache& pages_of(const Entry& entry) { return *owners_[static_cast<std::size_t>(entry.owner)].pages; }
  const PageCache& pages_of(const Entry& entry) const {
    return *owners_[static_cast<std::size_t>(entry.owner)].pages;
  }
  int running_beside(const Entry& entry) const {
    return owners_[static_cast<std::size_t>(entry.owner)].running;
  }
  int room_of_owner(const Step& step, const Entry& entry) const;

  SchedulerLimits limits_;
  std::vector<Owner> owners_;
  const PageCache& pages_;  // the first owner's, for what is alike of all
  Entries requests_;        // in order of arrival
  Entries finished_;        // ended in the last step, whose events refer to them
  int running_ = 0;
  SchedulerTotals totals_;
  std::array<Step, 2> steps_;
  std::size_t first_ = 0;  // the oldest planned step
  int planned_ = 0;        // steps planned and not committed
  std::int64_t plans_ = 0;
  bool prompts_turn_ = false;  // where prompts are apart
};

}  // namespace nibble
