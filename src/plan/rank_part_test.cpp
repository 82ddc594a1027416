#include "plan/rank_part.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

ModelTraits model_of(std::int64_t heads, std::int64_t kv_heads) {
  return {.hidden = 2880,
          .vocabulary = 201088,
          .heads = heads,
          .kv_heads = kv_heads,
          .query_dim = 64,
          .experts = 128,
          .expert_width = 2880};
}

void expect_covers(const Cuts& cuts, std::int64_t size, int ranks) {
  EXPECT_EQ(cuts.begin(0), 0);
  EXPECT_EQ(cuts.end(ranks - 1), size);
  for (int rank = 0; rank < ranks; ++rank) EXPECT_GE(cuts.count(rank), 0);
}

TEST(RankPart, EveryRowBelongsToOneRankAndNoneIsPadding) {
  const ModelTraits model = model_of(64, 8);
  for (const int ranks : {1, 2, 4, 8}) {
    const RankPart part = rank_part(model, ranks, 1, 0);
    expect_covers(part.heads, 64, ranks);
    expect_covers(part.hidden, 2880, ranks);
    expect_covers(part.width, 2880, ranks);
    expect_covers(part.vocabulary, 201088, ranks);
    expect_covers(part.experts, 128, ranks);
  }
}

TEST(RankPart, CutsLieBetweenBlocksOfScalesAndPartsOfEightJoinToThoseOfFour) {
  const Cuts eight = rank_part(model_of(64, 8), 8, 1, 0).width,
             four = rank_part(model_of(64, 8), 4, 1, 0).width;
  std::vector<std::int64_t> blocks;
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(eight.begin(rank) % 32, 0);
    blocks.push_back(eight.count(rank) / 32);
  }
  EXPECT_EQ(blocks, (std::vector<std::int64_t>{12, 11, 11, 11, 12, 11, 11, 11}));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(four.begin(rank), eight.begin(2 * rank));
}

// Whether rank r's queries find their keys in heads r was given, with the group size of a whole model.
void expect_heads_fit(std::int64_t heads, std::int64_t kv_heads, int ranks) {
  const std::int64_t group = heads / kv_heads;
  expect_covers(rank_part(model_of(heads, kv_heads), ranks, 1, 0).heads, heads, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const RankPart part = rank_part(model_of(heads, kv_heads), ranks, 1, rank);
    const std::int64_t first = part.heads.begin(rank), count = part.heads.count(rank);
    EXPECT_LE(part.kv_heads.count, most_kv_heads(kv_heads, ranks));
    if (count == 0) continue;
    EXPECT_EQ(part.kv_heads.begin, first / group);
    EXPECT_EQ(part.kv_heads.begin + part.kv_heads.count - 1, (first + count - 1) / group);
    // Attention divides a rank's heads equally over its keys.
    EXPECT_TRUE(part.kv_heads.count == 1 || count == part.kv_heads.count * group);
  }
}

TEST(RankPart, QueriesLieWithTheirKeysWhateverDividesWhat) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const auto& [heads, kv_heads] :
         {std::pair{64, 8}, {6, 2}, {3, 1}, {2, 2}, {12, 3}, {32, 4}, {5, 5}, {14, 7}, {2, 1}})
      expect_heads_fit(heads, kv_heads, ranks);
  }
}

TEST(RankPart, WholeExpertsKeepTheirRows) {
  const RankPart part = rank_part(model_of(64, 8), 4, 4, 1);
  EXPECT_TRUE(part.whole_experts);
  EXPECT_EQ(part.own_width(), 2880);
  EXPECT_EQ(part.own_expert_rows(), 2880);
  EXPECT_EQ(part.experts.begin(1), 32);
  EXPECT_EQ(part.experts.count(1), 32);
}

TEST(RankPart, AGroupWithSequencesOfItsOwnDividesThemAsSoManyRanksAloneAndHasExpertsOfAllRanks) {
  const ModelTraits model = model_of(64, 8);
  for (const auto& [ranks, owners] : {std::pair{4, 4}, {4, 2}, {8, 2}, {8, 4}}) {
    const int sharers = ranks / owners;
    for (int rank = 0; rank < ranks; ++rank) {
      const RankPart part = owner_part(model, ranks, owners, rank),
                     alone = rank_part(model, sharers, 1, rank % sharers);
      EXPECT_EQ(part.owner(), rank / sharers);
      EXPECT_EQ(part.place, rank % sharers);
      EXPECT_EQ(part.sharers, sharers);
      EXPECT_EQ(part.heads.at, alone.heads.at);
      EXPECT_EQ(part.kv_heads.begin, alone.kv_heads.begin);
      EXPECT_EQ(part.vocabulary.at, alone.vocabulary.at);
      EXPECT_EQ(part.own_width(), 2880);
      EXPECT_EQ(part.own_expert_rows(), 2880);
      EXPECT_EQ(part.experts.at, rank_part(model, ranks, ranks, rank).experts.at);
    }
  }
}

}  // namespace
}  // namespace nibble
