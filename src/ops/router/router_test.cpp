#include "ops/router/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

TEST(RouteTopK, AgreesWithASortForEveryK) {
  std::mt19937 random(1);
  ThreadPool threads(2);
  OpContext context{threads};
  const int experts = 13, rows = 40;
  std::vector<float> logits(static_cast<std::size_t>(experts * rows));
  for (float& logit : logits) logit = static_cast<float>(random() % 7);  // many ties
  for (int k = 1; k <= experts; ++k) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * k), -1);
    std::vector<float> weights(static_cast<std::size_t>(rows * k));
    route_top_k(context, {.logits = logits.data(),
                          .rows = rows,
                          .experts = experts,
                          .top_k = k,
                          .expert_ids = ids.data(),
                          .expert_weights = weights.data()});
    for (int row = 0; row < rows; ++row) {
      const float* of_row = logits.data() + row * experts;
      std::vector<int> order(experts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return of_row[a] > of_row[b]; });
      double sum = 0;
      for (int i = 0; i < k; ++i)
        sum += std::exp(static_cast<double>(of_row[order[static_cast<std::size_t>(i)]]));
      for (int i = 0; i < k; ++i) {
        const int expert = order[static_cast<std::size_t>(i)];
        ASSERT_EQ(ids[static_cast<std::size_t>(row * k + i)], expert);
        ASSERT_NEAR(weights[static_cast<std::size_t>(row * k + i)],
                    std::exp(static_cast<double>(of_row[expert])) / sum, 1e-6);
      }
    }
  }
}

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};
Routed route(const std::vector<float>& logits, int k, const RouterRule& rule) {
  ThreadPool threads(1);
  OpContext context{threads};
  Routed routed{std::vector<std::int32_t>(static_cast<std::size_t>(k), -1),
                std::vector<float>(static_cast<std::size_t>(k))};
  route_top_k(context, {.logits = logits.data(),
                        .rows = 1,
                        .experts = static_cast<int>(logits.size()),
                        .top_k = k,
                        .expert_ids = routed.ids.data(),
                        .expert_weights = routed.weights.data(),
                        .rule = rule});
  return routed;
}

TEST(RouteTopK, ASoftmaxOfAllWeighsByAllOrByTheChosen) {
  std::mt19937 random(2);
  for (const float spread : {1.0f, 30.0f}) {
    const std::vector<float> logits = random_floats(random, 128, spread);
    const Routed all = route(logits, 8, {.kind = RouterKind::softmax_of_all});
    const Routed chosen = route(logits, 8, {.kind = RouterKind::softmax_of_all, .renormalise = true});
    EXPECT_EQ(all.ids, chosen.ids);
    EXPECT_EQ(chosen.weights, route(logits, 8, {}).weights) << "the same as a softmax of the chosen";
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    for (std::size_t i = 0; i < 8; ++i)
      EXPECT_NEAR(all.weights[i], std::exp(double{logits[static_cast<std::size_t>(all.ids[i])]}) / sum, 1e-6);
  }
  EXPECT_EQ(route({1, 1, 1, 1}, 2, {.kind = RouterKind::softmax_of_all}).ids,
            (std::vector<std::int32_t>{0, 1}))
      << "a tie goes to the lower index";
  EXPECT_EQ(route({1, 1, 1, 1}, 2, {.kind = RouterKind::softmax_of_all}).weights,
            (std::vector<float>{0.25f, 0.25f}));
}

TEST(RouteTopK, ASigmoidsBiasChoosesAndDoesNotWeigh) {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    const int experts = 24, groups = 4, top_groups = 2, k = 5, of_group = experts / groups;
    const std::vector<float> logits = random_floats(random, experts, 2.0f),
                             bias = random_floats(random, experts, 1.5f);
    std::vector<double> score, choice;
    for (std::size_t e = 0; e < experts; ++e) {
      score.push_back(1 / (1 + std::exp(-double{logits[e]})));
      choice.push_back(score[e] + bias[e]);
    }
    // Groups by the sum of their two best; those that are left out never win, however negative choices are.
    std::vector<std::pair<double, int>> sums;
    for (int g = 0; g < groups; ++g) {
      std::vector<double> own(choice.begin() + g * of_group, choice.begin() + (g + 1) * of_group);
      std::sort(own.rbegin(), own.rend());
      sums.emplace_back(-(own[0] + own[1]), g);
    }
    std::sort(sums.begin(), sums.end());
    std::vector<int> order;
    for (int e = 0; e < experts; ++e) {
      if (e / of_group == sums[0].second || e / of_group == sums[1].second) order.push_back(e);
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return choice[static_cast<std::size_t>(a)] > choice[static_cast<std::size_t>(b)];
    });
    double sum = 1e-20;
    for (int i = 0; i < k; ++i) sum += score[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
    const Routed routed = route(logits, k,
                                {.kind = RouterKind::sigmoid,
                                 .renormalise = true,
                                 .bias = bias.data(),
                                 .groups = groups,
                                 .top_groups = top_groups,
                                 .scale = 2.5f});
    for (std::size_t i = 0; i < k; ++i) {
      ASSERT_EQ(routed.ids[i], order[i]);
      ASSERT_NEAR(routed.weights[i], 2.5 * score[static_cast<std::size_t>(order[i])] / sum, 1e-5);
    }
  }
}

TEST(RouteTopK, NotANumberNeverLeavesTheListOfExperts) {
  ThreadPool threads(1);
  OpContext context{threads};
  const std::vector<float> logits(6, NAN);
  std::vector<std::int32_t> ids(3, -1);
  std::vector<float> weights(3);
  route_top_k(context, {.logits = logits.data(),
                        .rows = 1,
                        .experts = 6,
                        .top_k = 3,
                        .expert_ids = ids.data(),
                        .expert_weights = weights.data()});
  for (std::int32_t id : ids) EXPECT_TRUE(id >= 0 && id < 6);
  EXPECT_TRUE(std::isnan(weights[0]));
}

}  // namespace
}  // namespace nibble
