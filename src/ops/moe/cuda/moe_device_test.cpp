// On a GPU: the expert layer against the CPU's scalar form, and its bits against themselves.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/cuda/device_test_util.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/moe.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

using MoeMxfp4OnTheGpu = OnTheGpu;

DeviceBuffer repacked(const RandomMxfp4& matrices, Mxfp4GranuleShape shape, int exponent_shift = 0) {
  const int experts = static_cast<int>(matrices.experts.size());
  const DeviceBuffer blocks = on_device(matrices.blocks), scales = on_device(matrices.scales);
  DeviceBuffer out = device_bytes(shape.bytes() * matrices.experts.size(), 0xcd),
               largest = device_bytes(4, 0);
  const Status status =
      repack_mxfp4_cuda(reinterpret_cast<const std::uint8_t*>(blocks.data()),
                        reinterpret_cast<const std::uint8_t*>(scales.data()), experts, shape, exponent_shift,
                        out.as<std::uint8_t>(), largest.as<std::uint32_t>(), nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  std::uint32_t found = 0, expected = 0;
  largest.copy_to(std::span(&found, 1));
  for (const std::uint8_t scale : matrices.scales) {
    if (scale != E8m0::nan_bits) expected = std::max(expected, std::uint32_t{scale});
  }
  EXPECT_EQ(found, expected);
  return out;
}

struct Routing {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;

  Routing(std::mt19937& random, int tokens, int experts, int top_k) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    for (int token = 0; token < tokens; ++token) {
      std::shuffle(all.begin(), all.end(), random);
      ids.insert(ids.end(), all.begin(), all.begin() + top_k);
      for (int k = 0; k < top_k; ++k) weights.push_back(0.1f + static_cast<float>(random() % 100) / 100);
    }
  }
};

// A layer on the host and on the device.
struct Layer {
  int experts, top_k, hidden, intermediate;
  RandomMxfp4 gate_up, down;
  std::vector<Bf16> gate_up_bias, down_bias;
  Mxfp4GranuleShape gate_up_shape, down_shape;
  DeviceBuffer device_gate_up, device_down, device_gate_up_bias, device_down_bias;
  int exponent_shift = 0;
  bool leave_sum = false;  // to the host, in the order of the kernel that would follow

  Layer(std::mt19937& random, int experts_, int top_k_, int hidden_, int intermediate_)
      : experts(experts_),
        top_k(top_k_),
        hidden(hidden_),
        intermediate(intermediate_),
        gate_up(random, experts_, 2 * intermediate_, hidden_),
        down(random, experts_, hidden_, intermediate_),
        gate_up_bias(random_bf16(random, static_cast<std::size_t>(experts_ * 2 * intermediate_))),
        down_bias(random_bf16(random, static_cast<std::size_t>(experts_ * hidden_))),
        gate_up_shape{2 * intermediate_, hidden_},
        down_shape{hidden_, intermediate_} {}

  void upload(int shift = 0) {
    exponent_shift = shift;
    device_gate_up = repacked(gate_up, gate_up_shape, shift);
    device_down = repacked(down, down_shape, shift);
    device_gate_up_bias = on_device(gate_up_bias);
    device_down_bias = on_device(down_bias);
  }

  std::vector<float> on_gpu(const std::vector<Bf16>& x, const std::vector<std::int32_t>& ids,
                            const std::vector<float>& weights, int blocks = 0, bool many = false) {
    const std::size_t tokens = x.size() / static_cast<std::size_t>(hidden);
    const int stride = gate_up_shape.padded_cols();
    std::vector<Bf16> padded(tokens * static_cast<std::size_t>(stride));
    for (std::size_t token = 0; token < tokens; ++token) {
      std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(token) * hidden, hidden,
                  padded.begin() + static_cast<std::ptrdiff_t>(token) * stride);
    }
    const int all_slots = static_cast<int>(ids.size());
    const std::size_t slots =
        many ? ids.size() : static_cast<std::size_t>(moe_cuda_slots(static_cast<int>(tokens), top_k));
    DeviceBuffer device_x = on_device(padded), device_ids = on_device(ids),
                 device_weights = on_device(weights);
    DeviceBuffer activations =
        device_bytes(slots * static_cast<std::size_t>(down_shape.padded_cols()) * 2, 0);
    DeviceBuffer products = device_bytes(slots * static_cast<std::size_t>(hidden) * 4, 0xff);
    DeviceBuffer arrived = device_bytes(4, 0),
                 out = device_bytes(tokens * static_cast<std::size_t>(hidden) * 4, 0xff);
    DeviceBuffer room =
        device_bytes(many ? moe_many_bytes(all_slots, experts, gate_up_shape, down_shape) : 0, 0xff);
    const auto layer = many ? moe_mxfp4_many_cuda : moe_mxfp4_cuda;
    const Status status =
        layer({.gate_up = {device_gate_up.as<std::uint8_t>(), experts, gate_up_shape, exponent_shift},
               .down = {device_down.as<std::uint8_t>(), experts, down_shape, exponent_shift},
               .gate_up_bias = device_gate_up_bias.as<Bf16>(),
               .down_bias = device_down_bias.as<Bf16>()},
              {.x = device_x.as<Bf16>(),
               .x_stride = stride,
               .tokens = static_cast<int>(tokens),
               .top_k = top_k,
               .expert_ids = device_ids.as<std::int32_t>(),
               .expert_weights = device_weights.as<float>(),
               .out = leave_sum ? nullptr : out.as<float>(),
               .workspace = {activations.as<Bf16>(), products.as<float>(), arrived.as<std::uint32_t>(),
                             room.as<std::uint8_t>()},
               .blocks = blocks},
              nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
    std::vector<float> result(tokens * static_cast<std::size_t>(hidden));
    if (leave_sum) return added_up(products, ids, weights, result.size());
    out.copy_to(std::span(result));
    std::uint32_t count = 1;
    arrived.copy_to(std::span(&count, 1));
    EXPECT_EQ(count, 0u) << "the next launch would not wait";
    return result;
  }

