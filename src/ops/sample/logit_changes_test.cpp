#include "ops/sample/logit_changes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

std::vector<float> changed(const std::vector<float>& logits, const LogitChanges& changes) {
  LogitChangeRoom room;
  const std::span<const float> row = change_logits(logits, changes, room);
  EXPECT_TRUE(std::all_of(room.counts.begin(), room.counts.end(), [](auto count) { return count == 0; }))
      << "the next row finds the room as this one did";
  return {row.begin(), row.end()};
}

// The header's definition, token by token.
std::vector<float> changed_by_definition(std::vector<float> logits, const LogitChanges& changes) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const TokenId token = static_cast<TokenId>(i);
    float& logit = logits[i];
    for (const TokenBias& bias : changes.bias) {
      if (bias.id == token) logit += bias.bias;
    }
    const auto in_prompt = std::count(changes.prompt.begin(), changes.prompt.end(), token);
    const auto in_answer = std::count(changes.answer.begin(), changes.answer.end(), token);
    if (in_prompt + in_answer > 0)
      logit = logit > 0 ? logit / changes.repetition_penalty : logit * changes.repetition_penalty;
    const float frequency = changes.frequency_penalty * static_cast<float>(in_answer);
    logit -= frequency;
    if (in_answer > 0) logit -= changes.presence_penalty;
    logit = std::min(std::max(logit, -largest_changed_logit), largest_changed_logit);
    if (std::find(changes.banned.begin(), changes.banned.end(), token) != changes.banned.end())
      logit = -largest_changed_logit;
    if (!changes.mask.empty() && (changes.mask[i / 32] >> i % 32 & 1) == 0) logit = masked_logit;
  }
  return logits;
}

// For so many tokens; words without a token, with all and with some.
std::vector<std::uint32_t> random_mask(std::mt19937& random, std::size_t tokens) {
  std::vector<std::uint32_t> mask((tokens + 31) / 32);
  for (std::uint32_t& word : mask) {
    const std::uint32_t words[] = {0, ~0u, static_cast<std::uint32_t>(random()),
                                   static_cast<std::uint32_t>(random() & random() & random())};
    word = words[random() % 4];
  }
  return mask;
}

TEST(LogitChanges, ARepeatedTokenLosesLogitWhicheverItsSign) {
  const std::vector<TokenId> prompt = {0}, answer = {1};
  EXPECT_EQ(changed({2, -2, 1}, {.repetition_penalty = 2, .prompt = prompt, .answer = answer}),
            (std::vector<float>{1, -4, 1}));
}

TEST(LogitChanges, FrequencyCountsEachTimeAndPresenceOnceAndThePromptNever) {
  const std::vector<TokenId> prompt = {0, 0}, answer = {1, 2, 2, 2};
  EXPECT_EQ(changed({10, 10, 10, 10}, {.frequency_penalty = 1, .prompt = prompt, .answer = answer}),
            (std::vector<float>{10, 9, 7, 10}));
  EXPECT_EQ(changed({10, 10, 10, 10}, {.presence_penalty = 1, .prompt = prompt, .answer = answer}),
            (std::vector<float>{10, 9, 9, 10}));
}

TEST(LogitChanges, BiasComesBeforePenaltiesAndBansAfterAll) {
  const std::vector<TokenBias> bias = {{0, 4}, {1, 100}};
  const std::vector<TokenId> answer = {0}, banned = {1, 77, -1};
  EXPECT_EQ(changed({2, 0, 1}, {.bias = bias, .repetition_penalty = 2, .answer = answer, .banned = banned}),
            (std::vector<float>{3, -largest_changed_logit, 1}));
}

TEST(LogitChanges, NothingMakesANumberThatIsNone) {
  const std::vector<TokenId> answer = {0, 1, 2, 0};
  for (const float repetition : {std::numeric_limits<float>::denorm_min(), 0.0f, 1e38f}) {
    for (const float logit :
         changed({3e38f, -3e38f, 0, 1},
                 {.repetition_penalty = repetition, .frequency_penalty = -2, .answer = answer})) {
      EXPECT_LE(std::abs(logit), largest_changed_logit);
    }
  }
}

