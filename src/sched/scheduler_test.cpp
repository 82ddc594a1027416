#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "sched/scheduler_test_util.h"

namespace nibble {
namespace {

using std::chrono::seconds;

struct Bench {
  PageCache pages;
  Scheduler scheduler;
  explicit Bench(SchedulerLimits limits = limits_of(4, 32), PageCacheOptions cache = cache_of(64))
      : pages(cache), scheduler(limits, pages) {}
};

TEST(Scheduler, RunsAPromptInChunksThenOneTokenAStep) {
  Bench bench;
  ASSERT_TRUE(bench.scheduler.submit(request(1, 70, 3)).ok());
  EXPECT_TRUE(step(bench.scheduler).empty()) << "rows 0..31";
  EXPECT_TRUE(step(bench.scheduler).empty()) << "rows 32..63";
  EXPECT_GE(step(bench.scheduler).at(0).token, 0) << "rows 64..69 and the first token";
  EXPECT_EQ(step(bench.scheduler).at(0).finish, FinishReason::none);
  EXPECT_EQ(step(bench.scheduler).at(0).finish, FinishReason::length);
  EXPECT_TRUE(bench.scheduler.idle());
  EXPECT_EQ(bench.pages.used(full_pages), 0);
}

TEST(Scheduler, TheFirstEventTellsWhenTheRequestLeftTheQueue) {
  Bench bench(limits_of(1, 32));
  for (const int id : {1, 2, 3})
    ASSERT_TRUE(bench.scheduler.submit(request(static_cast<RequestId>(id), 40, 2, 100 * id)).ok());
  EXPECT_TRUE(step(bench.scheduler, seconds(5)).empty()) << "rows 0..31 of the first";
  EXPECT_EQ(step(bench.scheduler, seconds(6)).at(0).begun, seconds(5));
  EXPECT_EQ(step(bench.scheduler, seconds(7)).at(0).begun, std::nullopt) << "not its first event";
  bench.scheduler.cancel(3);
  const std::vector<Event> events = step(bench.scheduler, seconds(8));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::cancelled);
  EXPECT_EQ(events[0].begun, std::nullopt) << "it never left the queue";
  EXPECT_EQ(step(bench.scheduler, seconds(9)).at(0).begun, seconds(8));
}

TEST(Scheduler, DecodeRowsComeBeforePromptChunksInOneBatch) {
  Bench bench;
  ASSERT_TRUE(bench.scheduler.submit(request(1, 4, 8)).ok());
  step(bench.scheduler);
  ASSERT_TRUE(bench.scheduler.submit(request(2, 100, 8)).ok());
  std::vector<Event> events;
  const Batch& batch = bench.scheduler.plan({}, events);
  ASSERT_EQ(batch.sequences.size(), 2u);
  EXPECT_EQ(batch.sequences[0].request, 1u);
  EXPECT_EQ(batch.sequences[0].first_position, 4);
  EXPECT_EQ(batch.sequences[0].row_count, 1);
  EXPECT_EQ(batch.sequences[1].row_begin, 1);
  EXPECT_EQ(batch.sequences[1].row_count, 31);
  EXPECT_EQ(batch.logit_rows.size(), 1u) << "the chunk does not end its prompt";
}

TEST(Scheduler, StepsOfPromptsAndOfAnswersTakeTurnsWherePromptsAreApart) {
  SchedulerLimits limits = limits_of(4, 32);
  limits.prompts_apart = true;
  Bench bench(limits);
  ASSERT_TRUE(bench.scheduler.submit(request(1, 4, 8)).ok());
  step(bench.scheduler);
  ASSERT_TRUE(bench.scheduler.submit(request(2, 70, 8, 100)).ok());
  const auto next = [&] {
    std::vector<Event> events;
    const Batch batch = bench.scheduler.plan({}, events);
    bench.scheduler.commit(results_of(batch), events);
    std::vector<std::pair<RequestId, int>> rows;
    for (const BatchSequence& sequence : batch.sequences)
      rows.emplace_back(sequence.request, sequence.row_count);
    return std::pair(batch.of_prompts, rows);
  };
  using Rows = std::vector<std::pair<RequestId, int>>;
  EXPECT_EQ(next(), std::pair(false, Rows{{1, 1}}));
  EXPECT_EQ(next(), std::pair(true, Rows{{2, 32}}));
  EXPECT_EQ(next(), std::pair(false, Rows{{1, 1}}));
  EXPECT_EQ(next(), std::pair(true, Rows{{2, 32}}));
  EXPECT_EQ(next(), std::pair(false, Rows{{1, 1}}));
  EXPECT_EQ(next(), std::pair(true, Rows{{2, 6}}));
  EXPECT_EQ(next(), std::pair(false, Rows{{1, 1}, {2, 1}})) << "both decode";
}

// One owner has answers alone and the other prompts alone, so each has steps without rows.
TEST(Scheduler, AnOwnerWithoutSequencesOfAStepsKindMakesNoRoom) {
  PageCache answering(cache_of(64)), reading(cache_of(64));
  PageCache* const owners[] = {&answering, &reading};
  SchedulerLimits limits = limits_of(8, 32);
  limits.prompts_apart = true;
  Scheduler scheduler(limits, owners);
  ASSERT_TRUE(scheduler.submit(request(1, 40, 60)).ok());
  for (int i = 0; i < 3; ++i) step(scheduler);
  ASSERT_TRUE(scheduler.submit(request(2, 48, 60)).ok()) << "it begins like the first";
  for (int i = 0; i < 3; ++i) step(scheduler);
  for (const int id : {3, 4})
    ASSERT_TRUE(scheduler.submit(request(static_cast<RequestId>(id), 200, 2, 1000 * id)).ok());
  std::map<RequestId, int> owner_of;
  int without_rows = 0;
  while (!scheduler.idle()) {
    std::vector<Event> events;
    const Batch& batch = scheduler.plan({}, events);
    std::array<int, 2> rows{};
    for (const BatchSequence& sequence : batch.sequences) {
      owner_of[sequence.request] = sequence.owner;
      rows[static_cast<std::size_t>(sequence.owner)] += sequence.row_count;
    }
    without_rows += owner_of.size() == 4 && (rows[0] == 0 || rows[1] == 0);
    scheduler.commit(results_of(batch), events);
  }
  EXPECT_EQ(owner_of[1], owner_of[2]);
  EXPECT_TRUE(owner_of[3] != owner_of[1] && owner_of[4] == owner_of[3]);
  EXPECT_GT(without_rows, 4);
  EXPECT_EQ(scheduler.totals().preemptions, 0u);
}

TEST(Scheduler, AnAnswerServesNoPromptWherePromptsAreApart) {
  for (const bool apart : {false, true}) {
    SchedulerLimits limits = limits_of(4, 64);
    limits.prompts_apart = apart;
    Bench bench(limits);
    Request first = request(1, 40, 41);
    ASSERT_TRUE(bench.scheduler.submit(first).ok());
    const Transcript turn = run(bench.scheduler);
    Request second = request(2, 40, 2);
    for (const TokenId token : turn.tokens.at(1)) second.prompt.push_back(token);
    ASSERT_TRUE(bench.scheduler.submit(second).ok());
    EXPECT_EQ(run(bench.scheduler).cached.at(2), apart ? 32 : 80);
  }
}

TEST(Scheduler, APreemptedAnswerIsComputedAgainAsAnAnswer) {
  SchedulerLimits limits = limits_of(2, 64);
  limits.prompts_apart = true;
  limits.preempt_every = 18;
  Bench bench(limits);
  // Somebody's prompt is the first one's prompt and answer; its pages are not what that answer was.
  ASSERT_TRUE(bench.scheduler.submit(request(1, 36, 60)).ok());
  bool computed_again = false, asked_other = false;
  while (!bench.scheduler.idle()) {
    std::vector<Event> events;
    const Batch batch = bench.scheduler.plan({}, events);
    for (const BatchSequence& sequence : batch.sequences) {
      const int prompt = static_cast<int>(sequence.prompt.size());
      EXPECT_EQ(sequence.first_position < prompt, batch.of_prompts);
      EXPECT_TRUE(!batch.of_prompts || sequence.first_position + sequence.row_count <= prompt);
      computed_again = computed_again || (!batch.of_prompts && sequence.row_count > 16);
      if (sequence.answer.size() == 20 && !std::exchange(asked_other, true)) {
        Request other = request(2, 36, 1);
        other.prompt.insert(other.prompt.end(), sequence.answer.begin(), sequence.answer.end());
        ASSERT_TRUE(bench.scheduler.submit(other).ok());
      }
    }
    if (!batch.empty()) bench.scheduler.commit(results_of(batch), events);
  }
  EXPECT_TRUE(computed_again);
  EXPECT_GT(bench.scheduler.totals().preemptions, 0u);
}

TEST(Scheduler, AStopTokenEndsTheAnswerAndIsReported) {
  Bench bench;
  Request asked = request(1, 4, 100);
  const TokenId first = next_token(asked.prompt, 0);
  asked.sampling.stop_ids = {3, first};
  ASSERT_TRUE(bench.scheduler.submit(asked).ok());
  const std::vector<Event> events = step(bench.scheduler);
  EXPECT_EQ(events.at(0).token, first);
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
    for (int i = 1; i < 21; ++i) {
      EXPECT_EQ(events[0].prompt_logprobs[static_cast<std::size_t>(i)],
                -static_cast<float>(asked.prompt[static_cast<std::size_t>(i)]));
    }
    EXPECT_EQ(events[0].token, -1);
    EXPECT_EQ(events[0].finish, FinishReason::length);
  }
}

