// Requests in, batches out: continuous batching with chunked prefill. Host only; knows tokens and pages,
// never a tensor.
#pragma once

#include <list>
#include <span>
#include <variant>
#include <vector>

#include "base/status.h"
#include "cache/page_pool.h"
#include "core/batch.h"
#include "core/request.h"

namespace nibble {

struct SchedulerLimits {
  int max_num_seqs = 0;            // sequences in one step
  int max_num_batched_tokens = 0;  // rows in one step
  int max_logit_rows = 0;          // rows of one step whose logits are computed; at least max_num_seqs
  int max_model_len = 0;           // tokens of prompt and answer together
};

// A request is a state, and the state owns its pages: whatever ends it gives them back.
struct Queued {
  PageLease pages;  // none yet, but the room to note them
};
struct Prefilling {
  PageLease pages;
  int done = 0;  // prompt tokens whose keys and values are stored
};
struct Decoding {
  PageLease pages;
  TokenId last = -1;  // sampled, its key and value not yet stored
  int generated = 0;  // tokens of the answer, `last` included
};
struct Finished {};

// Submitting a request takes all the memory that its steps need: plan() and commit() allocate nothing, but
// for the vector of events and the text of an error.
class Scheduler {
 public:
  // `pages` outlives the scheduler.
  Scheduler(const SchedulerLimits& limits, PagePool& pages);

  // Refused when the request could never run: an empty prompt, no room in the context or in all pages.
  Status submit(Request request);
  // The request ends before the next step. An unknown id (it may just have finished) is no error.
  void cancel(RequestId id);
  bool idle() const { return requests_.empty(); }
  std::size_t queued() const;
  std::size_t running() const { return requests_.size() - queued(); }

  // The next step: every decoding sequence one row, then prompt chunks in order of arrival as long as rows,
  // sequences and pages last. The batch refers into the scheduler until commit(). Cancelled requests end
  // here. What earlier events refer to is gone.
  const Batch& plan(std::vector<Event>& events);
  // What the step gave, in the order of the planned sequences.
  void commit(std::span<const StepResult> results, std::vector<Event>& events);

 private:
  struct Entry {
    Request request;
    std::variant<Queued, Prefilling, Decoding, Finished> state;
    std::vector<TokenLogprob> top;         // [sampling.logprobs]
    std::vector<float> prompt_logprobs;    // [prompt], when asked for; until the event that takes them
    std::vector<TokenLogprob> prompt_top;  // [prompt][sampling.prompt_top_logprobs], likewise
    std::vector<TokenId> answer;           // all of it, when penalties look at it
    bool cancelled = false;
  };
  using Entries = std::list<Entry>;

  void plan_decode(Entry& entry);
  // False when nothing more of the queue can start in this step.
  bool plan_prefill(Entry& entry);
  void add_sequence(Entry& entry, std::span<const PageId> pages, int first_position, int rows);
  // Returns false when the request has ended.
  bool commit_sequence(Entry& entry, const BatchSequence& planned, const StepResult& result,
                       std::vector<Event>& events);
  int pages_needed(const Request& request) const;

  SchedulerLimits limits_;
  PagePool& pages_;
  Entries requests_;  // in order of arrival
  Entries finished_;  // ended in the last step, whose events refer to them
  Batch batch_;
  std::vector<Entries::iterator> planned_;  // entry of each Batch::sequences
};

}  // namespace nibble
