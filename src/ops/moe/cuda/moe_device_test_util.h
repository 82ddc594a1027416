// What the expert layer's device tests share: formats of weights, and a layer on the host and on the device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cuda/device_test_util.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/moe_reference.h"
#include "ops/moe/moe_with_room.h"
#include "ops/op_test_util.h"

namespace nibble {

// Formats. Each has random matrices, their granules on the device, and the layer's two ways.
struct Mxfp4Weights {
  using Granules = Mxfp4Granules;
  using Shape = Mxfp4GranuleShape;

  RandomMxfp4 host;
  Shape shape;
  int exponent_shift = 0;
  DeviceBuffer granules;
  Mxfp4ScaleRange range;  // as the device found it

  Mxfp4Weights(std::mt19937& random, int experts, int rows, int cols)
      : host(random, experts, rows, cols), shape{rows, cols} {}

  void upload() {
    const DeviceBuffer blocks = on_device(host.blocks), scales = on_device(host.scales);
    granules = device_bytes(shape.bytes() * host.experts.size(), 0xcd);
    DeviceBuffer found = device_bytes(sizeof range, 0);
    const Status status = repack_mxfp4_cuda({.blocks = reinterpret_cast<const std::uint8_t*>(blocks.data()),
                                             .scales = reinterpret_cast<const std::uint8_t*>(scales.data()),
                                             .experts = static_cast<int>(host.experts.size()),
                                             .shape = shape,
                                             .exponent_shift = exponent_shift,
                                             .out = granules.as<std::uint8_t>(),
                                             .range = found.as<Mxfp4ScaleRange>()},
                                            nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
    found.copy_to(std::span(&range, 1));
    Mxfp4ScaleRange expected;
    for (std::size_t i = 0; i < host.scales.size(); ++i) {
      const auto codes = host.blocks.begin() + static_cast<std::ptrdiff_t>(i * mxfp4_block_bytes);
      if (host.scales[i] == E8m0::nan_bits) continue;
      if (std::all_of(codes, codes + mxfp4_block_bytes, [](std::uint8_t two) { return (two & 0x77) == 0; }))
        continue;
      expected.largest = std::max(expected.largest, std::uint32_t{host.scales[i]});
      expected.below_nan = std::max(expected.below_nan, 255u - host.scales[i]);
    }
    EXPECT_EQ(range.largest, expected.largest);
    EXPECT_EQ(range.below_nan, expected.below_nan);
  }
  Granules view() {
    return {granules.as<std::uint8_t>(), static_cast<int>(host.experts.size()), shape, exponent_shift};
  }
  void pack(int expert, std::span<std::uint8_t> out) const {
    pack_granules(host.experts[static_cast<std::size_t>(expert)], exponent_shift, out);
  }
  void spoil_first_scale() { host.scales[0] = E8m0::nan_bits; }
};

struct Nvfp4Weights {
  using Granules = Nvfp4Granules;
  using Shape = Nvfp4GranuleShape;

  RandomNvfp4 host;
  Shape shape;
  float of_odd_rows = 0.37f;  // their tensor scale, of that of the even ones
  DeviceBuffer granules, tensor_scales;

  Nvfp4Weights(std::mt19937& random, int experts, int rows, int cols)
      : host(random, experts, rows, cols), shape{rows, cols} {}

  void upload(bool halves = false) {
    DeviceBuffer codes = on_device(host.codes), scales = on_device(host.scales);
    std::vector<PairFactors> factors;
    for (const float scale : host.tensor_scales) factors.push_back({scale, scale * of_odd_rows});
    tensor_scales = on_device(factors);
    granules = device_bytes(shape.bytes() * host.tensor_scales.size(), 0xcd);
    const Status status = repack_nvfp4_cuda({.codes = codes.as<std::uint8_t>(),
                                             .scales = scales.as<std::uint8_t>(),
                                             .experts = host.experts(),
                                             .shape = shape,
                                             .halves = halves,
                                             .out = granules.as<std::uint8_t>()},
                                            nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
  }
  Granules view() {
    return {granules.as<std::uint8_t>(), host.experts(), shape, tensor_scales.as<PairFactors>()};
  }
  void pack(int expert, std::span<std::uint8_t> out) const {
    pack_nvfp4_granules(host.codes_of(expert), host.scales_of(expert), shape, out);
  }
  void spoil_first_scale() { host.scales[0] = 0xff; }
};

struct Int4Weights {
  using Granules = Int4Granules;
  using Shape = Int4GranuleShape;