  std::vector<float> added_up(const DeviceBuffer& products, const std::vector<std::int32_t>& ids,
                              const std::vector<float>& weights, std::size_t count) const {
    std::vector<float> parts(products.size() / 4), sums(count);
    products.copy_to(std::span(parts));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t width = static_cast<std::size_t>(hidden),
                        first = i / width * static_cast<std::size_t>(top_k);
      bool any = false;
      for (std::size_t slot = first; slot < first + static_cast<std::size_t>(top_k); ++slot) {
        if (ids[slot] < 0) continue;
        const float term = weights[slot] * parts[slot * width + i % width];
        sums[i] = any ? sums[i] + term : term;
        any = true;
      }
    }
    return sums;
  }

  std::vector<float> on_cpu(const std::vector<Bf16>& x, const std::vector<std::int32_t>& ids,
                            const std::vector<float>& weights) const {
    ThreadPool threads(small_cases ? 1 : 8);
    OpContext context{.threads = threads, .activations = InputValues::bf16};
    std::vector<float> floats, out(x.size());
    for (const Bf16 value : x) floats.push_back(value.to_float());
    const std::size_t slots = ids.size();
    std::vector<float> activations(slots * static_cast<std::size_t>(intermediate)),
        products(slots * static_cast<std::size_t>(hidden));
    std::vector<std::int32_t> order(slots), offsets(static_cast<std::size_t>(experts) + 1);
    AlignedBytes room(moe_workspace_bytes(static_cast<int>(slots), experts, std::max(hidden, intermediate)));
    moe_mxfp4(context, {gate_up.experts, down.experts, gate_up_bias.data(), down_bias.data(), 7.0f},
              {.x = floats.data(),
               .rows = static_cast<int>(x.size()) / hidden,
               .top_k = top_k,
               .expert_ids = ids.data(),
               .expert_weights = weights.data(),
               .out = out.data(),
               .activations = activations.data(),
               .products = products.data(),
               .slots = order.data(),
               .offsets = offsets.data(),
               .workspace = room.span()});
    return out;
  }
};

double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    difference += d * d;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / norm);
}

struct Case {
  int experts, top_k, hidden, intermediate, tokens;
};

TEST_F(MoeMxfp4OnTheGpu, RepacksAsTheHostDoes) {
  std::mt19937 random(1);
  std::vector<Mxfp4GranuleShape> shapes = {{16, 32}, {48, 96}, {16, 2880}};
  if (!small_cases) shapes.push_back({5760, 2880});
  for (const Mxfp4GranuleShape shape : shapes) {
    RandomMxfp4 matrices(random, 2, shape.rows, shape.cols);
    matrices.scales[1] = E8m0::nan_bits;
    const DeviceBuffer device = repacked(matrices, shape);
    std::vector<std::uint8_t> found(2 * shape.bytes()), expected(2 * shape.bytes());
    device.copy_to(std::span(found));
    for (std::size_t e = 0; e < 2; ++e) {
      pack_granules(matrices.experts[e], 0, std::span(expected).subspan(e * shape.bytes(), shape.bytes()));
    }
    EXPECT_TRUE(found == expected) << shape.rows << " x " << shape.cols;
  }
}

