#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "ops/fixed_math.h"
#include "ops/op_test_util.h"
#include "ops/sample/logit_changes.h"

namespace nibble {
namespace {

std::map<TokenId, double> frequencies(const std::vector<float>& logits, SampleParams params,
                                      int draws = 40000) {
  const RowStatistics statistics = row_statistics(logits);
  SampleWorkspace room;
  std::map<TokenId, double> found;
  for (int i = 0; i < draws; ++i) {
    params.position = static_cast<std::uint32_t>(i);
    found[sample(logits, statistics.likeliest, params, room)] += 1.0 / draws;
  }
  return found;
}

TEST(Sample, TemperatureZeroTakesTheLikeliestAndTheLowerIdOfATie) {
  const std::vector<float> logits = {1, 3, 2, 3};
  SampleWorkspace room;
  EXPECT_EQ(sample(logits, row_statistics(logits).likeliest, {.temperature = 0}, room), 1);
}

TEST(Sample, DrawsFollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits = {0, 1, 2, -1};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    double sum = 0;
    for (float logit : logits) sum += std::exp(logit / temperature);
    const auto found = frequencies(logits, {.temperature = temperature, .seed = 7});
    for (TokenId id = 0; id < 4; ++id) {
      const double expected = std::exp(logits[static_cast<std::size_t>(id)] / temperature) / sum;
      EXPECT_NEAR(found.count(id) ? found.at(id) : 0, expected, 0.01) << temperature;
    }
  }
}

TEST(Sample, TopKKeepsTheKLikeliestTiesToTheLowerId) {
  const std::vector<float> logits = {1, 2, 2, 2, 0};
  const auto found = frequencies(logits, {.top_k = 2});
  EXPECT_EQ(found.size(), 2u);
  EXPECT_NEAR(found.at(1), 0.5, 0.02);
  EXPECT_NEAR(found.at(2), 0.5, 0.02);
}

TEST(Sample, TopPKeepsTheFewestThatReachTheMass) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(2.0f), std::log(4.0f), std::log(1.0f), std::log(1.0f)};
  EXPECT_EQ(frequencies(logits, {.top_p = 0.4f}, 1000).size(), 1u);
  EXPECT_EQ(frequencies(logits, {.top_p = 0.6f}, 1000).size(), 2u);
  EXPECT_EQ(frequencies(logits, {.top_p = 0.8f}, 1000).size(), 3u);
  EXPECT_EQ(frequencies(logits, {.top_p = 0.95f}, 1000).size(), 4u);
  const auto found = frequencies(logits, {.top_p = 0.6f});
  EXPECT_NEAR(found.at(1), 2.0 / 3, 0.01);
}

TEST(Sample, MinPDropsWhatIsBelowAShareOfTheLikeliest) {
  const std::vector<float> logits = {std::log(8.0f), std::log(4.0f), std::log(1.0f)};
  EXPECT_EQ(frequencies(logits, {.min_p = 0.4f}, 2000).size(), 2u);
  EXPECT_EQ(frequencies(logits, {.min_p = 1.0f}, 2000).size(), 1u);
  EXPECT_EQ(frequencies(logits, {.min_p = 0.1f}, 2000).size(), 3u);
}

TEST(Sample, TopPOverALargeVocabularyAgreesWithAFullSort) {
  std::mt19937 random(5);
  for (float spread : {0.01f, 1.0f, 4.0f}) {
    const std::vector<float> logits = random_floats(random, 20000, spread);
    std::vector<TokenId> order;
    likeliest(logits, 20000, order);
    const RowStatistics statistics = row_statistics(logits);
    for (float top_p : {0.01f, 0.5f, 0.9f, 0.999f}) {
      double mass = 0;
      std::set<TokenId> nucleus;
      for (TokenId id : order) {
        if (mass > top_p + 1e-5) break;
        nucleus.insert(id);
        mass += std::exp(logprob(logits, statistics, id));
      }
      SampleWorkspace room;
      for (std::uint32_t position = 0; position < 40; ++position) {
        const TokenId drawn =
            sample(logits, statistics.likeliest, {.top_p = top_p, .seed = 3, .position = position}, room);
        ASSERT_TRUE(nucleus.count(drawn)) << "spread " << spread << " top_p " << top_p;
      }
    }
  }
}

