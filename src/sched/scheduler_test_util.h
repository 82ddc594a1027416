// What the scheduler's tests share: requests, and a model that says tokens which depend on all tokens before,
// so that a wrong or stale one shows in everything that follows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "sched/scheduler.h"

namespace nibble {

inline SchedulerLimits limits_of(int seqs, int rows, int context = 256) {
  return {.max_num_seqs = seqs,
          .max_num_batched_tokens = rows,
          .max_logit_rows = 2 * seqs + 8,
          .max_model_len = context};
}

inline PageCacheOptions cache_of(int full, int windowed = 0) {
  return {.page_size = 16, .page_count = {full, windowed}, .window = windowed > 0 ? 20 : 0, .key = {5, 6}};
}

// Tokens first, first + 1, ...
inline Request request(RequestId id, int prompt, int max_tokens, int first = 0) {
  Request made{.id = id};
  for (int i = 0; i < prompt; ++i) made.prompt.push_back(first + i);
  made.sampling.max_tokens = max_tokens;
  return made;
}

// What the model says after these tokens. One choice says again what it said ten tokens before.
inline constexpr std::uint32_t repeats_itself = 1000;
inline TokenId next_token(std::span<const TokenId> tokens, std::uint32_t choice) {
  if (choice == repeats_itself) return tokens[tokens.size() - 10];
  std::uint64_t state = choice + 1;
  for (const TokenId token : tokens) state = (state ^ static_cast<std::uint64_t>(token)) * 0x9e3779b97f4a7c15;
  return static_cast<TokenId>(state >> 40) % 5000;
}

// Allows everything, and guesses what that model says; every so many guesses are wrong.
class GuessingConstraint final : public TokenConstraint {
 public:
  GuessingConstraint(std::vector<TokenId> prompt, std::uint32_t choice, int wrong_every)
      : tokens_(std::move(prompt)), prompt_(tokens_.size()), choice_(choice), wrong_every_(wrong_every) {}

  bool binds() const override { return false; }
  void fill(TokenMask) override { ADD_FAILURE() << "it forbids nothing"; }
  void accept(TokenId token) override { tokens_.push_back(token); }
  void roll_back(int tokens) override { tokens_.resize(tokens_.size() - static_cast<std::size_t>(tokens)); }
  bool may_draft() const override { return true; }
  int draft(std::span<TokenId> room) override {
    std::vector<TokenId> known = tokens_;
    for (TokenId& guess : room) {
      guess = next_token(known, choice_) + (++guesses_ % wrong_every_ == 0 ? 1 : 0);
      known.push_back(guess);
    }
    return static_cast<int>(room.size());
  }
  std::size_t accepted() const { return tokens_.size() - prompt_; }