TEST_F(MoeMxfp4OnTheGpu, AgreesWithTheScalarForm) {
  std::mt19937 random(2);
  std::vector<Case> cases = {{1, 1, 32, 32, 1}, {6, 3, 96, 96, 9}, {2, 1, 576, 64, 21}, {40, 4, 64, 32, 20}};
  const std::vector<Case> large = {{5, 1, 160, 64, 40},  {3, 2, 576, 320, 70},  {9, 8, 128, 256, 130},
                                   {600, 4, 64, 32, 50}, {4, 4, 2880, 2880, 1}, {8, 4, 2880, 2880, 20}};
  if (!small_cases) cases.insert(cases.end(), large.begin(), large.end());
  for (const Case& c : cases) {
    Layer layer(random, c.experts, c.top_k, c.hidden, c.intermediate);
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.hidden));
    const Routing routing(random, c.tokens, c.experts, c.top_k);
    const double error = relative_error(layer.on_gpu(x, routing.ids, routing.weights),
                                        layer.on_cpu(x, routing.ids, routing.weights));
    // Both round h to bfloat16; sums that differ in their last bits then sometimes round apart.
    EXPECT_LT(error, 1e-3) << c.experts << " experts, top " << c.top_k << ", " << c.hidden << " x "
                           << c.intermediate << ", " << c.tokens << " tokens";
  }
}

TEST_F(MoeMxfp4OnTheGpu, ARowsBitsDependOnNeitherItsBatchNorItsPlaceNorTheBlocks) {
  std::mt19937 random(3);
  const std::vector<Case> cases = small_cases
                                      ? std::vector<Case>{{3, 2, 640, 64, 11}}
                                      : std::vector<Case>{{6, 3, 96, 160, 75}, {5, 4, 2880, 2880, 33}};
  const std::vector<int> sizes = small_cases ? std::vector<int>{2, 9} : std::vector<int>{1, 2, 5, 8, 17};
  for (const Case& c : cases) {
    Layer layer(random, c.experts, c.top_k, c.hidden, c.intermediate);
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.hidden));
    const Routing routing(random, c.tokens, c.experts, c.top_k);
    const std::vector<float> together = layer.on_gpu(x, routing.ids, routing.weights);
    for (const int blocks : {1, 7, 131}) {
      const std::vector<float> again = layer.on_gpu(x, routing.ids, routing.weights, blocks);
      EXPECT_EQ(std::memcmp(together.data(), again.data(), together.size() * 4), 0) << blocks << " blocks";
    }
    for (const int size : sizes) {
      for (int first = 0; first < c.tokens; first += size) {
        const int count = std::min(size, c.tokens - first);
        const auto cut = [&](const auto& all, int width) {
          return std::vector(all.begin() + first * width, all.begin() + (first + count) * width);
        };
        const std::vector<float> part =
            layer.on_gpu(cut(x, c.hidden), cut(routing.ids, c.top_k), cut(routing.weights, c.top_k));
        ASSERT_EQ(std::memcmp(part.data(), together.data() + first * c.hidden, part.size() * 4), 0)
            << "batches of " << size << ", from token " << first;
      }
    }
  }
}

TEST_F(MoeMxfp4OnTheGpu, GivesTheSameBitsForManyTokensAsForFew) {
  std::mt19937 random(8);
  const std::vector<Case> cases =
      small_cases
          ? std::vector<Case>{{3, 2, 576, 160, 13}, {2, 1, 96, 224, 131}, {1, 1, 64, 32, 300}}
          : std::vector<Case>{{3, 2, 576, 160, 13},    {6, 3, 96, 160, 700},     {5, 4, 2880, 2880, 10},
                              {5, 4, 2880, 2880, 300}, {3, 2, 2880, 2880, 1900}, {32, 4, 576, 160, 200}};
  for (const Case& c : cases) {
    Layer layer(random, c.experts, c.top_k, c.hidden, c.intermediate);
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.hidden));
    Routing routing(random, c.tokens, c.experts, c.top_k);
    routing.ids[0] = -1;
    const std::vector<float> few = layer.on_gpu(x, routing.ids, routing.weights);
    const std::vector<float> many = layer.on_gpu(x, routing.ids, routing.weights, 0, true);
    std::size_t different = 0;
    for (std::size_t i = 0; i < few.size(); ++i)
      different += std::memcmp(&few[i], &many[i], sizeof few[i]) != 0;
    EXPECT_EQ(different, 0u) << "of " << few.size() << ", " << c.tokens << " tokens, error "
                             << relative_error(many, few);
  }
}

TEST_F(MoeMxfp4OnTheGpu, HasRoomForExpertsOfOneTokenBesideOneOfMany) {
  std::mt19937 random(10);
  const int experts = 8;
  Layer layer(random, experts, 1, 64, 32);
  layer.upload();
  for (const int tokens : {40, 400, 900}) {  // all three kinds of tiles
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * 64));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens), 0);
    for (int expert = 1; expert < experts; ++expert) ids[static_cast<std::size_t>(5 * expert)] = expert;
    const std::vector<float> weights(ids.size(), 1.0f);
    EXPECT_EQ(layer.on_gpu(x, ids, weights, 0, true), layer.on_gpu(x, ids, weights)) << tokens;
  }
}

