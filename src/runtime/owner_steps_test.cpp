#include "runtime/owner_steps.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble {
namespace {

constexpr WorkerLimits limits{.owners = 3,
                              .owner_rows = 4,
                              .owner_sequences = 2,
                              .max_rows = 12,
                              .max_logit_rows = 6,
                              .max_sequences = 6};

// Rows of `counts`, by owner; the last row of each is wanted. Tokens count on.
Batch batch_of(const std::vector<std::pair<int, int>>& owners_and_counts) {
  Batch batch;
  for (const auto& [owner, count] : owners_and_counts) {
    batch.sequences.push_back({.owner = owner,
                               .row_begin = static_cast<int>(batch.tokens.size()),
                               .row_count = count,
                               .logit_begin = static_cast<int>(batch.logit_rows.size()),
                               .logit_count = 1});
    for (int i = 0; i < count; ++i) batch.tokens.push_back(static_cast<TokenId>(batch.tokens.size()));
    batch.logit_rows.push_back({.row = static_cast<int>(batch.tokens.size()) - 1, .target = owner});
  }
  return batch;
}

TEST(OwnerSteps, EachOwnerHasItsSequencesInTheOrderOfTheWhole) {
  OwnerSteps steps(limits);
  ASSERT_FALSE(steps.empty());
  for (int again = 0; again < 2; ++again) {
    steps.divide(batch_of({{2, 1}, {0, 3}, {2, 2}, {0, 1}}));
    EXPECT_EQ(steps.most_rows(), 4);
    EXPECT_EQ(steps.of(0).batch.tokens, (std::vector<TokenId>{1, 2, 3, 6}));
    EXPECT_EQ(steps.of(1).batch.tokens, std::vector<TokenId>{});
    EXPECT_EQ(steps.of(2).batch.tokens, (std::vector<TokenId>{0, 4, 5}));
    EXPECT_EQ(steps.of(0).sequences, (std::vector<int>{1, 3}));
    EXPECT_EQ(steps.of(2).sequences, (std::vector<int>{0, 2}));
    EXPECT_EQ(steps.of(0).logit_begin, 0);
    EXPECT_EQ(steps.of(2).logit_begin, 2);
    const Batch& last = steps.of(2).batch;
    EXPECT_EQ(last.sequences[1].row_begin, 1);
    EXPECT_EQ(last.sequences[1].logit_begin, 1);
    EXPECT_EQ(last.logit_rows[0].row, 0);
    EXPECT_EQ(last.logit_rows[1].row, 2);
    EXPECT_EQ(last.logit_rows[1].target, 2);
  }
}

TEST(OwnerSteps, EachOwnersStepIsOfTheWholesKind) {
  OwnerSteps steps(limits);
  for (const bool of_prompts : {true, false}) {
    Batch batch = batch_of({{0, 1}});
    batch.of_prompts = of_prompts;
    steps.divide(batch);
    for (int owner = 0; owner < 3; ++owner) EXPECT_EQ(steps.of(owner).batch.of_prompts, of_prompts);
  }
}

TEST(OwnerSteps, AnAwaitedTokenIsFoundInTheOwnersOwnStep) {
  OwnerSteps first(limits), second(limits);
  first.divide(batch_of({{0, 1}, {1, 1}, {0, 1}}));
  Batch next = batch_of({{0, 1}, {1, 1}});
  next.sequences[0].awaits = 2;
  next.sequences[1].awaits = 1;
  second.divide(next, &first);
  EXPECT_EQ(second.of(0).batch.sequences[0].awaits, 1);
  EXPECT_EQ(second.of(1).batch.sequences[0].awaits, 0);
}

TEST(OwnerSteps, SequencesThatHaveEndedAreEmptyOnceRefreshed) {
  OwnerSteps steps(limits);
  Batch batch = batch_of({{1, 2}, {1, 1}});
  steps.divide(batch);
  batch.sequences[0] = {};
  batch.sequences[1].prefill = true;
  steps.refresh(batch);
  EXPECT_EQ(steps.of(1).batch.sequences[0].logit_count, 0);
  EXPECT_TRUE(steps.of(1).batch.sequences[1].prefill);
  EXPECT_EQ(steps.of(1).batch.sequences[1].row_begin, 2);
  EXPECT_EQ(steps.of(1).batch.sequences[1].logit_begin, 1);
}

TEST(OwnerSteps, WhereAllRanksHaveAllSequencesThereIsNothingToDivide) {
  EXPECT_TRUE(OwnerSteps(WorkerLimits{}).empty());
  EXPECT_EQ(limits_of_owner(WorkerLimits{.max_rows = 7}).max_rows, 7);
  EXPECT_EQ(limits_of_owner(limits).max_rows, 4);
  EXPECT_EQ(limits_of_owner(limits).max_sequences, 2);
}

}  // namespace
}  // namespace nibble