TEST(Scheduler, RefusesWhatCouldNeverRunAndSaysWhatWould) {
  Bench bench;
  EXPECT_NE(bench.scheduler.submit(request(1, 0, 1)).message().find("empty"), std::string::npos);
  EXPECT_NE(bench.scheduler.submit(request(1, 256, 1)).message().find("--max-model-len"), std::string::npos);
  EXPECT_TRUE(bench.scheduler.submit(request(1, 255, 50)).ok()) << "cut to the room left";
}

TEST(Scheduler, APromptLargerThanAllPagesIsRefusedAndSmallerOnesBehindItGoOn) {
  Bench bench(limits_of(4, 32), cache_of(6));
  const Status status = bench.scheduler.submit(request(1, 97, 1));
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("the KV cache holds 96"), std::string::npos) << status.message();
  for (RequestId id = 2; id < 22; ++id) ASSERT_TRUE(bench.scheduler.submit(request(id, 30, 5)).ok());
  const Transcript transcript = run(bench.scheduler);
  EXPECT_EQ(transcript.ends.size(), 20u);
}

TEST(Scheduler, AloneItGrowsToTheLastPageAndEndsWithLength) {
  Bench bench(limits_of(4, 32), cache_of(4));
  ASSERT_TRUE(bench.scheduler.submit(request(1, 50, 200)).ok());
  const Transcript transcript = run(bench.scheduler);
  EXPECT_EQ(transcript.ends.at(1), FinishReason::length);
  EXPECT_EQ(transcript.tokens.at(1).size(), 15u) << "64 stored, and one that needs no slot";
  EXPECT_EQ(bench.scheduler.totals().preemptions, 0u);
}