TEST_F(MoeMxfp4OnTheGpu, TakesMoreTokensThanOneLaunchHolds) {
  std::mt19937 random(4);
  const int tokens = moe_cuda_max_slots / 8 + 22;
  Layer layer(random, 8, 8, 32, 32);
  layer.upload();
  const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * 32));
  const Routing routing(random, tokens, 8, 8);
  EXPECT_LT(relative_error(layer.on_gpu(x, routing.ids, routing.weights),
                           layer.on_cpu(x, routing.ids, routing.weights)),
            1e-3);
}

TEST_F(MoeMxfp4OnTheGpu, LeavesTheSumOfATokensExpertsToTheNextKernelIfAsked) {
  std::mt19937 random(9);
  Layer layer(random, 3, 2, 64, 32);
  layer.upload();
  const std::vector<Bf16> x = random_bf16(random, 5 * 64);
  Routing routing(random, 5, 3, 2);
  routing.ids[2] = -1;
  for (const bool many : {false, true}) {
    layer.leave_sum = false;
    const std::vector<float> added = layer.on_gpu(x, routing.ids, routing.weights, 0, many);
    layer.leave_sum = true;
    EXPECT_EQ(layer.on_gpu(x, routing.ids, routing.weights, 0, many), added) << many;
  }
  const std::size_t too_many = moe_cuda_max_slots / 2 + 1;
  const MoeCudaWeights weights{.gate_up = {nullptr, 3, layer.gate_up_shape},
                               .down = {nullptr, 3, layer.down_shape}};
  const Status refusal =
      moe_mxfp4_cuda(weights, {.x_stride = 64, .tokens = static_cast<int>(too_many), .top_k = 2}, nullptr);
  EXPECT_EQ(refusal.code(), StatusCode::invalid_argument);
  EXPECT_NE(refusal.message().find("only those of 512"), std::string::npos) << refusal.message();
}

TEST_F(MoeMxfp4OnTheGpu, LeavesOutChoicesOfNoExpert) {
  std::mt19937 random(5);
  Layer layer(random, 4, 2, 64, 32);
  layer.upload();
  const std::vector<Bf16> x = random_bf16(random, 3 * 64);
  const std::vector<float> none = layer.on_gpu(x, {-1, -1, 2, -1, -1, 3}, {1, 1, 0.5f, 1, 1, 0.25f});
  const std::vector<float> some = layer.on_gpu(x, {0, 1, 2, 1, 1, 3}, {0, 0, 0.5f, 0, 0, 0.25f});
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(none[i], 0.0f);
  for (std::size_t i = 64; i < 192; ++i) EXPECT_EQ(none[i], some[i]);
}

TEST_F(MoeMxfp4OnTheGpu, HoldsAtTheExtremesOfTheScale) {
  std::mt19937 random(6);
  for (const int top : {128, 140}) {
    Layer layer(random, 2, 1, 64, 64);
    for (std::uint8_t& scale : layer.down.scales)
      scale = static_cast<std::uint8_t>(top - static_cast<int>(random() % 100));
    layer.upload();
    layer.device_down =
        repacked(layer.down, layer.down_shape, granule_exponent_shift(static_cast<std::uint8_t>(top)));
    layer.device_gate_up =
        repacked(layer.gate_up, layer.gate_up_shape, granule_exponent_shift(static_cast<std::uint8_t>(top)));
    layer.exponent_shift = granule_exponent_shift(static_cast<std::uint8_t>(top));
    const std::vector<Bf16> x = random_bf16(random, 4 * 64);
    const Routing routing(random, 4, 2, 1);
    EXPECT_LT(relative_error(layer.on_gpu(x, routing.ids, routing.weights),
                             layer.on_cpu(x, routing.ids, routing.weights)),
              3e-3);
  }
}

TEST_F(MoeMxfp4OnTheGpu, AScaleOfNotANumberReachesOnlyTheRowsRoutedToIt) {
  std::mt19937 random(7);
  Layer layer(random, 3, 1, 64, 64);
  layer.down.scales[0] = E8m0::nan_bits;  // expert 0, output 0
  layer.upload();
  const std::vector<Bf16> x = random_bf16(random, 2 * 64);
  const std::vector<float> out = layer.on_gpu(x, {0, 1}, {1, 1});
  EXPECT_TRUE(std::isnan(out[0]));
  for (std::size_t i = 1; i < 128; ++i) EXPECT_TRUE(std::isfinite(out[i]));
}

}  // namespace
}  // namespace nibble
