// On a GPU, or on its emulation: the router's choice against the CPU's.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "ops/cuda/device_test_util.h"
#include "ops/op_test_util.h"
#include "ops/router/cuda/router_cuda.h"
#include "ops/router/router.h"

namespace nibble {
namespace {

using RouteTopKOnTheGpu = OnTheGpu;

struct Routes {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routes on_gpu(const std::vector<float>& logits, int rows, int experts, int top_k, int row_limit = -1,
              bool of_all = false) {
  Routes routes;
  routes.ids.resize(static_cast<std::size_t>(rows * top_k), -1);
  routes.weights.resize(static_cast<std::size_t>(rows * top_k), NAN);
  DeviceBuffer device_logits = on_device(logits), ids = on_device(routes.ids),
               weights = on_device(routes.weights), limit = on_device(std::vector{row_limit});
  const Status status = route_top_k_cuda({.logits = device_logits.as<float>(),
                                          .rows = rows,
                                          .row_limit = row_limit < 0 ? nullptr : limit.as<std::int32_t>(),
                                          .experts = experts,
                                          .top_k = top_k,
                                          .of_all = of_all,
                                          .expert_ids = ids.as<std::int32_t>(),
                                          .expert_weights = weights.as<float>()},
                                         nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  ids.copy_to(std::span(routes.ids));
  weights.copy_to(std::span(routes.weights));
  return routes;
}

TEST_F(RouteTopKOnTheGpu, ChoosesAsTheCpuDoes) {
  std::mt19937 random(1);
  ThreadPool threads(1);
  OpContext context{.threads = threads};
  for (const auto& [rows, experts, top_k] : {std::tuple{1, 128, 4},
                                             {9, 32, 4},
                                             {5, 200, 8},
                                             {4, 256, 8},
                                             {3, 500, 10},
                                             {2, 530, 32},
                                             {3, 5, 5},
                                             {6, 1, 1}}) {
    std::vector<float> logits = random_floats(random, static_cast<std::size_t>(rows * experts));
    // Many ties, of both zeros too: the lower index wins.
    for (float& logit : logits) logit = std::round(logit * 4) / 4;
    for (const RouterRule& rule : {RouterRule{}, RouterRule{.kind = RouterKind::softmax_of_all},
                                   RouterRule{.kind = RouterKind::softmax_of_all, .renormalise = true}}) {
      const bool of_all = rule.kind == RouterKind::softmax_of_all && !rule.renormalise;
      const Routes found = on_gpu(logits, rows, experts, top_k, -1, of_all);
      Routes expected = found;
      route_top_k(context, {.logits = logits.data(),
                            .rows = rows,
                            .experts = experts,
                            .top_k = top_k,
                            .expert_ids = expected.ids.data(),
                            .expert_weights = expected.weights.data(),
                            .rule = rule});
      EXPECT_EQ(found.ids, expected.ids) << rows << " x " << experts << ", top " << top_k;
      for (std::size_t i = 0; i < found.weights.size(); ++i)
        EXPECT_NEAR(found.weights[i], expected.weights[i], 2e-6);
    }
  }
}

TEST_F(RouteTopKOnTheGpu, OfALanesEqualLogitsTheLowerIndexWins) {
  std::vector<float> logits(128, 0);
  for (const std::size_t expert : {3u, 35u, 67u, 99u}) logits[expert] = 1;
  EXPECT_EQ(on_gpu(logits, 1, 128, 6).ids, (std::vector<std::int32_t>{3, 35, 67, 99, 0, 1}));
}

TEST_F(RouteTopKOnTheGpu, RanksWhatIsNoNumberLast) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(on_gpu({NAN, 1, -infinity, NAN, 2}, 1, 5, 4).ids, (std::vector<std::int32_t>{4, 1, 2, 0}));
  EXPECT_EQ(on_gpu({NAN, NAN, NAN}, 1, 3, 2).ids, (std::vector<std::int32_t>{0, 1}));
  std::vector<float> many(200, NAN);
  many[150] = -infinity;
  EXPECT_EQ(on_gpu(many, 1, 200, 3).ids, (std::vector<std::int32_t>{150, 0, 1}));
}

TEST_F(RouteTopKOnTheGpu, RowsPastTheLimitChooseNoExpert) {
  std::mt19937 random(2);
  const std::vector<float> logits = random_floats(random, 6 * 8);
  const Routes all = on_gpu(logits, 6, 8, 4), four = on_gpu(logits, 6, 8, 4, 4);
  for (std::size_t i = 0; i < all.ids.size(); ++i) EXPECT_EQ(four.ids[i], i < 16 ? all.ids[i] : -1) << i;
}

TEST_F(RouteTopKOnTheGpu, RefusesMoreChoicesThanExperts) {
  const Status status = route_top_k_cuda({.rows = 1, .experts = 3, .top_k = 4}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("4 of 3"), std::string::npos);
}

}  // namespace
}  // namespace nibble