TEST(Scheduler, ANumberThatIsNoneEndsItsRequestAloneAndItsPagesServeNobody) {
  Bench bench;
  ASSERT_TRUE(bench.scheduler.submit(request(1, 20, 5)).ok());
  ASSERT_TRUE(bench.scheduler.submit(request(2, 2, 5)).ok());
  std::vector<Event> events;
  ASSERT_EQ(bench.scheduler.plan({}, events).sequences.size(), 2u);
  std::vector<StepResult> results(2);
  results[0].finite = false;
  results[1].token = 4;
  bench.scheduler.commit(results, events);
  EXPECT_EQ(events.at(0).finish, FinishReason::error);
  EXPECT_EQ(events.at(1).token, 4);
  EXPECT_EQ(bench.scheduler.running(), 1);
  ASSERT_TRUE(bench.scheduler.submit(request(3, 20, 1)).ok());
  EXPECT_EQ(run(bench.scheduler).cached.at(3), 0);
}

TEST(Scheduler, AnEqualPromptIsFoundExactToThePageAndBelowItsLength) {
  Bench bench;
  for (const auto& [id, prompt, cached] :
       {std::tuple{1, 40, 0}, {2, 40, 32}, {3, 48, 32}, {4, 48, 32}, {5, 49, 48}, {6, 16, 0}, {7, 17, 16}}) {
    ASSERT_TRUE(bench.scheduler.submit(request(static_cast<RequestId>(id), prompt, 1)).ok());
    EXPECT_EQ(run(bench.scheduler).cached.at(static_cast<RequestId>(id)), cached) << id;
  }
  EXPECT_EQ(bench.scheduler.totals().prefix_query_tokens, 40u + 40 + 48 + 48 + 49 + 16 + 17);
  EXPECT_EQ(bench.scheduler.totals().prefix_hit_tokens, 32u + 32 + 32 + 48 + 16);
}

