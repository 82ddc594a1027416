// On a GPU, or on its emulation: the router's choice by sigmoids against the CPU's.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cuda/device_test_util.h"
#include "ops/op_test_util.h"
#include "ops/router/cuda/route_sigmoid_cuda.h"
#include "ops/router/router.h"

namespace nibble {
namespace {

using RouteSigmoidOnTheGpu = OnTheGpu;

struct Shape {
  int rows, experts, top_k, groups, top_groups;
};

struct Routes {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routes on_gpu(const Shape& shape, const std::vector<float>& logits, const std::vector<float>& bias,
              const RouterRule& rule, int row_limit = -1, int first_row = 0) {
  Routes routes;
  routes.ids.resize(static_cast<std::size_t>(shape.rows * shape.top_k), -2);
  routes.weights.resize(routes.ids.size(), NAN);
  DeviceBuffer device_logits = on_device(logits), ids = on_device(routes.ids),
               weights = on_device(routes.weights), limit = on_device(std::vector{row_limit}),
               device_bias = on_device(bias);
  const Status status =
      route_sigmoid_cuda({.logits = device_logits.as<float>(),
                          .rows = shape.rows,
                          .row_limit = row_limit < 0 ? nullptr : limit.as<std::int32_t>(),
                          .first_row = first_row,
                          .experts = shape.experts,
                          .top_k = shape.top_k,
                          .rule = {.bias = rule.bias == nullptr ? nullptr : device_bias.as<float>(),
                                   .groups = shape.groups,
                                   .top_groups = shape.top_groups,
                                   .renormalise = rule.renormalise,
                                   .scale = rule.scale},
                          .expert_ids = ids.as<std::int32_t>(),
                          .expert_weights = weights.as<float>()},
                         nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  ids.copy_to(std::span(routes.ids));
  weights.copy_to(std::span(routes.weights));
  return routes;
}

TEST_F(RouteSigmoidOnTheGpu, HasTheCpusChoicesAndBits) {
  std::mt19937 random(1);
  ThreadPool threads(1);
  OpContext context{.threads = threads};
  for (const Shape& shape : {Shape{5, 256, 8, 8, 4},
                             {3, 384, 8, 1, 1},
                             {9, 64, 4, 1, 1},
                             {2, 512, 16, 64, 9},
                             {6, 8, 3, 4, 2},
                             {4, 12, 2, 12, 5},
                             {1, 1, 1, 1, 1}}) {
    SCOPED_TRACE(shape.experts);
    std::vector<float> logits =
        random_floats(random, static_cast<std::size_t>(shape.rows * shape.experts), 2);
    std::vector<float> bias = random_floats(random, static_cast<std::size_t>(shape.experts), 0.3f);
    // Many ties: the lower index wins.
    for (float& logit : logits) logit = std::round(logit * 2) / 2;
    for (float& each : bias) each = std::round(each * 4) / 4;
    for (const bool corrected : {false, true}) {
      const RouterRule rule{.kind = RouterKind::sigmoid,
                            .renormalise = corrected,
                            .bias = corrected ? bias.data() : nullptr,
                            .groups = shape.groups,
                            .top_groups = shape.top_groups,
                            .scale = 2.5f};
      const Routes found = on_gpu(shape, logits, bias, rule);
      Routes expected = found;
      route_top_k(context, {.logits = logits.data(),
                            .rows = shape.rows,
                            .experts = shape.experts,
                            .top_k = shape.top_k,
                            .expert_ids = expected.ids.data(),
                            .expert_weights = expected.weights.data(),
                            .rule = rule});
      EXPECT_EQ(found.ids, expected.ids);
      EXPECT_EQ(found.weights, expected.weights);
    }
  }
}

TEST_F(RouteSigmoidOnTheGpu, RowsFromTheLimitOnChooseNobody) {
  const Shape shape{3, 8, 2, 1, 1};
  const std::vector<float> logits(24, 0.5f), bias(8, 0.0f);
  const Routes routes = on_gpu(shape, logits, bias, {.kind = RouterKind::sigmoid, .scale = 1.0f}, 1);
  EXPECT_EQ(routes.ids, (std::vector<std::int32_t>{0, 1, -1, -1, -1, -1}));
  // Of rows that begin with the step's row 4.
  EXPECT_EQ(on_gpu(shape, logits, bias, {.kind = RouterKind::sigmoid, .scale = 1.0f}, 6, 4).ids,
            (std::vector<std::int32_t>{0, 1, 0, 1, -1, -1}));
}

TEST_F(RouteSigmoidOnTheGpu, WhatIsNoNumberIsChosenLast) {
  const Shape shape{1, 4, 4, 1, 1};
  const std::vector<float> bias(4, 0.0f);
  const Routes routes = on_gpu(shape, {NAN, 1, 3, 2}, bias, {.kind = RouterKind::sigmoid});
  EXPECT_EQ(routes.ids, (std::vector<std::int32_t>{2, 3, 1, 0}));
}

TEST_F(RouteSigmoidOnTheGpu, RefusesWhatItCannotChooseFrom) {
  const auto refusal = [](const RouteSigmoidCudaArgs& args) {
    return std::string(route_sigmoid_cuda(args, nullptr).message());
  };
  EXPECT_NE(refusal({.rows = 1, .experts = 513, .top_k = 1}).find("not 513"), std::string::npos);
  EXPECT_NE(refusal({.rows = 1, .experts = 10, .top_k = 1, .rule = {.groups = 4}}).find("of 4 groups"),
            std::string::npos);
  EXPECT_NE(
      refusal({.rows = 1, .experts = 8, .top_k = 5, .rule = {.groups = 4, .top_groups = 2}}).find("5 of 4"),
      std::string::npos);
}

}  // namespace
}  // namespace nibble
