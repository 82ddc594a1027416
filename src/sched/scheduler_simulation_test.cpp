// Seeded simulation: a scheduler, its cache and a clock that stands still until it is moved, through random
// arrivals, aborts, deadlines, stops, preemptions and evictions. After every step the accounting of pages is
// exact; at the end every request has ended once, with the tokens that it gets alone.
//
// SIMULATIONS sets how many interleavings run, SIMULATION_SEED the first one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sched/scheduler_test_util.h"

namespace nibble {
namespace {

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// What happened in all of them together: a simulation that never meets a thing tells nothing of it.
struct Met {
  std::uint64_t steps = 0, preemptions = 0, evictions = 0, hits = 0;
  std::uint64_t snapshots = 0, resumed = 0, evicted_snapshots = 0, spoiled = 0;
  std::uint64_t accepted = 0, accepted_beside_states = 0, refused = 0;  // drafts
  std::map<FinishReason, int> ends;
  std::uint64_t owners = 0;  // simulations with several
  std::uint64_t turns = 0;   // steps of one kind while the other was wanted
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed)
      : random_(seed),
        limits_(draw_limits()),
        cache_(draw_cache(limits_)),
        owners_(make_owners(below(2) == 0 ? 1 : 2 + below(2))),
        scheduler_(limits_, owners_.span()),
        slots_(limits_.prompts_apart, limits_.draft_border),
        places_(limits_.prompts_apart, cache_.page_size) {
    ahead_ = random_() % 2 == 0;
    begins_ = random_() % 2 == 0;
  }

  void run() {
    const int arrivals = 1 + below(12);
    for (int round = 0; round < 3000 && !testing::Test::HasFailure(); ++round) {
      if (next_id_ <= static_cast<RequestId>(arrivals) && below(3) == 0) arrive();
      if (below(8) == 0) cancel();
      if (below(4) == 0) now_ += std::chrono::seconds(1);
      step();
      scheduler_.check();
      if (next_id_ > static_cast<RequestId>(arrivals) && scheduler_.idle()) return finish();
    }
    ASSERT_TRUE(testing::Test::HasFailure()) << "requests do not end";
  }