TEST(Scheduler, ASecondTurnFindsPromptAndAnswerOfTheFirst) {
  Bench bench;
  ASSERT_TRUE(bench.scheduler.submit(request(1, 20, 20)).ok());
  const Transcript first = run(bench.scheduler);
  Request second = request(2, 20, 1);
  const std::vector<TokenId>& answer = first.tokens.at(1);
  second.prompt.insert(second.prompt.end(), answer.begin(), answer.end());
  ASSERT_TRUE(bench.scheduler.submit(second).ok());
  EXPECT_EQ(run(bench.scheduler).cached.at(2), 32) << "39 were stored";
}

TEST(Scheduler, ChoicesOfOnePromptComputeItOnce) {
  Bench bench(limits_of(8, 64));
  for (RequestId id = 1; id <= 6; ++id) {
    Request choice = request(id, 100, 4);
    choice.sampling.choice = static_cast<std::uint32_t>(id);
    ASSERT_TRUE(bench.scheduler.submit(choice).ok());
  }
  const Transcript transcript = run(bench.scheduler);
  EXPECT_EQ(transcript.cached.at(1), 0);
  for (RequestId id = 2; id <= 6; ++id) EXPECT_EQ(transcript.cached.at(id), 96) << id;
  EXPECT_EQ(transcript.prefill_rows, 100 + 5 * 4) << "whole pages once, what lies behind them each";
  EXPECT_LE(transcript.most_used, 6 + 6 * 2) << "pages of six sequences";
}

TEST(Scheduler, WhoBeginsAlikeWaitsForItWhileOthersPass) {
  Bench bench(limits_of(8, 32));
  ASSERT_TRUE(bench.scheduler.submit(request(1, 90, 2)).ok());
  step(bench.scheduler);
  ASSERT_TRUE(bench.scheduler.submit(request(2, 80, 2)).ok());
  ASSERT_TRUE(bench.scheduler.submit(request(3, 10, 1, 500)).ok());
  std::vector<Event> events = step(bench.scheduler);
  EXPECT_EQ(bench.scheduler.queued(), 2) << "the second chunk takes all rows";
  events = step(bench.scheduler);
  ASSERT_EQ(events.size(), 1u) << "26 rows of the first, six of the third";
  const Transcript rest = run(bench.scheduler);
  EXPECT_EQ(rest.cached.at(2), 64);
}