  RandomInt4 host;
  Shape shape;
  DeviceBuffer granules;
  Int4ScaleRange range;  // as the device found it

  Int4Weights(std::mt19937& random, int experts, int rows, int cols)
      : host(random, experts, rows, cols), shape{rows, cols} {}

  void upload(bool halves = false) {
    DeviceBuffer codes = on_device(host.codes), scales = on_device(host.scales);
    granules = device_bytes(shape.bytes() * static_cast<std::size_t>(host.experts), 0xcd);
    DeviceBuffer found = device_bytes(sizeof range, 0);
    const Status status = repack_int4_cuda({.codes = codes.as<std::uint8_t>(),
                                            .scales = scales.as<Bf16>(),
                                            .experts = host.experts,
                                            .shape = shape,
                                            .halves = halves,
                                            .out = granules.as<std::uint8_t>(),
                                            .range = found.as<Int4ScaleRange>()},
                                           nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
    found.copy_to(std::span(&range, 1));
  }
  Granules view() { return {granules.as<std::uint8_t>(), host.experts, shape}; }
  void pack(int expert, std::span<std::uint8_t> out) const {
    pack_int4_granules(host.codes_of(expert), host.scales_of(expert), shape, out);
  }
  void spoil_first_scale() { host.scales[0].bits = 0x7fff; }
};

// Matrices as the CPU's op takes them.
inline std::vector<WeightMatrix> on_host(const Mxfp4Weights& weights) {
  return {weights.host.experts.begin(), weights.host.experts.end()};
}
inline std::vector<WeightMatrix> on_host(const Int4Weights& weights) {
  std::vector<WeightMatrix> matrices;
  for (int expert = 0; expert < weights.host.experts; ++expert) {
    matrices.push_back(Int4Matrix{weights.host.codes_of(expert), weights.host.scales_of(expert),
                                  weights.host.rows, weights.host.cols});
  }
  return matrices;
}

// A layer on the host and on the device.
template <class Weights>
struct MoeTestLayer {
  int experts, top_k, hidden, intermediate;
  Weights gate_up, down;
  std::vector<Bf16> gate_up_bias, down_bias;
  DeviceBuffer device_gate_up_bias, device_down_bias;
  DeviceBuffer arrived = device_bytes(4, 0);  // of all launches
  GatedUnit unit = gpt_oss_unit(7.0f);
  bool biased = true;
  bool settles_rows = false;
  bool leave_sum = false;  // to the host, in the order of the kernel that would follow

  MoeTestLayer(std::mt19937& random, int experts_, int top_k_, int hidden_, int intermediate_)
      : experts(experts_),
        top_k(top_k_),
        hidden(hidden_),
        intermediate(intermediate_),
        gate_up(random, experts_, 2 * intermediate_, hidden_),
        down(random, experts_, hidden_, intermediate_),
        gate_up_bias(random_bf16(random, static_cast<std::size_t>(experts_ * 2 * intermediate_))),
        down_bias(random_bf16(random, static_cast<std::size_t>(experts_ * hidden_))) {}

  void upload() {
    gate_up.upload();
    down.upload();
    device_gate_up_bias = on_device(gate_up_bias);
    device_down_bias = on_device(down_bias);
  }