  void add_to(Met& met) const {
    met.steps += steps_;
    met.preemptions += scheduler_.totals().preemptions;
    for (const auto& pages : owners_.all) met.evictions += pages->evicted();
    met.hits += scheduler_.totals().prefix_hit_tokens;
    met.snapshots += scheduler_.totals().snapshots_taken;
    met.resumed += scheduler_.totals().snapshots_resumed;
    for (const auto& pages : owners_.all) met.evicted_snapshots += pages->evicted_snapshots();
    met.owners += owners_.all.size() > 1;
    met.spoiled += spoiled_;
    met.turns += turns_;
    const std::uint64_t accepted = scheduler_.totals().accepted_drafts;
    met.accepted += accepted;
    met.accepted_beside_states += cache_.states > 0 ? accepted : 0;
    met.refused += scheduler_.totals().drafted_tokens - accepted;
    for (const auto& [id, end] : transcript_.ends) ++met.ends[end];
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  SchedulerLimits draw_limits() {
    SchedulerLimits limits = limits_of(1 + below(6), 1 + below(40), 40 + below(120));
    limits.preempt_every = below(3) == 0 ? 1 + below(20) : 0;
    limits.prompts_apart = below(3) == 0;
    return limits;
  }

  // Caches of one or several owners, each with its share of a step.
  struct Owners {
    std::vector<std::unique_ptr<PageCache>> all;
    std::vector<PageCache*> pointers;
    std::span<PageCache* const> span() const { return pointers; }
  };
  Owners make_owners(int count) {
    Owners owners;
    for (int i = 0; i < count; ++i) {
      owners.all.push_back(std::make_unique<PageCache>(cache_));
      owners.pointers.push_back(owners.all.back().get());
    }
    limits_.owner_seqs = (limits_.max_num_seqs + count - 1) / count;
    limits_.owner_rows = (limits_.max_num_batched_tokens + count - 1) / count;
    return owners;
  }

  PageCacheOptions draw_cache(SchedulerLimits& limits) {
    PageCacheOptions cache{.page_size = 1 << below(5), .key = {random_(), random_()}};
    const bool windows = below(3) > 0;
    cache.window = windows ? 1 + below(40) : 0;
    const int least = (cache.window + cache.page_size - 1) / cache.page_size + 2;
    cache.page_count = {3 + below(40), windows ? least + below(20) : 0};
    cache.keep_prefixes = below(5) > 0;
    cache.hash_bits = below(4) == 0 ? below(4) : 128;
    limits.max_drafts = below(3) > 0 ? below(9) : 0;
    limits.looks_up_drafts = below(2) == 0;
    if (below(2) == 0) return cache;
    cache.states = limits.max_num_seqs;
    cache.snapshots = 1 + below(8);
    cache.snapshot_step = cache.page_size * (1 + below(3));
    limits.snapshot_interval = cache.snapshot_step * (1 + below(4));
    limits.draft_border = cache.snapshot_step;
    return cache;
  }

  // What somebody asked and has been answered so far, as a conversation's next turn has it.
  std::vector<TokenId> turn_behind_another() {
    if (asked_.empty()) return {};
    auto earlier = asked_.begin();
    std::advance(earlier, below(static_cast<int>(asked_.size())));
    std::vector<TokenId> prompt = earlier->second.prompt;
    const std::vector<TokenId>& answer = transcript_.tokens[earlier->first];
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    return prompt;
  }

  // Prompts are cut from a few texts, so that they share prefixes of every length.
  void arrive() {
    Request asked{.id = next_id_++};
    if (below(4) == 0) asked.prompt = turn_behind_another();
    const int text = below(3), length = 1 + below(60);
    for (int i = 0; i < length; ++i) asked.prompt.push_back(i * 7 + (i >= 20 * text ? text : 0));
    asked.sampling.max_tokens = below(40);
    asked.sampling.choice = static_cast<std::uint32_t>(below(3));
    asked.sampling.prompt_logprobs = asked.sampling.max_tokens == 0 || below(5) == 0;
    if (below(3) == 0) asked.sampling.stop_ids = {next_token(asked.prompt, asked.sampling.choice)};
    if (below(4) == 0) asked.deadline = now_ + std::chrono::seconds(below(30));
    if (below(3) == 0) asked.cache_salt = below(2) == 0 ? "a" : "b";
    const bool fits =
        static_cast<int>(asked.prompt.size()) <= cache_.page_size * cache_.page_count[full_pages] &&
        static_cast<int>(asked.prompt.size()) + (asked.sampling.max_tokens > 0) <= limits_.max_model_len;
    if (limits_.max_drafts > 0 && below(4) > 0)
      asked.constraint =
          std::make_shared<GuessingConstraint>(asked.prompt, asked.sampling.choice, 1 + below(20));
    const RequestId id = asked.id;
    ASSERT_EQ(scheduler_.submit(asked).ok(), fits);
    if (fits) asked_[id] = std::move(asked);
  }

  void cancel() { scheduler_.cancel(1 + random_() % next_id_); }

  void step() {
    std::vector<Event> events;
    if (running_ == nullptr) running_ = &scheduler_.plan(now_, events);
    ASSERT_TRUE(begun_ || running_->empty() == scheduler_.idle()) << "nobody waits while nobody runs";
    if (begun_) spoil(*running_);
    begun_ = false;
    if (running_->empty()) {
      running_ = nullptr;
    } else {
      ++steps_;
      check_rooms(*running_);
      check_kind(*running_);
      check_turns(*running_, events);
      places_.run(*running_);
      if (cache_.states > 0) slots_.run(*running_);
      const std::vector<StepResult> results = results_of(*running_);
      if (below(4) == 0) cancel();
      const Batch* ahead = ahead_ && below(5) > 0 ? &scheduler_.plan_ahead(now_, events) : nullptr;
      begun_ = begins_ && ahead != nullptr && !ahead->empty() && below(5) > 0;
      if (begun_) {
        check_rooms(*ahead);
        begun_sequences_ = ahead->sequences;
        scheduler_.begin_ahead();
      }
      scheduler_.commit(results, events);
      running_ = ahead != nullptr && !ahead->empty() ? ahead : nullptr;
    }
    forget_ended(events);
    transcript_.add(events);
  }

  // What ended since the step began was computed all the same.
  void spoil(const Batch& batch) {
    for (std::size_t i = 0; i < batch.sequences.size() && cache_.states > 0; ++i) {
      if (batch.sequences[i].row_count > 0) continue;
      slots_.spoil(begun_sequences_[i]);
      ++spoiled_;
    }
  }

  // A step has rows of one kind.
  void check_kind(const Batch& batch) {
    if (!limits_.prompts_apart) {
      ASSERT_FALSE(batch.of_prompts);
      return;
    }
    for (const BatchSequence& sequence : batch.sequences) {
      const int prompt = static_cast<int>(sequence.prompt.size());
      if (sequence.row_count == 0) continue;
      ASSERT_EQ(sequence.first_position < prompt, batch.of_prompts);
      ASSERT_TRUE(!batch.of_prompts || sequence.first_position + sequence.row_count <= prompt);
      ASSERT_EQ(sequence.prefill, batch.of_prompts);
    }
  }

  void forget_ended(const std::vector<Event>& events) {
    for (const Event& event : events) {
      if (event.finish != FinishReason::none) wanted_.erase(event.request);
    }
  }

  // While both kinds are wanted they take turns. Looked at where steps are planned one by one, for then it is
  // known what a sequence wants, and where nothing but its kind keeps a sequence from its rows.
  void check_turns(const Batch& batch, const std::vector<Event>& events) {
    const bool looks = limits_.prompts_apart && !ahead_ && cache_.window == 0;
    if (!looks || scheduler_.totals().preemptions > 0) return;
    forget_ended(events);
    int wanting_other = 0;
    for (const auto& [id, of_prompts] : wanted_) wanting_other += of_prompts != batch.of_prompts;
    ASSERT_TRUE(wanting_other == 0 || last_of_prompts_ != batch.of_prompts);
    turns_ += wanting_other > 0;
    last_of_prompts_ = batch.of_prompts;
    for (const BatchSequence& sequence : batch.sequences) {
      const int end = sequence.first_position + sequence.row_count;
      wanted_[sequence.request] = end < static_cast<int>(sequence.prompt.size());
    }
  }

  // Every row has its pages, in both groups, and nobody else's rows go there.
  void check_rooms(const Batch& batch) {
    std::map<std::tuple<int, int, std::int64_t>, RequestId> writers;
    std::map<int, int> rows, sequences;  // of each owner
    for (const BatchSequence& sequence : batch.sequences) {
      if (sequence.row_count == 0) continue;  // it ended once the step had begun
      ASSERT_LT(sequence.owner, static_cast<int>(owners_.all.size()));
      ASSERT_LE(rows[sequence.owner] += sequence.row_count, limits_.owner_rows);
      ASSERT_LE(++sequences[sequence.owner], limits_.owner_seqs);
      for (int position = sequence.first_position; position < sequence.first_position + sequence.row_count;
           ++position) {
        for (int group = 0; group < (cache_.page_count[window_pages] > 0 ? 2 : 1); ++group) {
          const auto table = sequence.pages[static_cast<std::size_t>(group)];
          const std::size_t index = static_cast<std::size_t>(position / cache_.page_size);
          ASSERT_LT(index, table.size());
          ASSERT_GE(table[index], 0);
          const std::int64_t slot =
              static_cast<std::int64_t>(table[index]) * cache_.page_size + position % cache_.page_size;
          ASSERT_TRUE(writers.emplace(std::tuple{sequence.owner, group, slot}, sequence.request).second);
          if (group != window_pages) continue;
          const int first_seen = std::max(0, position - cache_.window + 1);
          for (int seen = first_seen / cache_.page_size; seen <= static_cast<int>(index); ++seen)
            ASSERT_GE(table[static_cast<std::size_t>(seen)], 0) << "the window is whole";
        }
      }
    }
  }

  void finish() {
    for (const auto& pages : owners_.all) {
      for (int room = 0; room < node_rooms; ++room) ASSERT_EQ(pages->used(room), 0);
    }
    for (const auto& [id, asked] : asked_) {
      ASSERT_EQ(transcript_.ends.count(id), 1u) << id;
      std::vector<TokenId> tokens = asked.prompt;
      const std::vector<TokenId>& got = transcript_.tokens[id];
      for (const TokenId token : got) {
        ASSERT_EQ(token, next_token(tokens, asked.sampling.choice)) << id;
        tokens.push_back(token);
      }
      const auto* guessing = dynamic_cast<const GuessingConstraint*>(asked.constraint.get());
      ASSERT_TRUE(guessing == nullptr || guessing->accepted() == got.size()) << id;
      const FinishReason end = transcript_.ends.at(id);
      const int pool = cache_.page_size * cache_.page_count[full_pages];
      const int prompt = static_cast<int>(asked.prompt.size());
      const int most =
          std::min({asked.sampling.max_tokens, limits_.max_model_len - prompt, pool - prompt + 1});
      ASSERT_TRUE(end != FinishReason::length || static_cast<int>(got.size()) == most) << id;
      ASSERT_TRUE(end != FinishReason::timeout || asked.deadline) << id;
      const int cached = transcript_.cached.at(id);
      const int whole = cache_.states > 0 ? cache_.snapshot_step : cache_.page_size;
      ASSERT_TRUE(cached % whole == 0 && cached < prompt) << id;
      const auto scores = transcript_.prompt_logprobs.find(id);
      ASSERT_TRUE(end != FinishReason::length ||
                  asked.sampling.prompt_logprobs == (scores != transcript_.prompt_logprobs.end()));
      if (scores == transcript_.prompt_logprobs.end()) continue;
      for (int i = 1; i < prompt; ++i) {
        const std::size_t at = static_cast<std::size_t>(i);
        ASSERT_EQ(scores->second[at], -static_cast<float>(asked.prompt[at])) << id;
      }
    }
  }

  std::mt19937_64 random_;
  SchedulerLimits limits_;
  PageCacheOptions cache_;
  Owners owners_;
  Scheduler scheduler_;
  bool ahead_ = false, begins_ = false;
  bool begun_ = false;  // what runs began before the step ahead of it was committed
  Scheduler::Time now_{};
  RequestId next_id_ = 1;
  std::map<RequestId, Request> asked_;
  Transcript transcript_;
  const Batch* running_ = nullptr;
  SlotsOfTokens slots_;
  PagesOfBits places_;
  std::map<RequestId, bool> wanted_;  // of those that run: whether the next row is one of a prompt
  bool last_of_prompts_ = false;
  std::uint64_t turns_ = 0;
  std::vector<BatchSequence> begun_sequences_;
  std::uint64_t spoiled_ = 0;
  std::uint64_t steps_ = 0;
};

TEST(SchedulerSimulation, NoInterleavingLosesAPageARequestOrAToken) {
  const std::uint64_t first = setting("SIMULATION_SEED", 1);
  const std::uint64_t count = setting("SIMULATIONS", 5000);
  Met met;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation(seed);
    simulation.run();
    simulation.add_to(met);
    if (!HasFailure()) continue;
    FAIL() << "seed " << seed << "; again: SIMULATION_SEED=" << seed
           << " SIMULATIONS=1 build/release/src/sched/sched_test "
              "--gtest_filter=SchedulerSimulation.*";
  }
  if (count < 500) return;
  EXPECT_GT(met.owners, count / 4);
  EXPECT_GT(met.turns, count / 50);
  EXPECT_GT(met.steps, 10 * count);
  EXPECT_GT(met.preemptions, count / 10);
  EXPECT_GT(met.evictions, count / 10);
  EXPECT_GT(met.hits, count);
  EXPECT_GT(met.snapshots, count);
  EXPECT_GT(met.resumed, count / 5);
  EXPECT_GT(met.evicted_snapshots, count / 2);
  EXPECT_GT(met.spoiled, count / 50);
  EXPECT_GT(met.accepted, count);
  EXPECT_GT(met.accepted_beside_states, count / 2);
  EXPECT_GT(met.refused, count / 2);
  for (const FinishReason end :
       {FinishReason::stop, FinishReason::length, FinishReason::cancelled, FinishReason::timeout})
    EXPECT_GT(met.ends[end], static_cast<int>(count / 10)) << finish_reason_name(end);
}

}  // namespace
}  // namespace nibble