TEST(Scheduler, PromptsToBeScoredAreComputedAndShareWhatTheyStore) {
  Bench bench;
  ASSERT_TRUE(bench.scheduler.submit(request(1, 40, 1)).ok());
  run(bench.scheduler);
  Request scored = request(2, 40, 0);
  scored.sampling.prompt_logprobs = true;
  ASSERT_TRUE(bench.scheduler.submit(scored).ok());
  const Transcript transcript = run(bench.scheduler);
  EXPECT_EQ(transcript.cached.at(2), 0);
  EXPECT_EQ(transcript.prefill_rows, 40);
  EXPECT_EQ(bench.pages.idle(full_pages), 2) << "equal pages are kept once";
}

TEST(Scheduler, SaltsAndTheSwitchKeepRequestsApart) {
  Bench bench;
  const char* salts[] = {"", "a", "b", "a"};
  for (RequestId id = 0; id < 4; ++id) {
    Request salted = request(id, 40, 1);
    salted.cache_salt = salts[id];
    ASSERT_TRUE(bench.scheduler.submit(salted).ok());
    EXPECT_EQ(run(bench.scheduler).cached.at(id), id == 3 ? 32 : 0);
  }
  PageCacheOptions off = cache_of(64);
  off.keep_prefixes = false;
  Bench plain(limits_of(4, 32), off);
  for (RequestId id = 0; id < 2; ++id) {
    ASSERT_TRUE(plain.scheduler.submit(request(id, 40, 1)).ok());
    EXPECT_EQ(run(plain.scheduler).cached.at(id), 0);
  }
  EXPECT_EQ(plain.scheduler.totals().prefix_query_tokens, 0u);
}

TEST(Scheduler, ACancelledOrOverdueRequestEndsWithTheNextStep) {
  Bench bench;
  Request hurried = request(2, 10, 50);
  hurried.deadline = seconds(5);
  ASSERT_TRUE(bench.scheduler.submit(request(1, 10, 50)).ok());
  ASSERT_TRUE(bench.scheduler.submit(hurried).ok());
  for (RequestId id = 3; id < 8; ++id) {
    Request waiting = request(id, 10, 50);
    waiting.deadline = seconds(id);
    ASSERT_TRUE(bench.scheduler.submit(waiting).ok());
  }
  EXPECT_EQ(step(bench.scheduler, seconds(2)).size(), 3u) << "three prompts and two rows of a fourth";
  bench.scheduler.cancel(1);
  std::vector<Event> events = step(bench.scheduler, seconds(4));
  EXPECT_EQ(events.at(0).request, 1u);
  EXPECT_EQ(events.at(0).finish, FinishReason::cancelled);
  EXPECT_EQ(events.at(1).request, 3u);
  EXPECT_EQ(events.at(1).finish, FinishReason::timeout);
  EXPECT_NE(events.at(1).error.find("time"), std::string::npos);
  EXPECT_EQ(events.at(2).request, 4u);
  const Transcript rest = run(bench.scheduler, seconds(5));
  EXPECT_EQ(rest.ends.at(2), FinishReason::timeout);
  EXPECT_EQ(rest.ends.at(7), FinishReason::length);
  EXPECT_EQ(bench.pages.used(full_pages), 0);
}

