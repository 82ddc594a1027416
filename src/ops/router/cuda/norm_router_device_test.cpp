// On a GPU, or on its emulation: norm and router in one against the three kernels they stand for, bit for
// bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "ops/cuda/absent.h"
#include "ops/cuda/device_test_util.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/op_test_util.h"
#include "ops/router/cuda/norm_router_cuda.h"
#include "ops/router/cuda/router_cuda.h"

namespace nibble {
namespace {

using NormRouterOnTheGpu = OnTheGpu;

struct Shape {
  int rows, hidden, experts, top_k;
  bool bias = true;
  int row_limit = -1;
  bool of_all = false;
  bool less_one = false;           // the norm's weight is kept less one
  int groups = 0, top_groups = 0;  // of a choice by sigmoids; 0: by softmax
};

struct Inputs {
  std::vector<float> residual, delta;
  std::vector<Bf16> norm_weight, router, bias;
  std::vector<float> correction;
};

std::vector<Bf16> random_bf16(std::mt19937& random, int count) {
  std::vector<Bf16> values;
  for (const float value : random_floats(random, static_cast<std::size_t>(count)))
    values.push_back(Bf16::from_float(value));
  return values;
}

Inputs inputs_of(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  const std::size_t values = static_cast<std::size_t>(shape.rows * shape.hidden);
  return {.residual = random_floats(random, values),
          .delta = random_floats(random, values),
          .norm_weight = random_bf16(random, shape.hidden),
          .router = random_bf16(random, shape.experts * shape.hidden),
          .bias = random_bf16(random, shape.experts),
          .correction = random_floats(random, static_cast<std::size_t>(shape.experts), 0.3f)};
}

struct Outputs {
  std::vector<float> residual, expert_weights;
  std::vector<Bf16> norm;
  std::vector<std::int32_t> expert_ids;
  std::vector<std::uint8_t> tiles;

  bool operator==(const Outputs& other) const {
    const auto same_bits = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
    };
    return same_bits(residual, other.residual) && same_bits(expert_weights, other.expert_weights) &&
           same_bits(norm, other.norm) && expert_ids == other.expert_ids && tiles == other.tiles;
  }
};

// Where everything lies for rows [first, first + rows) of the inputs.
struct Room {
  Shape shape;
  DenseShape router_shape;
  int stride;
  DeviceBuffer residual, delta, norm_weight, plain_router, router, bias, correction, limit;
  DeviceBuffer residual_out, norm, tiles, ids, weights;

