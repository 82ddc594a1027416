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