 private:
  std::vector<TokenId> tokens_;
  std::size_t prompt_;
  std::uint32_t choice_;
  int wrong_every_, guesses_ = 0;
};

// A result for each sequence, from its prompt and answer so far; and the log-probabilities that were asked
// for.
inline std::vector<StepResult> results_of(const Batch& batch) {
  std::vector<StepResult> results(batch.sequences.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const BatchSequence& sequence = batch.sequences[i];
    std::size_t targets = 0;
    for (int row = 0; row < sequence.logit_count; ++row) {
      const LogitRow& logits = batch.logit_rows[static_cast<std::size_t>(sequence.logit_begin + row)];
      if (logits.target >= 0) sequence.target_logprobs[targets++] = -static_cast<float>(logits.target);
    }
    EXPECT_EQ(targets, sequence.target_logprobs.size());
    if (!sequence.samples) continue;
    std::vector<TokenId> tokens(sequence.prompt.begin(), sequence.prompt.end());
    tokens.insert(tokens.end(), sequence.answer.begin(), sequence.answer.end());
    const int known = sequence.row_count - sequence.draft_count;
    EXPECT_EQ(static_cast<int>(tokens.size()), sequence.first_position + known);
    const std::size_t last = static_cast<std::size_t>(sequence.row_begin + known) - 1;
    EXPECT_EQ(batch.tokens[last], tokens.back());
    results[i].token = next_token(tokens, sequence.sampling->choice);
    TokenId chosen = results[i].token;
    while (results[i].accepted < sequence.draft_count) {
      const std::size_t draft = static_cast<std::size_t>(results[i].accepted);
      if (batch.tokens[last + 1 + draft] != chosen) break;
      tokens.push_back(chosen);
      chosen = next_token(tokens, sequence.sampling->choice);
      sequence.behind_drafts[draft] = {.id = chosen};
      ++results[i].accepted;
    }
  }
  return results;
}

// What stands for the result of a token's row, where rows of prompts are computed otherwise than others.
inline TokenId computed(TokenId token, bool of_prompts) { return of_prompts ? token + (1 << 20) : token; }

// The tokens before `count` of what the sequence says and guesses, as its rows are to be computed.
inline std::vector<TokenId> computed_before(const BatchSequence& sequence, int count, bool prompts_apart) {
  std::vector<TokenId> before;
  for (const TokenId token : sequence.prompt) before.push_back(computed(token, prompts_apart));
  before.insert(before.end(), sequence.answer.begin(), sequence.answer.end());
  EXPECT_LE(static_cast<std::size_t>(count), before.size());
  before.resize(static_cast<std::size_t>(count));
  return before;
}

// Slots of states and snapshots as a worker has them, each a list of the tokens that are in it: a slot that
// is handed out too early, taken up too late or of other tokens shows, and so does a token that was computed
// as what it is not.
class SlotsOfTokens {
 public:
  explicit SlotsOfTokens(bool prompts_apart, int draft_border = 0)
      : prompts_apart_(prompts_apart), draft_border_(draft_border) {}
  // The step's copies first, then its rows.
  void run(const Batch& batch) {
    for (const BatchSequence& sequence : batch.sequences) {
      if (sequence.resumes < 0) continue;
      EXPECT_EQ((snapshots_[{sequence.owner, sequence.resumes}].size()),
                static_cast<std::size_t>(sequence.first_position));
      states_[{sequence.owner, sequence.state}] = snapshots_[{sequence.owner, sequence.resumes}];
    }
    for (const BatchSequence& sequence : batch.sequences) {
      if (sequence.row_count > 0) go_on(sequence, batch);
    }
  }
  // Rows of a sequence that ended when its step had begun.
  void spoil(const BatchSequence& sequence) {
    states_[{sequence.owner, sequence.state}] = {-7};
    for (const StateSnapshot& each : sequence.snapshots) snapshots_[{sequence.owner, each.slot}] = {-7};
  }

 private:
  void go_on(const BatchSequence& sequence, const Batch& batch) {
    std::vector<TokenId>& state = states_[{sequence.owner, sequence.state}];
    if (sequence.first_position == 0) state.clear();
    take_back_drafts(sequence, state);
    EXPECT_EQ(state, computed_before(sequence, sequence.first_position, prompts_apart_))
        << "a sequence goes on from its own state";
    auto snapshot = sequence.snapshots.begin();
    for (int i = 0; i < sequence.row_count; ++i) {
      const TokenId token = batch.tokens[static_cast<std::size_t>(sequence.row_begin + i)];
      EXPECT_GE(token, 0);
      state.push_back(computed(token, batch.of_prompts));
      if (snapshot == sequence.snapshots.end() || snapshot->position != static_cast<int>(state.size()))
        continue;
      snapshots_[{sequence.owner, snapshot->slot}] = state;
      ++snapshot;
    }
    EXPECT_TRUE(snapshot == sequence.snapshots.end()) << "snapshots are of the step's rows";
  }

  // Rows of drafts that failed, which are none that a border lies behind.
  void take_back_drafts(const BatchSequence& sequence, std::vector<TokenId>& state) const {
    const std::size_t known = static_cast<std::size_t>(sequence.first_position);
    if (state.size() <= known) return;
    EXPECT_GT(draft_border_, 0) << "nothing else is taken back";
    const std::size_t border = static_cast<std::size_t>(std::max(draft_border_, 1));
    EXPECT_EQ(state.size() / border, known / border)
        << "a state was brought to a border that it never came to";
    state.resize(known);
  }

  bool prompts_apart_;
  int draft_border_;
  std::map<std::pair<int, int>, std::vector<TokenId>> states_, snapshots_;  // by owner and slot
};

// Pages as a worker has them, each place with what its row was computed from: the token, its kind, and what
// lies at the place before, which stands for all keys and values that the row reads. So a page of other
// tokens shows, and one that was computed with another arithmetic.
class PagesOfBits {
 public:
  PagesOfBits(bool prompts_apart, int page_size) : prompts_apart_(prompts_apart), page_size_(page_size) {}

  void run(const Batch& batch) {
    for (const BatchSequence& sequence : batch.sequences) {
      if (sequence.row_count == 0) continue;  // it ended once the step had begun
      const int first = sequence.first_position;
      std::uint64_t expected = 0;
      for (const TokenId token : computed_before(sequence, first, prompts_apart_))
        expected = after(expected, token);
      const std::uint64_t found = first == 0 ? 0 : place(sequence, first - 1);
      EXPECT_EQ(found, expected) << "request " << sequence.request << " before " << first;
      for (int i = 0; i < sequence.row_count; ++i) {
        const TokenId token = batch.tokens[static_cast<std::size_t>(sequence.row_begin + i)];
        expected = after(expected, computed(token, batch.of_prompts));
        place(sequence, first + i) = expected;
      }
    }
  }