  Room(const Shape& of, const Inputs& inputs, int first)
      : shape(of),
        router_shape{of.experts, of.hidden},
        stride(router_shape.padded_cols()),
        residual(on_device(rows_of(inputs.residual, of, first))),
        delta(on_device(rows_of(inputs.delta, of, first))),
        norm_weight(on_device(inputs.norm_weight)),
        plain_router(on_device(inputs.router)),
        router(device_bytes(router_shape.bytes(), 0xff)),
        bias(on_device(inputs.bias)),
        correction(on_device(inputs.correction)),
        limit(on_device(std::vector<std::int32_t>{of.row_limit})),
        residual_out(device_bytes(residual.size(), 0xff)),
        norm(device_bytes(static_cast<std::size_t>(of.rows * stride) * 2, 0xff)),
        tiles(device_bytes(router_shape.token_bytes(of.rows), 0)),
        ids(device_bytes(static_cast<std::size_t>(of.rows * of.top_k) * 4, 0xff)),
        weights(device_bytes(static_cast<std::size_t>(of.rows * of.top_k) * 4, 0)) {
    const Status status =
        repack_dense_cuda(plain_router.as<Bf16>(), router_shape, router.as<std::uint8_t>(), nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
  }
  static std::vector<float> rows_of(const std::vector<float>& all, const Shape& of, int first) {
    const auto begin = all.begin() + first * of.hidden;
    return {begin, begin + of.rows * of.hidden};
  }
  const std::int32_t* row_limit() { return shape.row_limit < 0 ? nullptr : limit.as<std::int32_t>(); }
  std::optional<SigmoidRule> sigmoid() {
    if (shape.groups == 0) return std::nullopt;
    return SigmoidRule{.bias = correction.as<float>(),
                       .groups = shape.groups,
                       .top_groups = shape.top_groups,
                       .renormalise = true,
                       .scale = 2.5f};
  }
  Bf16* router_bias() { return shape.bias ? bias.as<Bf16>() : nullptr; }
  Outputs outputs(const DeviceBuffer& new_residual) {
    Outputs found{std::vector<float>(residual.size() / 4), std::vector<float>(weights.size() / 4),
                  std::vector<Bf16>(norm.size() / 2), std::vector<std::int32_t>(ids.size() / 4),
                  std::vector<std::uint8_t>(tiles.size())};
    new_residual.copy_to(std::span(found.residual));
    weights.copy_to(std::span(found.expert_weights));
    norm.copy_to(std::span(found.norm));
    tiles.copy_to(std::span(found.tiles));
    ids.copy_to(std::span(found.expert_ids));
    return found;
  }
};

Outputs in_one(const Shape& shape, const Inputs& inputs, int first = 0) {
  Room room(shape, inputs, first);
  DeviceBuffer sums = device_bytes(norm_router_sums(shape.experts) * 4, 0);
  make_absent(sums.as<float>(), norm_router_sums(shape.experts), nullptr);
  const NormRouterCudaArgs args{.residual = room.residual.as<float>(),
                                .delta = room.delta.as<float>(),
                                .norm_weight = room.norm_weight.as<Bf16>(),
                                .weight_less_one = shape.less_one,
                                .eps = 1e-5f,
                                .residual_out = room.residual_out.as<float>(),
                                .norm = room.norm.as<Bf16>(),
                                .norm_stride = room.stride,
                                .norm_tiles = room.tiles.as<std::uint8_t>(),
                                .router = {room.router.as<std::uint8_t>(), room.router_shape},
                                .router_bias = room.router_bias(),
                                .rows = shape.rows,
                                .row_limit = room.row_limit(),
                                .top_k = shape.top_k,
                                .of_all = shape.of_all,
                                .sigmoid = room.sigmoid(),
                                .expert_ids = room.ids.as<std::int32_t>(),
                                .expert_weights = room.weights.as<float>(),
                                .workspace = {sums.as<float>()}};
  for (int launch = 0; launch < 2; ++launch) {  // the second finds what the first leaves
    const Status status = norm_router_cuda(args, nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
  }
  std::vector<std::uint32_t> left(norm_router_sums(shape.experts));
  sums.copy_to(std::span(left));
  EXPECT_EQ(std::count(left.begin(), left.end(), absent_bits), std::ssize(left)) << "sums are left";
  return room.outputs(room.residual_out);
}

Status route(const Shape& shape, Room& room, const float* logits) {
  if (shape.groups > 0) {
    return route_sigmoid_cuda({.logits = logits,
                               .rows = shape.rows,
                               .row_limit = room.row_limit(),
                               .experts = shape.experts,
                               .top_k = shape.top_k,
                               .rule = *room.sigmoid(),
                               .expert_ids = room.ids.as<std::int32_t>(),
                               .expert_weights = room.weights.as<float>()},
                              nullptr);
  }
  return route_top_k_cuda({.logits = logits,
                           .rows = shape.rows,
                           .row_limit = room.row_limit(),
                           .experts = shape.experts,
                           .top_k = shape.top_k,
                           .of_all = shape.of_all,
                           .expert_ids = room.ids.as<std::int32_t>(),
                           .expert_weights = room.weights.as<float>()},
                          nullptr);
}

Outputs in_three(const Shape& shape, const Inputs& inputs) {
  Room room(shape, inputs, 0);
  DeviceBuffer logits = device_bytes(static_cast<std::size_t>(shape.rows * shape.experts) * 4, 0xff);
  const int processors = processors_of_device();
  DeviceBuffer few = device_bytes(linear_few_floats(processors, shape.rows) * 4, 0);
  DeviceBuffer many = device_bytes(linear_many_floats(processors) * 4, 0);
  DeviceBuffer arrived = device_bytes(static_cast<std::size_t>(processors) * 4, 0);
  const LinearCudaWorkspace workspace{few.as<float>(), many.as<float>(), arrived.as<std::uint32_t>()};
  clear_linear_workspace(workspace, processors, shape.rows, nullptr);
  const Status statuses[] = {add_rms_norm_cuda({.residual = room.residual.as<float>(),
                                                .residual_out = room.residual.as<float>(),
                                                .delta = room.delta.as<float>(),
                                                .weight = room.norm_weight.as<Bf16>(),
                                                .weight_less_one = shape.less_one,
                                                .out = room.norm.as<Bf16>(),
                                                .out_stride = room.stride,
                                                .out_tiles = room.tiles.as<std::uint8_t>(),
                                                .rows = shape.rows,
                                                .hidden = shape.hidden,
                                                .eps = 1e-5f},
                                               nullptr),
                             linear_cuda({.x = {room.tiles.as<std::uint8_t>(), shape.rows},
                                          .weight = {room.router.as<std::uint8_t>(), room.router_shape},
                                          .bias = room.router_bias(),
                                          .y = logits.as<float>(),
                                          .y_stride = shape.experts,
                                          .workspace = workspace},
                                         nullptr),
                             route(shape, room, logits.as<float>())};
  for (const Status& status : statuses) NIBBLE_CHECK(status.ok(), status.message());
  return room.outputs(room.residual);
}

TEST_F(NormRouterOnTheGpu, GivesTheBitsOfThreeKernels) {
  for (const Shape& shape :
       {Shape{1, 2880, 128, 4},
        {3, 2880, 32, 4},
        {8, 640, 128, 4},
        {9, 2880, 128, 4},
        {5, 4096, 64, 8},
        {2, 72, 5, 5},
        {75, 136, 40, 4},
        {17, 136, 200, 8, false},
        {1, 136, 200, 8, false},
        {1, 2048, 256, 8, false, -1, false, true},
        {3, 2048, 256, 8, false, -1, false, true},
        {1, 192, 512, 10, false},
        {1, 2048, 128, 8, false, -1, true},
        {11, 2048, 128, 8, false, -1, true},
        {1, 256, 40, 4, false, -1, false, true},
        {11, 256, 40, 4, false, -1, false, true},
        {1, 32, 3, 1},
        {1, 7168, 128, 4},
        {1, 7680, 16, 2},
        {1, 4104, 40, 2},
        {.rows = 1, .hidden = 7168, .experts = 256, .top_k = 8, .bias = false, .groups = 8, .top_groups = 4},
        {.rows = 1, .hidden = 7168, .experts = 384, .top_k = 8, .bias = false, .groups = 1, .top_groups = 1},
        {.rows = 1, .hidden = 2048, .experts = 64, .top_k = 4, .bias = false, .groups = 1, .top_groups = 1},
        {.rows = 12, .hidden = 2048, .experts = 64, .top_k = 4, .bias = false, .groups = 1, .top_groups = 1},
        {.rows = 70,
        .hidden = 256,
        .experts = 48,
        .top_k = 3,
        .bias = false,
        .groups = 6,
        .top_groups = 2}}) {
    const Inputs inputs = inputs_of(shape, 1);
    EXPECT_TRUE(in_one(shape, inputs) == in_three(shape, inputs))
        << shape.rows << " rows of " << shape.hidden << ", " << shape.experts << " experts";
  }
}

TEST_F(NormRouterOnTheGpu, ARowsBitsDoNotDependOnItsBatch) {
  const Shape all{11, 640, 32, 4};
  const Inputs inputs = inputs_of(all, 2);
  const Outputs together = in_one(all, inputs);
  for (const int row : {0, 7, 10}) {
    Shape one = all;
    one.rows = 1;
    const Outputs alone = in_one(one, inputs, row);
    for (int i = 0; i < all.top_k; ++i) {
      const std::size_t of_row = static_cast<std::size_t>(i),
                        at = static_cast<std::size_t>(row * all.top_k + i);
      EXPECT_EQ(alone.expert_ids[of_row], together.expert_ids[at]) << row;
      EXPECT_EQ(alone.expert_weights[of_row], together.expert_weights[at]) << row;
    }
  }
}

TEST_F(NormRouterOnTheGpu, RowsPastTheLimitChooseNoExpert) {
  Shape shape{10, 128, 16, 4};
  const Inputs inputs = inputs_of(shape, 3);
  const Outputs all = in_one(shape, inputs);
  shape.row_limit = 9;
  const Outputs nine = in_one(shape, inputs);
  for (std::size_t i = 0; i < all.expert_ids.size(); ++i)
    EXPECT_EQ(nine.expert_ids[i], i < 36 ? all.expert_ids[i] : no_expert) << i;
  shape.rows = 1;
  shape.row_limit = 0;
  EXPECT_EQ(in_one(shape, inputs).expert_ids, (std::vector<std::int32_t>(4, no_expert)));
}

TEST_F(NormRouterOnTheGpu, RefusesWhatItHasNoRoomFor) {
  EXPECT_FALSE(norm_router_takes({128, 8200}, 1));
  EXPECT_FALSE(norm_router_takes({256, 7168}, 2));
  EXPECT_FALSE(norm_router_takes({128, 2880}, norm_router_max_rows + 1));
  const float* const same = nullptr;
  EXPECT_EQ(norm_router_cuda({.router = {nullptr, {128, 8200}}, .rows = 1, .top_k = 4}, nullptr).code(),
            StatusCode::invalid_argument);
  const Status status = norm_router_cuda({.residual = same,
                                          .residual_out = nullptr,
                                          .norm_stride = 128,
                                          .router = {nullptr, {16, 128}},
                                          .rows = 1,
                                          .top_k = 4},
                                         nullptr);
  EXPECT_NE(status.message().find("overwrite"), std::string::npos);
  const Status groups = norm_router_cuda({.norm_stride = 128,
                                          .router = {nullptr, {16, 128}},
                                          .rows = 1,
                                          .top_k = 5,
                                          .sigmoid = SigmoidRule{.groups = 4, .top_groups = 1}},
                                         nullptr);
  EXPECT_NE(groups.message().find("5 of 4"), std::string::npos);
}

}  // namespace
}  // namespace nibble
