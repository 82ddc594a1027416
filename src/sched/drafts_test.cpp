#include "sched/drafts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace nibble {
namespace {

std::vector<TokenId> looked_up(std::vector<TokenId> tokens, std::size_t most = 4) {
  std::vector<TokenId> room(most, -1);
  room.resize(static_cast<std::size_t>(look_up_drafts(tokens, tokens, room)));
  return room;
}

TEST(LookedUpDrafts, AreWhatFollowedTheLastTokensBefore) {
  EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 6, 7, 1, 2, 3}), (std::vector<TokenId>{4, 5, 6, 7}));
  EXPECT_EQ(looked_up({1, 2, 3, 4, 5, 6, 7, 1, 2, 3}, 2), (std::vector<TokenId>{4, 5}));
}

TEST(LookedUpDrafts, OneTokenAloneSaysNothing) {
  EXPECT_EQ(looked_up({3, 4, 5, 9, 3}), std::vector<TokenId>());
  EXPECT_EQ(looked_up({}), std::vector<TokenId>());
  EXPECT_EQ(looked_up({3}), std::vector<TokenId>());
  EXPECT_EQ(looked_up({3, 3}), std::vector<TokenId>());
}

TEST(LookedUpDrafts, ThePlaceThatAgreesWithMoreTokensWinsAndOfEqualOnesTheLast) {
  EXPECT_EQ(looked_up({1, 2, 3, 40, 9, 2, 3, 50, 1, 2, 3}, 1), std::vector<TokenId>{40});
  EXPECT_EQ(looked_up({2, 3, 40, 9, 2, 3, 50, 8, 2, 3}, 1), std::vector<TokenId>{50});
}

TEST(LookedUpDrafts, ATextThatRepeatsItselfGoesOnBeyondItsEnd) {
  EXPECT_EQ(looked_up({9, 1, 2, 1, 2}, 6), (std::vector<TokenId>{1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(looked_up({5, 5, 5}, 3), (std::vector<TokenId>{5, 5, 5}));
}

constexpr TokenId repeated[] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2};

TEST(Drafts, FailedOnesMakeTheNextFewerAndRarerAndThoseThatHoldMore) {
  Drafts drafts(8, true);
  EXPECT_EQ(drafts.guess({.tokens = repeated}, 8), 8);
  drafts.learn(3);
  EXPECT_EQ(drafts.guess({.tokens = repeated}, 8), 3);
  drafts.learn(3);
  EXPECT_EQ(drafts.guess({.tokens = repeated}, 8), 6);
  for (const int pause : {1, 2, 4, 8, 16, 32, 32}) {
    drafts.learn(0);
    for (int i = 0; i < pause; ++i) EXPECT_EQ(drafts.guess({.tokens = repeated}, 8), 0) << pause;
    EXPECT_EQ(drafts.guess({.tokens = repeated}, 8), 1) << pause;
  }
  drafts.learn(1);
  EXPECT_EQ(drafts.guess({.tokens = repeated}, 8), 2);
}

TEST(Drafts, EndBeforeATokenThatEndsTheAnswer) {
  Drafts drafts(8, true);
  constexpr TokenId ends[] = {5, 99};
  EXPECT_EQ(drafts.guess({.tokens = repeated, .ends = ends}, 8), 2);
  EXPECT_EQ(drafts.tokens()[1], 4);
}

TEST(Drafts, NoneAreLookedUpUnlessAsked) {
  Drafts drafts(8, false);
  EXPECT_EQ(drafts.guess({.tokens = repeated}, 8), 0);
  EXPECT_EQ(Drafts().guess({.tokens = repeated}, 8), 0);
}

TEST(Drafts, FollowAPredictionFromItsBeginningAndFromWhereTheAnswerAgreesWithIt) {
  Drafts drafts(3, false);
  const std::vector<TokenId> prompt = {1, 2, 3}, prediction = {10, 11, 12, 13, 14, 15};
  const auto drafted = [&](std::vector<TokenId> answer) {
    std::vector<TokenId> tokens = prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    drafts.guess({.tokens = tokens, .prompt = prompt.size(), .prediction = prediction}, 8);
    return std::vector<TokenId>(drafts.tokens().begin(), drafts.tokens().end());
  };
  EXPECT_EQ(drafted({}), (std::vector<TokenId>{10, 11, 12}));
  EXPECT_TRUE(drafts.of_prediction());
  EXPECT_EQ(drafted({10, 11}), (std::vector<TokenId>{12, 13, 14}));
  EXPECT_EQ(drafted({99, 12, 13}), (std::vector<TokenId>{14, 15})) << "up to its end";
  EXPECT_EQ(drafted({14, 15}), std::vector<TokenId>());
  EXPECT_EQ(drafted({99}), std::vector<TokenId>());
  EXPECT_FALSE(drafts.of_prediction());
}

// Drafts as many as it has and there is room for.
class Drafting final : public TokenConstraint {
 public:
  explicit Drafting(int has) : has_(has) {}
  bool binds() const override { return false; }
  void fill(TokenMask) override {}
  void accept(TokenId) override {}
  void roll_back(int) override {}
  int draft(std::span<TokenId> room) override {
    const std::size_t count = std::min(room.size(), static_cast<std::size_t>(has_));
    std::iota(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(count), 100);
    return static_cast<int>(count);
  }

 private:
  int has_;
};

TEST(Drafts, WhatAConstraintDraftsGoesFirst) {
  Drafting three(3), none(0);
  Drafts drafts(8, true);
  EXPECT_EQ(drafts.guess({.tokens = repeated, .constraint = &three}, 8), 3);
  EXPECT_EQ(drafts.tokens()[0], 100);
  EXPECT_EQ(drafts.guess({.tokens = repeated, .constraint = &three}, 2), 2);
  EXPECT_EQ(drafts.guess({.tokens = repeated, .constraint = &none}, 8), 8) << "looked up";
  EXPECT_EQ(drafts.tokens()[0], 3);
}

}  // namespace
}  // namespace nibble