 private:
  static std::uint64_t after(std::uint64_t before, TokenId token) {
    const std::uint64_t mixed = (before ^ static_cast<std::uint64_t>(token + 1)) * 0x9e3779b97f4a7c15;
    return mixed ^ (mixed >> 29);
  }
  std::uint64_t& place(const BatchSequence& sequence, int position) {
    const PageId page = sequence.pages[full_pages][static_cast<std::size_t>(position / page_size_)];
    return places_[{sequence.owner, static_cast<std::int64_t>(page) * page_size_ + position % page_size_}];
  }

  bool prompts_apart_;
  int page_size_;
  std::map<std::pair<int, std::int64_t>, std::uint64_t> places_;  // by owner and place
};

inline std::vector<Event> step(Scheduler& scheduler, Scheduler::Time now = {}) {
  std::vector<Event> events;
  const Batch& batch = scheduler.plan(now, events);
  if (!batch.empty()) scheduler.commit(results_of(batch), events);
  return events;
}

struct Transcript {
  std::map<RequestId, std::vector<TokenId>> tokens;
  std::map<RequestId, std::vector<float>> prompt_logprobs;
  std::map<RequestId, FinishReason> ends;
  std::vector<RequestId> order_of_ends;
  std::map<RequestId, int> cached;
  int rows = 0;
  int prefill_rows = 0;
  int most_used = 0;  // pages
  int steps_ahead = 0;

  void add(const Batch& batch) {
    rows += static_cast<int>(batch.tokens.size());
    for (const BatchSequence& sequence : batch.sequences)
      prefill_rows += sequence.prefill ? sequence.row_count : 0;
  }
  void add(const std::vector<Event>& events) {
    for (const Event& event : events) {
      EXPECT_EQ(ends.count(event.request), 0u) << "nothing comes after the end";
      if (cached.count(event.request) == 0) cached[event.request] = event.cached_tokens;
      if (!event.prompt_logprobs.empty()) prompt_logprobs[event.request] = event.prompt_logprobs;
      if (event.token >= 0) tokens[event.request].push_back(event.token);
      if (event.finish == FinishReason::none) continue;
      ends[event.request] = event.finish;
      order_of_ends.push_back(event.request);
    }
  }
};

// Until nothing is left; each step is planned, run and committed in turn.
inline Transcript run(Scheduler& scheduler, Scheduler::Time now = {}) {
  Transcript transcript;
  while (!scheduler.idle()) {
    std::vector<Event> events;
    const Batch& batch = scheduler.plan(now, events);
    transcript.add(batch);
    transcript.most_used = std::max(transcript.most_used, scheduler.pages().used(full_pages));
    if (!batch.empty()) scheduler.commit(results_of(batch), events);
    transcript.add(events);
    scheduler.check();
  }
  return transcript;
}

// The same with each step planned while the one before it runs, and begun by then if `begins`.
inline Transcript run_ahead(Scheduler& scheduler, bool begins = false) {
  Transcript transcript;
  const Batch* running = nullptr;
  while (!scheduler.idle()) {
    std::vector<Event> events;
    if (running == nullptr) running = &scheduler.plan({}, events);
    if (running->empty()) {
      running = nullptr;
    } else {
      transcript.add(*running);
      const std::vector<StepResult> results = results_of(*running);
      const Batch& ahead = scheduler.plan_ahead({}, events);
      for (const BatchSequence& next : ahead.sequences) {
        const bool waits = ahead.tokens[static_cast<std::size_t>(next.row_begin)] < 0;
        EXPECT_EQ(waits, next.awaits >= 0);
        if (!waits) continue;
        EXPECT_EQ(running->sequences[static_cast<std::size_t>(next.awaits)].request, next.request);
      }
      const std::size_t rows = ahead.tokens.size();
      if (begins && rows > 0) scheduler.begin_ahead();
      scheduler.commit(results, events);
      EXPECT_TRUE(!begins || ahead.tokens.size() == rows) << "rows stay where they are";
      running = ahead.empty() ? nullptr : &ahead;
      transcript.steps_ahead += running != nullptr;
    }
    transcript.add(events);
    scheduler.check();
  }
  return transcript;
}

}  // namespace nibble