TEST(Sample, ADrawDependsOnSeedChoiceAndPositionAlone) {
  std::set<double> draws;
  for (std::uint64_t seed : {0, 1, 2}) {
    for (std::uint32_t choice : {0, 1}) {
      for (std::uint32_t position = 0; position < 100; ++position) {
        const double draw = uniform_draw(seed, choice, position);
        EXPECT_EQ(draw, uniform_draw(seed, choice, position));
        EXPECT_TRUE(draw >= 0 && draw < 1);
        draws.insert(draw);
      }
    }
  }
  EXPECT_EQ(draws.size(), 600u);
}

// What sample() promises, the slow way: a full sort, whole-number masses, ids in ascending order.
TokenId sample_by_sorting(const std::vector<float>& logits, const SampleParams& params) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  const float largest = logits[static_cast<std::size_t>(order[0])];
  const auto weight = [&](TokenId id) {
    return fixed_exp((logits[static_cast<std::size_t>(id)] - largest) / params.temperature);
  };
  const auto mass = [&](TokenId id) { return static_cast<std::int64_t>(weight(id) * 0x1p40f); };
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));
  if (params.top_p < 1) {
    std::int64_t total = 0, reached = 0;
    for (TokenId id : order) total += mass(id);
    std::size_t kept = 0;
    while (static_cast<double>(reached) < static_cast<double>(params.top_p) * static_cast<double>(total))
      reached += mass(order[kept++]);
    order.resize(kept);
  }
  std::erase_if(order, [&](TokenId id) { return weight(id) < params.min_p; });
  std::sort(order.begin(), order.end());
  std::int64_t total = 0;
  for (TokenId id : order) total += mass(id);
  std::int64_t left = static_cast<std::int64_t>(uniform_draw(params.seed, params.choice, params.position) *
                                                static_cast<double>(total));
  for (TokenId id : order) {
    left -= mass(id);
    if (left < 0) return id;
  }
  return order.back();
}

TEST(Sample, EveryKernelDrawsWhatAFullSortDraws) {
  std::mt19937 random(11);
  for (const RowKernels& kernel : row_kernels()) {
    if (!kernel.supported()) continue;
    for (const auto& [size, spread] :
         {std::pair{1, 1.0f}, {37, 2.0f}, {1024, 0.0f}, {5000, 0.001f}, {5000, 3.0f}, {30001, 1.0f}}) {
      const std::vector<float> logits = random_floats(random, static_cast<std::size_t>(size), spread);
      const RowStatistics statistics = row_statistics(logits, kernel);
      SampleWorkspace room;
      std::uint32_t position = 0;
      for (const float temperature : {0.2f, 1.0f, 5.0f}) {
        for (const int top_k : {0, 1, 5, 900, 100000}) {
          for (const float top_p : {1.0f, 0.95f, 0.4f, 1e-6f}) {
            for (const float min_p : {0.0f, 0.3f}) {
              const SampleParams params{.temperature = temperature,
                                        .top_k = top_k,
                                        .top_p = top_p,
                                        .min_p = min_p,
                                        .seed = 5,
                                        .position = position++};
              ASSERT_EQ(sample(logits, statistics.likeliest, params, room, kernel),
                        sample_by_sorting(logits, params))
                  << kernel.name << " size " << size << " spread " << spread << " temperature " << temperature
                  << " top_k " << top_k << " top_p " << top_p << " min_p " << min_p;
            }
          }
        }
      }
    }
  }
}