TEST(LogitChanges, AgreeWithTheirDefinitionBitForBit) {
  std::mt19937 random(11);
  LogitChangeRoom room;
  for (int round = 0; round < 300; ++round) {
    const std::vector<float> logits = random_floats(random, 80 + random() % 60, 5.0f);
    const auto tokens = [&](std::size_t most) {
      std::vector<TokenId> ids(random() % (most + 1));
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % logits.size());
      return ids;
    };
    std::vector<TokenBias> bias;
    for (const TokenId id : tokens(4)) bias.push_back({id, static_cast<float>(random() % 200) - 100});
    const std::vector<TokenId> prompt = tokens(60), answer = tokens(60), banned = tokens(3);
    const std::vector<float> scales = random_floats(random, 2, 1.0f);
    const std::vector<std::uint32_t> mask = random_mask(random, logits.size());
    const bool masked = random() % 2 == 0;
    const LogitChanges changes{.bias = bias,
                               .repetition_penalty = 0.5f + static_cast<float>(random() % 16) / 8,
                               .frequency_penalty = scales[0],
                               .presence_penalty = scales[1],
                               .prompt = prompt,
                               .answer = answer,
                               .banned = banned,
                               .mask = masked ? mask : std::span<const std::uint32_t>()};
    const std::span<const float> found = change_logits(logits, changes, room);  // the room is used again
    ASSERT_EQ(std::vector<float>(found.begin(), found.end()), changed_by_definition(logits, changes));
  }
}

TEST(LogitChanges, WhatAMaskLeavesOutIsBelowAllThatMayCome) {
  const std::vector<std::uint32_t> mask = {0b1010};
  const LogitChanges changes{.banned = std::span<const TokenId>(), .mask = mask};
  EXPECT_EQ(changed({9, 1, 8, -2}, changes), (std::vector<float>{masked_logit, 1, masked_logit, -2}));
  EXPECT_FALSE(changes.none());
  // Even where all that may come is banned.
  const std::vector<TokenId> banned = {1, 3};
  const std::vector<float> row = changed({9, 1, 8, -2}, {.banned = banned, .mask = mask});
  EXPECT_EQ(row[1], -largest_changed_logit);
  EXPECT_LT(row[0], row[1]);
}

TEST(LogitChanges, OfFewAllowedTokensTheLogitsAreThoseOfTheChangedRow) {
  std::mt19937 random(12);
  LogitChangeRoom room, other;
  int few = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits = random_floats(random, 80 + random() % 60, 5.0f);
    logits[random() % logits.size()] = 2e30f;
    std::vector<std::uint32_t> mask = random_mask(random, logits.size());
    const std::span<const float> allowed = few_allowed_logits(logits, mask, room);
    if (allowed.empty()) continue;
    ++few;
    const std::span<const float> changed = change_logits(logits, {.mask = mask}, other);
    std::vector<float> expected;
    std::vector<TokenId> ids;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      if (changed[id] == masked_logit) continue;
      expected.push_back(changed[id]);
      ids.push_back(static_cast<TokenId>(id));
    }
    ASSERT_EQ(std::vector<float>(allowed.begin(), allowed.end()), expected);
    for (std::size_t place = 0; place < ids.size(); ++place)
      ASSERT_EQ(allowed_token(mask, static_cast<TokenId>(place)), ids[place]);
  }
  EXPECT_GT(few, 20);
  const std::vector<float> logits(64, 1.0f);
  EXPECT_TRUE(few_allowed_logits(logits, std::vector<std::uint32_t>{~0u, 1}, room).empty())
      << "more than half of them";
  EXPECT_TRUE(few_allowed_logits(logits, std::vector<std::uint32_t>{0, 0}, room).empty());
}

TEST(LogitChanges, AskedForNothingThereAreNone) {
  EXPECT_TRUE(LogitChanges{}.none());
  EXPECT_FALSE(LogitChanges{.presence_penalty = 0.1f}.none());
}

}  // namespace
}  // namespace nibble