// The pool holds two of the three at their full length.
TEST(Scheduler, WhenPagesRunOutTheYoungestMakesRoomAndGoesOnWithTheSameTokens) {
  std::map<RequestId, std::vector<TokenId>> alone;
  for (RequestId id = 1; id <= 3; ++id) {
    Bench bench;
    ASSERT_TRUE(bench.scheduler.submit(request(id, 40, 80, 1000 * static_cast<int>(id))).ok());
    alone[id] = run(bench.scheduler).tokens.at(id);
  }
  for (const bool keep : {true, false}) {
    PageCacheOptions few = cache_of(16);
    few.keep_prefixes = keep;
    Bench bench(limits_of(4, 64), few);
    for (RequestId id = 1; id <= 3; ++id)
      ASSERT_TRUE(bench.scheduler.submit(request(id, 40, 80, 1000 * static_cast<int>(id))).ok());
    const Transcript transcript = run(bench.scheduler);
    EXPECT_EQ(transcript.tokens, alone);
    EXPECT_GT(bench.scheduler.totals().preemptions, 0u);
    EXPECT_EQ(transcript.order_of_ends.front(), 1u);
    const std::uint64_t useful = 3 * (40 + 79);
    EXPECT_EQ(transcript.rows, static_cast<int>(useful + bench.scheduler.totals().recomputed_tokens))
        << "every row is either new or counted as recomputed";
    EXPECT_LE(transcript.rows, static_cast<int>(3 * useful));
  }
}

// Short prompts and long answers in few pages: whoever came back as soon as its tokens fit would lose them
// again at the next page.
TEST(Scheduler, WorkLostForWantOfPagesStaysBelowTwiceTheWorkDone) {
  for (const int pages : {20, 30, 45, 70}) {
    for (const int prompt : {3, 60}) {
      PageCacheOptions few = cache_of(pages);
      few.keep_prefixes = false;
      Bench bench(limits_of(24, 512, 300), few);
      int useful = 0;
      for (RequestId id = 1; id <= 24; ++id) {
        const int tokens = 100 + 7 * static_cast<int>(id);
        ASSERT_TRUE(bench.scheduler.submit(request(id, prompt, tokens, 100 * static_cast<int>(id))).ok());
        useful += prompt + std::min(tokens, std::min(300, 16 * pages) - prompt) - 1;
      }
      const Transcript transcript = run(bench.scheduler);
      EXPECT_GT(bench.scheduler.totals().preemptions, 0u);
      EXPECT_LE(transcript.rows, 3 * useful) << pages << " pages, prompts of " << prompt;
    }
  }
}

TEST(Scheduler, EveryRequestFinishesHoweverOftenOneIsPreempted) {
  for (const bool keep : {true, false}) {
    for (int every = 1; every <= 20; ++every) {
      SchedulerLimits limits = limits_of(4, 24);
      PageCacheOptions cache = cache_of(40, 12);
      cache.keep_prefixes = keep;
      Bench calm(limits, cache);
      limits.preempt_every = every;
      Bench forced(limits, cache);
      int useful = 0;
      for (RequestId id = 1; id <= 8; ++id) {
        const int prompt = 5 + 9 * static_cast<int>(id), tokens = 30;
        ASSERT_TRUE(calm.scheduler.submit(request(id, prompt, tokens, 100 * static_cast<int>(id))).ok());
        ASSERT_TRUE(forced.scheduler.submit(request(id, prompt, tokens, 100 * static_cast<int>(id))).ok());
        useful += prompt + tokens - 1;
      }
      const Transcript expected = run(calm.scheduler), got = run(forced.scheduler);
      EXPECT_EQ(got.tokens, expected.tokens) << every;
      EXPECT_GT(forced.scheduler.totals().preemptions, 0u) << every;
      EXPECT_LE(got.rows, 3 * useful) << every;
      EXPECT_EQ(got.rows, useful + static_cast<int>(forced.scheduler.totals().recomputed_tokens)) << every;
      EXPECT_EQ(forced.pages.used(full_pages) + forced.pages.used(window_pages), 0);
    }
  }
}