TEST(Sample, AmongFewAllowedTokensDrawsWhatItDrawsFromTheMaskedRow) {
  std::mt19937 random(17);
  SampleWorkspace room;
  LogitChangeRoom few_room, row_room;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<float> logits = random_floats(random, 1500, round % 2 == 0 ? 3.0f : 30.0f);
    std::vector<std::uint32_t> mask(47);
    for (int token = 1 + static_cast<int>(random() % (round % 3 == 0 ? 4 : 350)); token > 0; --token) {
      const std::size_t id = random() % logits.size();
      mask[id / 32] |= 1u << id % 32;
    }
    const float top_ps[] = {1.0f, 0.9f, 0.3f, 0.9999999f}, min_ps[] = {0.0f, 0.0f, 0.1f, 1.0f};
    const float temperatures[] = {1.0f, 0.0f, 0.2f, 1e-6f, 2.0f};
    const int top_ks[] = {0, 1, 20, 400};
    const SampleParams params{.temperature = temperatures[random() % 5],
                              .top_k = top_ks[random() % 4],
                              .top_p = top_ps[random() % 4],
                              .min_p = min_ps[random() % 4],
                              .seed = random(),
                              .position = static_cast<std::uint32_t>(round)};
    const std::span<const float> few = few_allowed_logits(logits, mask, few_room);
    ASSERT_FALSE(few.empty());
    const TokenId place = sample(few, likeliest_token(few), params, room);
    const std::span<const float> row = change_logits(logits, {.mask = mask}, row_room);
    ASSERT_EQ(allowed_token(mask, place), sample(row, likeliest_token(row), params, room)) << round;
  }
}

TEST(Sample, AllocatesNothingOnceItsRoomIsReserved) {
  std::mt19937 random(12);
  const std::vector<float> logits = random_floats(random, 50000, 0.01f);
  SampleWorkspace room;
  room.reserve(logits.size());
  const TokenId* candidates = room.candidates.data();
  const float* weights = room.weights.data();
  const std::int64_t* masses = room.block_masses.data();
  const RowStatistics statistics = row_statistics(logits);
  for (const int top_k : {0, 20, 40000}) {
    for (const float top_p : {1.0f, 0.9f})
      sample(logits, statistics.likeliest, {.top_k = top_k, .top_p = top_p}, room);
  }
  likeliest(logits, 20, room.candidates);
  likeliest(logits, 50000, room.candidates);
  EXPECT_EQ(room.candidates.data(), candidates);
  EXPECT_EQ(room.weights.data(), weights);
  EXPECT_EQ(room.block_masses.data(), masses);
}

TEST(RowStatistics, EveryKernelGivesTheSameBits) {
  std::mt19937 random(13);
  for (const int size : {1, 100, 1024, 1025, 201088}) {
    const std::vector<float> logits = random_floats(random, static_cast<std::size_t>(size), 4.0f);
    const RowStatistics expected = row_statistics(logits, row_kernels().back());
    double exact = 0;
    for (float logit : logits) exact += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(expected.log_sum_exp, std::log(exact), 1e-7) << size;
    for (const RowKernels& kernel : row_kernels()) {
      if (!kernel.supported()) continue;
      const RowStatistics statistics = row_statistics(logits, kernel);
      EXPECT_EQ(statistics.log_sum_exp, expected.log_sum_exp) << kernel.name << " " << size;
      EXPECT_EQ(statistics.likeliest, expected.likeliest) << kernel.name << " " << size;
    }
  }
}

TEST(RowStatistics, LogprobsSumToOneAndDoNotMoveWithTheLogits) {
  std::mt19937 random(1);
  std::vector<float> logits = random_floats(random, 5000, 3.0f);
  const RowStatistics statistics = row_statistics(logits);
  double sum = 0;
  for (TokenId id = 0; id < 5000; ++id) sum += std::exp(static_cast<double>(logprob(logits, statistics, id)));
  EXPECT_NEAR(sum, 1.0, 1e-6);
}

TEST(RowStatistics, SeesANumberThatIsNone) {
  std::vector<float> logits(100, 1.0f);
  EXPECT_TRUE(row_statistics(logits).finite);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    logits[57] = bad;
    EXPECT_FALSE(row_statistics(logits).finite);
  }
}

TEST(Likeliest, IsSortedAndBreaksTiesToTheLowerId) {
  const std::vector<float> logits = {2, 5, 5, 1, 5};
  std::vector<TokenId> ids;
  likeliest(logits, 4, ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 2, 4, 0}));
  likeliest(logits, 99, ids);
  EXPECT_EQ(ids.size(), 5u);
}

}  // namespace
}  // namespace nibble
