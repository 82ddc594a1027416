// Drafts of next tokens: what comes of a request is what comes without them, in fewer steps.
#include <gtest/gtest.h>

#include <memory>
#include <tuple>

#include "sched/scheduler_test_util.h"

namespace nibble {
namespace {

SchedulerLimits drafting(SchedulerLimits limits, int drafts = 4) {
  limits.max_drafts = drafts;
  return limits;
}

Request guessed(Request asked, int wrong_every) {
  asked.constraint = std::make_shared<GuessingConstraint>(asked.prompt, asked.sampling.choice, wrong_every);
  return asked;
}

struct Ran {
  Transcript transcript;
  SchedulerTotals totals;
  int steps = 0;
};

Ran run_steps(Scheduler& scheduler) {
  Ran ran;
  while (!scheduler.idle()) {
    ran.transcript.add(step(scheduler));
    scheduler.check();
    ++ran.steps;
  }
  ran.totals = scheduler.totals();
  return ran;
}

Ran ran_alone(const SchedulerLimits& limits, Request asked, const PageCacheOptions& cache = cache_of(64)) {
  PageCache pages(cache);
  Scheduler scheduler(limits, pages);
  EXPECT_TRUE(scheduler.submit(std::move(asked)).ok());
  return run_steps(scheduler);
}

constexpr int never = 1 << 30;

TEST(SchedulerDrafts, ThoseThatHoldSaveSteps) {
  const Ran plain = ran_alone(limits_of(1, 64), request(1, 20, 30));
  const Ran drafted = ran_alone(drafting(limits_of(1, 64)), guessed(request(1, 20, 30), never));
  EXPECT_EQ(drafted.transcript.tokens, plain.transcript.tokens);
  EXPECT_EQ(drafted.transcript.ends, plain.transcript.ends);
  EXPECT_EQ(plain.steps, 30);
  EXPECT_EQ(drafted.steps, 1 + 6) << "a token of the prompt's step, then 5, 5, 5, 5, 5 and 4";
  EXPECT_EQ(drafted.totals.accepted_drafts, 4u * 5 + 3);
  EXPECT_EQ(drafted.totals.drafted_tokens, drafted.totals.accepted_drafts);
}

TEST(SchedulerDrafts, ThoseThatFailLeaveTheRequestAsItWas) {
  for (const int wrong_every : {1, 2, 3, 7}) {
    const Ran plain = ran_alone(limits_of(1, 64), request(1, 20, 30));
    const Ran drafted = ran_alone(drafting(limits_of(1, 64)), guessed(request(1, 20, 30), wrong_every));
    EXPECT_EQ(drafted.transcript.tokens, plain.transcript.tokens) << wrong_every;
    EXPECT_EQ(drafted.transcript.ends, plain.transcript.ends) << wrong_every;
    EXPECT_GT(drafted.totals.drafted_tokens, drafted.totals.accepted_drafts) << wrong_every;
    if (wrong_every == 1) {
      EXPECT_EQ(drafted.totals.accepted_drafts, 0u);
      EXPECT_EQ(drafted.steps, plain.steps);
    }
  }
}

TEST(SchedulerDrafts, AreLookedUpInPromptAndAnswerWhereThatIsAsked) {
  SchedulerLimits limits = drafting(limits_of(1, 64));
  Request asked = request(1, 20, 40);
  asked.sampling.choice = repeats_itself;
  const Ran plain = ran_alone(limits, asked);
  EXPECT_EQ(plain.totals.drafted_tokens, 0u);
  limits.looks_up_drafts = true;
  const Ran drafted = ran_alone(limits, asked);
  EXPECT_EQ(drafted.transcript.tokens, plain.transcript.tokens);
  EXPECT_GT(drafted.totals.accepted_drafts, 25u);
  EXPECT_LT(drafted.steps, plain.steps - 25);
  asked.sampling.choice = 0;
  EXPECT_EQ(ran_alone(limits, asked).totals.drafted_tokens, 0u) << "no two tokens come twice";
}

TEST(SchedulerDrafts, OfAPredictionAreCountedAsTheyHoldOrFail) {
  const Request asked = request(1, 20, 30);
  std::vector<TokenId> text = asked.prompt, prediction;
  for (int i = 0; i < 30; ++i) {
    prediction.push_back(next_token(text, 0));
    text.push_back(prediction.back());
  }
  const Ran plain = ran_alone(limits_of(1, 64), asked);
  prediction[12] += 1;
  Request predicted = asked;
  predicted.prediction = std::make_shared<const std::vector<TokenId>>(prediction);
  PageCache pages(cache_of(64));
  Scheduler scheduler(drafting(limits_of(1, 64)), pages);
  ASSERT_TRUE(scheduler.submit(predicted).ok());
  int held = 0, failed = 0, steps = 0;
  std::vector<TokenId> tokens;
  for (; !scheduler.idle(); ++steps) {
    for (const Event& event : step(scheduler)) {
      tokens.push_back(event.token);
      held += event.predicted;
      failed += event.failed_predictions;
    }
  }
  EXPECT_EQ(tokens, plain.transcript.tokens.at(1));
  EXPECT_EQ(static_cast<std::uint64_t>(held), scheduler.totals().accepted_drafts);
  EXPECT_EQ(static_cast<std::uint64_t>(held + failed), scheduler.totals().drafted_tokens);
  EXPECT_GT(held, 15);
  EXPECT_GE(failed, 1);
  EXPECT_LT(steps, plain.steps / 2 + 3);
}

// Allows everything, and has no drafts.
class Silent final : public TokenConstraint {
 public:
  bool binds() const override { return false; }
  void fill(TokenMask) override {}
  void accept(TokenId) override {}
  void roll_back(int) override {}
};

// What a draft says, and where it leaves the sequence, is known once the step before it is committed.
TEST(SchedulerDrafts, AStepIsPlannedAheadWhereNoneMayCome) {
  const Ran plain = ran_alone(limits_of(1, 64), request(1, 20, 30));
  const auto planned_ahead = [&](const SchedulerLimits& limits, const std::vector<Request>& requests) {
    PageCache pages(cache_of(64));
    Scheduler scheduler(limits, pages);
    for (const Request& asked : requests) EXPECT_TRUE(scheduler.submit(asked).ok());
    const Transcript transcript = run_ahead(scheduler, true);
    EXPECT_EQ(transcript.tokens.at(1), plain.transcript.tokens.at(1));
    return std::pair(transcript.steps_ahead, scheduler.totals());
  };
  const SchedulerLimits limits = drafting(limits_of(6, 256));
  EXPECT_EQ(planned_ahead(limits, {request(1, 20, 30)}).first, 29) << "nobody drafts";
  const auto [steps, totals] = planned_ahead(limits, {guessed(request(1, 20, 30), never)});
  EXPECT_EQ(steps, 0);
  EXPECT_EQ(totals.accepted_drafts, 4u * 5 + 3);
  // A miss is followed by steps without drafts.
  EXPECT_GT(planned_ahead(limits, {guessed(request(1, 20, 30), 1)}).first, 10);
  Request told = request(1, 20, 30);
  told.constraint = std::make_shared<Silent>();
  EXPECT_EQ(planned_ahead(limits, {told}).first, 29) << "a constraint that will have none";
  Request penalized = guessed(request(1, 20, 30), never);
  penalized.sampling.presence_penalty = 0.5f;
  EXPECT_EQ(planned_ahead(limits, {penalized}).first, 29);
  // Of five that decode none has room for drafts, and of four one has.
  const auto crowd = [](RequestId size) {
    std::vector<Request> all;
    for (RequestId id = 1; id <= size; ++id)
      all.push_back(guessed(request(id, 20, 30, id == 1 ? 0 : 1000 * static_cast<int>(id)), never));
    return all;
  };
  EXPECT_EQ(planned_ahead(limits, crowd(5)).first, 29);
  EXPECT_EQ(planned_ahead(limits, crowd(4)).first, 0);
}

TEST(SchedulerDrafts, AStopTokenAmongThemEndsTheAnswer) {
  Request asked = request(1, 20, 30);
  std::vector<TokenId> text = asked.prompt;
  for (int i = 0; i < 7; ++i) text.push_back(next_token(text, 0));
  asked.sampling.stop_ids = {text.back()};
  const Ran plain = ran_alone(limits_of(1, 64), asked);
  const Ran drafted = ran_alone(drafting(limits_of(1, 64)), guessed(asked, never));
  EXPECT_EQ(plain.transcript.ends.at(1), FinishReason::stop);
  EXPECT_EQ(drafted.transcript.ends, plain.transcript.ends);
  EXPECT_EQ(drafted.transcript.tokens, plain.transcript.tokens);
  EXPECT_LT(drafted.steps, plain.steps);
}

TEST(SchedulerDrafts, TakeNoRowAndNoPageFromOthers) {
  for (const auto& [rows, drafts, expected] : {std::tuple{6, 8, 3}, {64, 8, 6}, {64, 2, 0}}) {
    PageCache pages(cache_of(64));
    Scheduler scheduler(drafting(limits_of(3, rows), drafts), pages);
    for (RequestId id = 1; id <= 3; ++id)
      ASSERT_TRUE(scheduler.submit(guessed(request(id, 2, 20, 100 * static_cast<int>(id)), never)).ok());
    step(scheduler);
    std::vector<Event> events;
    const Batch& batch = scheduler.plan({}, events);
    ASSERT_EQ(batch.sequences.size(), 3u);
    EXPECT_EQ(batch.sequences[0].draft_count, expected) << rows << " rows, or 1 and the drafts; one for each";
    EXPECT_EQ(batch.sequences[1].draft_count, 0);
    EXPECT_EQ(batch.sequences[2].draft_count, 0);
    scheduler.commit(results_of(batch), events);
    EXPECT_EQ(events.size(), 3u + static_cast<unsigned>(expected));
  }
  // Where pages are short, as many preemptions as without drafts.
  for (const int drafts : {0, 4}) {
    PageCache few(cache_of(5));
    Scheduler short_of_pages(drafting(limits_of(3, 32), drafts), few);
    for (RequestId id = 1; id <= 3; ++id)
      ASSERT_TRUE(
          short_of_pages.submit(guessed(request(id, 14, 12, 100 * static_cast<int>(id)), never)).ok());
    const Ran ran = run_steps(short_of_pages);
    EXPECT_EQ(ran.totals.preemptions, 1u) << drafts;
    for (RequestId id = 1; id <= 3; ++id) EXPECT_EQ(ran.transcript.tokens.at(id).size(), 12u);
  }
}

// A row at positions 15, 31, ... brings the state to a border; one of a draft could not be taken back.
TEST(SchedulerDrafts, EndBeforeTheRowThatBringsAStateToABorder) {
  SchedulerLimits limits = drafting(limits_of(1, 64));
  limits.draft_border = limits.snapshot_interval = 16;
  PageCacheOptions cache = cache_of(64);
  cache.states = 1;
  cache.snapshots = 4;
  cache.snapshot_step = 16;
  const Ran plain = ran_alone(limits_of(1, 64), request(1, 25, 30));
  for (const int wrong_every : {never, 3}) {
    PageCache pages(cache);
    Scheduler scheduler(limits, pages);
    ASSERT_TRUE(scheduler.submit(guessed(request(1, 25, 30), wrong_every)).ok());
    SlotsOfTokens slots(false, 16);
    std::vector<int> ends, snapshots;
    Transcript transcript;
    while (!scheduler.idle()) {
      std::vector<Event> events;
      const Batch& batch = scheduler.plan({}, events);
      slots.run(batch);
      const BatchSequence& sequence = batch.sequences[0];
      if (sequence.draft_count > 0) ends.push_back(sequence.first_position + sequence.row_count);
      for (const StateSnapshot& each : sequence.snapshots) snapshots.push_back(each.position);
      scheduler.commit(results_of(batch), events);
      transcript.add(events);
    }
    EXPECT_EQ(transcript.tokens, plain.transcript.tokens);
    EXPECT_EQ(snapshots, (std::vector<int>{16, 32, 48}));
    if (wrong_every == never) {
      EXPECT_EQ(ends, (std::vector<int>{30, 36, 41, 46, 52, 54}));
    }
    EXPECT_GT(scheduler.totals().accepted_drafts, 5u);
  }
}

TEST(SchedulerDrafts, PenalizedAnswersHaveNone) {
  Request asked = guessed(request(1, 20, 10), never);
  asked.sampling.presence_penalty = 0.5f;
  EXPECT_EQ(ran_alone(drafting(limits_of(1, 64)), asked).totals.drafted_tokens, 0u);
}

TEST(SchedulerDrafts, WhatTheyLeaveInWindowsAndPrefixesServesNobodyElse) {
  for (const int wrong_every : {2, 5, never}) {
    PageCache pages(cache_of(64, 12));
    Scheduler scheduler(drafting(limits_of(2, 64), 8), pages);
    ASSERT_TRUE(scheduler.submit(guessed(request(1, 40, 60), wrong_every)).ok());
    const Ran first = run_steps(scheduler);
    // Goes on from the answer: what is found in the cache are tokens that were chosen.
    Request next = request(2, 40, 20);
    const std::vector<TokenId>& answer = first.transcript.tokens.at(1);
    next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
    const Ran plain = ran_alone(limits_of(2, 64), next, cache_of(64, 12));
    ASSERT_TRUE(scheduler.submit(guessed(next, wrong_every)).ok());
    const Ran second = run_steps(scheduler);
    EXPECT_EQ(second.transcript.tokens, plain.transcript.tokens) << wrong_every;
    EXPECT_EQ(second.transcript.cached.at(2), 96) << "of 100 tokens the whole pages, the last one not stored";
  }
}

}  // namespace
}  // namespace nibble
