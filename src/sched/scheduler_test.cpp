#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace nibble {
namespace {

Request request(RequestId id, int prompt, int max_tokens) {
  Request made{.id = id};
  for (int i = 0; i < prompt; ++i) made.prompt.push_back(i);
  made.sampling.max_tokens = max_tokens;
  return made;
}

// Runs the planned step as a model would that always says `token`.
std::vector<Event> step(Scheduler& scheduler, TokenId token = 9) {
  std::vector<Event> events;
  const Batch& batch = scheduler.plan(events);
  std::vector<StepResult> results(batch.sequences.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const BatchSequence& sequence = batch.sequences[i];
    if (sequence.samples) results[i].token = token;
    std::size_t targets = 0;
    for (int row = 0; row < sequence.logit_count; ++row) {
      const LogitRow& logits = batch.logit_rows[static_cast<std::size_t>(sequence.logit_begin + row)];
      if (logits.target >= 0) sequence.target_logprobs[targets++] = -static_cast<float>(logits.target);
    }
    EXPECT_EQ(targets, sequence.target_logprobs.size());
  }
  scheduler.commit(results, events);
  return events;
}

struct Bench {
  PagePool pages{64, 16};
  Scheduler scheduler;
  explicit Bench(SchedulerLimits limits = {.max_num_seqs = 4,
                                           .max_num_batched_tokens = 32,
                                           .max_logit_rows = 16,
                                           .max_model_len = 256})
      : scheduler(limits, pages) {}
};

TEST(Scheduler, RunsAPromptInChunksThenOneTokenAStep) {
  Bench bench;
  ASSERT_TRUE(bench.scheduler.submit(request(1, 70, 3)).ok());
  EXPECT_TRUE(step(bench.scheduler).empty()) << "rows 0..31";
  EXPECT_TRUE(step(bench.scheduler).empty()) << "rows 32..63";
  EXPECT_EQ(step(bench.scheduler).at(0).token, 9) << "rows 64..69 and the first token";
  EXPECT_EQ(step(bench.scheduler).at(0).finish, FinishReason::none);
  EXPECT_EQ(step(bench.scheduler).at(0).finish, FinishReason::length);
  EXPECT_TRUE(bench.scheduler.idle());
  EXPECT_EQ(bench.pages.free_count(), 64);
}

TEST(Scheduler, DecodeRowsComeBeforePromptChunksInOneBatch) {
  Bench bench;
  ASSERT_TRUE(bench.scheduler.submit(request(1, 4, 8)).ok());
  step(bench.scheduler);
  ASSERT_TRUE(bench.scheduler.submit(request(2, 100, 8)).ok());
  std::vector<Event> events;
  const Batch& batch = bench.scheduler.plan(events);
  ASSERT_EQ(batch.sequences.size(), 2u);
  EXPECT_EQ(batch.sequences[0].request, 1u);
  EXPECT_EQ(batch.sequences[0].first_position, 4);
  EXPECT_EQ(batch.sequences[0].row_count, 1);
  EXPECT_EQ(batch.sequences[1].row_begin, 1);
  EXPECT_EQ(batch.sequences[1].row_count, 31);
  EXPECT_EQ(batch.logit_rows.size(), 1u) << "the chunk does not end its prompt";
}

TEST(Scheduler, AStopTokenEndsTheAnswerAndIsReported) {
  Bench bench;
  Request asked = request(1, 4, 100);
  asked.sampling.stop_ids = {3, 9};
  ASSERT_TRUE(bench.scheduler.submit(asked).ok());
  const std::vector<Event> events = step(bench.scheduler);
  EXPECT_EQ(events.at(0).token, 9);
  EXPECT_EQ(events.at(0).finish, FinishReason::stop);
}

TEST(Scheduler, PromptLogprobsComeWholeWhateverTheChunks) {
  for (int rows : {1, 3, 16, 32}) {
    Bench bench(
        {.max_num_seqs = 1, .max_num_batched_tokens = rows, .max_logit_rows = 5, .max_model_len = 256});
    Request asked = request(1, 21, 0);
    asked.sampling.prompt_logprobs = true;
    ASSERT_TRUE(bench.scheduler.submit(asked).ok());
    std::vector<Event> events;
    while (events.empty()) events = step(bench.scheduler);
    ASSERT_EQ(events.at(0).prompt_logprobs.size(), 21u);
    for (int i = 1; i < 21; ++i)
      EXPECT_EQ(events[0].prompt_logprobs[static_cast<std::size_t>(i)], -static_cast<float>(i));
    EXPECT_EQ(events[0].token, -1);
    EXPECT_EQ(events[0].finish, FinishReason::length);
  }
}

TEST(Scheduler, RefusesWhatCouldNeverRunAndSaysWhatWould) {
  Bench bench;
  EXPECT_NE(bench.scheduler.submit(request(1, 0, 1)).message().find("empty"), std::string::npos);
  EXPECT_NE(bench.scheduler.submit(request(1, 256, 1)).message().find("--max-model-len"), std::string::npos);
  EXPECT_TRUE(bench.scheduler.submit(request(1, 255, 50)).ok()) << "cut to the room left";
  PagePool few(2, 16);
  Scheduler small({.max_num_seqs = 1, .max_num_batched_tokens = 8, .max_logit_rows = 1, .max_model_len = 256},
                  few);
  EXPECT_NE(small.submit(request(1, 40, 1)).message().find("KV cache"), std::string::npos);
}

TEST(Scheduler, ANumberThatIsNoneEndsItsRequestAlone) {
  Bench bench;
  ASSERT_TRUE(bench.scheduler.submit(request(1, 2, 5)).ok());
  ASSERT_TRUE(bench.scheduler.submit(request(2, 2, 5)).ok());
  std::vector<Event> events;
  (void)bench.scheduler.plan(events);
  std::vector<StepResult> results(2);
  results[0].finite = false;
  results[1].token = 4;
  bench.scheduler.commit(results, events);
  EXPECT_EQ(events.at(0).finish, FinishReason::error);
  EXPECT_EQ(events.at(1).token, 4);
  EXPECT_EQ(bench.scheduler.running(), 1u);
}

TEST(Scheduler, EveryRequestEndsOnceAndAllPagesComeBackUnderRandomLoad) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&random](unsigned n) { return static_cast<int>(random() % n); };
    PagePool pages(8 + below(30), 16);
    const int seqs = 1 + below(6);
    Scheduler scheduler({.max_num_seqs = seqs,
                         .max_num_batched_tokens = 1 + below(40),
                         .max_logit_rows = seqs + below(5),
                         .max_model_len = 100},
                        pages);
    std::map<RequestId, int> tokens, ends, wanted;
    RequestId next = 1;
    for (int i = 0; i < 4000 && (i < 300 || !scheduler.idle()); ++i) {
      if (i < 300 && random() % 3 == 0) {
        Request asked = request(next, 1 + below(90), below(20));
        asked.sampling.prompt_logprobs = asked.sampling.max_tokens == 0 || random() % 4 == 0;
        wanted[next] = std::min(asked.sampling.max_tokens, 100 - static_cast<int>(asked.prompt.size()));
        ASSERT_TRUE(scheduler.submit(asked).ok());
        ++next;
      }
      if (next > 1 && random() % 10 == 0) scheduler.cancel(1 + random() % next);
      std::vector<Event> events;
      const Batch& batch = scheduler.plan(events);
      std::vector<StepResult> results(batch.sequences.size());
      int rows = 0;
      for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
        const BatchSequence& sequence = batch.sequences[s];
        EXPECT_EQ(sequence.row_begin, rows);
        rows += sequence.row_count;
        EXPECT_GE(static_cast<int>(sequence.pages.size()) * 16, sequence.first_position + sequence.row_count);
        if (sequence.samples) results[s].token = 9;
        std::size_t targets = 0;
        for (int row = 0; row < sequence.logit_count; ++row)
          targets += batch.logit_rows[static_cast<std::size_t>(sequence.logit_begin + row)].target >= 0;
        EXPECT_EQ(targets, sequence.target_logprobs.size());
      }
      EXPECT_EQ(rows, static_cast<int>(batch.tokens.size()));
      scheduler.commit(results, events);
      for (const Event& event : events) {
        tokens[event.request] += event.token >= 0;
        ends[event.request] += event.finish != FinishReason::none;
        if (event.finish == FinishReason::length) {
          EXPECT_EQ(tokens[event.request], wanted[event.request]);
        }
      }
    }
    ASSERT_TRUE(scheduler.idle()) << "seed " << seed;
    for (RequestId id = 1; id < next; ++id) EXPECT_EQ(ends[id], 1) << "seed " << seed << " request " << id;
    EXPECT_EQ(pages.free_count(), pages.page_count());
  }
}

}  // namespace
}  // namespace nibble