TEST(Scheduler, AStepPlannedAheadGivesTheSameTokensAndDropsWhoEnded) {
  for (const int stop : {-1, 5, 9}) {
    Bench plain(limits_of(4, 24), cache_of(40, 12)), ahead(limits_of(4, 24), cache_of(40, 12)),
        begun(limits_of(4, 24), cache_of(40, 12));
    for (RequestId id = 1; id <= 9; ++id) {
      Request asked =
          request(id, 7 * static_cast<int>(id), 5 * static_cast<int>(id % 4), 10 * static_cast<int>(id));
      if (stop > 0) asked.sampling.stop_ids = {next_token(asked.prompt, stop % 3), stop};
      asked.sampling.prompt_logprobs = id % 3 == 0;
      ASSERT_TRUE(plain.scheduler.submit(asked).ok());
      ASSERT_TRUE(ahead.scheduler.submit(asked).ok());
      ASSERT_TRUE(begun.scheduler.submit(asked).ok());
    }
    const Transcript expected = run(plain.scheduler);
    for (const Transcript& got : {run_ahead(ahead.scheduler), run_ahead(begun.scheduler, true)}) {
      EXPECT_EQ(got.tokens, expected.tokens);
      EXPECT_EQ(got.ends, expected.ends);
      EXPECT_EQ(got.prompt_logprobs, expected.prompt_logprobs);
      EXPECT_GT(got.steps_ahead, 10);
    }
  }
}

TEST(Scheduler, WhatIsCancelledWhileAStepRunsEndsWithItsCommit) {
  Bench bench;
  for (RequestId id = 1; id <= 3; ++id)
    ASSERT_TRUE(bench.scheduler.submit(request(id, 5, 50, 10 * static_cast<int>(id))).ok());
  std::vector<Event> events;
  const Batch& first = bench.scheduler.plan({}, events);
  const std::vector<StepResult> results = results_of(first);
  bench.scheduler.cancel(2);
  const Batch& second = bench.scheduler.plan_ahead({}, events);
  EXPECT_EQ(second.sequences.size(), 2u);
  EXPECT_EQ(second.tokens, std::vector<TokenId>(2, -1)) << "place-holders";
  EXPECT_TRUE(events.empty());
  bench.scheduler.commit(results, events);
  EXPECT_EQ(events.at(1).finish, FinishReason::cancelled);
  EXPECT_EQ(second.tokens, (std::vector<TokenId>{results[0].token, results[2].token}));
  bench.scheduler.check();
}

TEST(Scheduler, AnEndedSequencesRowsInABegunStepAreNobodys) {
  Bench bench;
  for (RequestId id = 1; id <= 3; ++id) {
    Request asked = request(id, 5, 50, 10 * static_cast<int>(id));
    if (id == 2) asked.sampling.stop_ids = {next_token(asked.prompt, 0)};
    ASSERT_TRUE(bench.scheduler.submit(asked).ok());
  }
  std::vector<Event> events;
  const std::vector<StepResult> results = results_of(bench.scheduler.plan({}, events));
  const Batch& second = bench.scheduler.plan_ahead({}, events);
  bench.scheduler.begin_ahead();
  bench.scheduler.commit(results, events);
  EXPECT_EQ(events.at(1).finish, FinishReason::stop);
  EXPECT_EQ(second.tokens, (std::vector<TokenId>{results[0].token, results[1].token, results[2].token}));
  EXPECT_EQ(second.sequences[1].row_count, 0);
  EXPECT_EQ(second.sequences[1].sampling, nullptr);
  EXPECT_EQ(second.sequences[2].row_begin, 2);
  // All others end while it runs: it is committed all the same.
  events.clear();
  bench.scheduler.cancel(1);
  bench.scheduler.cancel(3);
  EXPECT_TRUE(bench.scheduler.plan_ahead({}, events).empty());
  bench.scheduler.commit(std::vector<StepResult>(3), events);
  EXPECT_EQ(events.size(), 2u);
  EXPECT_TRUE(bench.scheduler.idle());
  bench.scheduler.check();
}

}  // namespace
}  // namespace nibble