  std::vector<float> on_gpu(const std::vector<Bf16>& x, const std::vector<std::int32_t>& ids,
                            const std::vector<float>& weights, int blocks = 0, bool many = false) {
    const std::size_t tokens = x.size() / static_cast<std::size_t>(hidden);
    const int stride = gate_up.shape.padded_cols();
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
        device_bytes(slots * static_cast<std::size_t>(down.shape.padded_cols()) * 2, 0);
    DeviceBuffer products = device_bytes(slots * static_cast<std::size_t>(hidden) * 4, 0xff);
    DeviceBuffer out = device_bytes(tokens * static_cast<std::size_t>(hidden) * 4, 0xff);
    DeviceBuffer room =
        device_bytes(many ? moe_many_bytes(all_slots, experts, gate_up.shape, down.shape) : 0, 0xff);
    std::vector<std::uint32_t> counts(many ? static_cast<std::size_t>(moe_many_counters(all_slots, experts))
                                           : 0);
    DeviceBuffer counters = on_device(counts);
    const MoeCudaWeights layer = MoeCudaWeightsOf<typename Weights::Granules>{
        .gate_up = gate_up.view(),
        .down = down.view(),
        .gate_up_bias = biased ? device_gate_up_bias.as<Bf16>() : nullptr,
        .down_bias = biased ? device_down_bias.as<Bf16>() : nullptr,
        .unit = unit};
    const MoeCudaArgs args{
        .x = device_x.as<Bf16>(),
        .x_stride = stride,
        .tokens = static_cast<int>(tokens),
        .top_k = top_k,
        .expert_ids = device_ids.as<std::int32_t>(),
        .expert_weights = device_weights.as<float>(),
        .out = leave_sum ? nullptr : out.as<float>(),
        .settles_rows = settles_rows,
        .workspace = {activations.as<Bf16>(), products.as<float>(), arrived.as<std::uint32_t>(),
                      room.as<std::uint8_t>(), counters.as<std::uint32_t>()},
        .blocks = blocks};
    const Status status = many ? moe_many_cuda(layer, args, nullptr) : moe_few_cuda(layer, args, nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
    std::vector<float> result(tokens * static_cast<std::size_t>(hidden));
    if (leave_sum) return added_up(products, ids, weights, result.size());
    out.copy_to(std::span(result));
    std::uint32_t word = 1;
    arrived.copy_to(std::span(&word, 1));
    EXPECT_EQ(word & 0x7fffffffu, 0u) << "the next launch would not wait";
    counters.copy_to(std::span(counts));
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 0u), std::ssize(counts))
        << "the next launch would take other items and not wait";
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

  // By the CPU's op, or in double precision where that takes other formats.
  std::vector<float> on_cpu(const std::vector<Bf16>& x, const std::vector<std::int32_t>& ids,
                            const std::vector<float>& weights) const {
    ThreadPool threads(small_cases ? 1 : 8);
    std::vector<float> floats;
    for (const Bf16 value : x) floats.push_back(value.to_float());
    if constexpr (std::is_same_v<Weights, Nvfp4Weights>) {
      const auto product_of = [](const Weights& matrices) {
        return [&](int expert, int row, const float* inputs) {
          return exact_product(matrices.host, expert, row, inputs) *
                 (row % 2 == 0 ? 1 : double{matrices.of_odd_rows});
        };
      };
      const std::vector<double> exact =
          moe_reference(threads,
                        {.top_k = top_k,
                         .hidden = hidden,
                         .intermediate = intermediate,
                         .gate_up_bias = biased ? gate_up_bias.data() : nullptr,
                         .down_bias = biased ? down_bias.data() : nullptr,
                         .unit = unit,
                         .bf16_h = true},
                        floats, ids, weights, product_of(gate_up), product_of(down));
      return {exact.begin(), exact.end()};
    } else {
      OpContext context{.threads = threads, .activations = InputValues::bf16};
      return moe_with_room(context,
                           {.gate_up = on_host(gate_up),
                            .down = on_host(down),
                            .gate_up_bias = biased ? gate_up_bias.data() : nullptr,
                            .down_bias = biased ? down_bias.data() : nullptr,
                            .unit = unit},
                           floats, ids, weights);
    }
  }
};

inline double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    difference += d * d;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace nibble
