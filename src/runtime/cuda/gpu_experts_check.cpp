// Kernels of experts in granules (ops/moe/cuda/granules.h), in each format of four bits: for one row, for few
// and for many.
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "formats/int4.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/moe_reference.h"
#include "runtime/cuda/gpu_check_util.h"
#include "tensor/cuda_check.h"
#include "tensor/device_buffer.h"

namespace nibble {
namespace {

constexpr int experts = 4, top_k = 2, hidden = 256, width = 256;

std::vector<std::uint8_t> random_codes(Numbers& numbers, int rows, int cols) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(experts * rows * cols / 2));
  for (std::uint8_t& two : codes) two = static_cast<std::uint8_t>(numbers.next() >> 24);
  return codes;
}

// Formats: random matrices [experts, rows, cols] as a checkpoint has them, and on the device.
struct Mxfp4Experts {
  using Granules = Mxfp4Granules;
  Mxfp4GranuleShape shape;
  std::vector<std::uint8_t> codes, scales;
  DeviceBuffer data;

  Status make(Numbers& numbers, int rows, int cols) {
    shape = {rows, cols};
    codes = random_codes(numbers, rows, cols);
    scales.resize(codes.size() / mxfp4_block_bytes);
    for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(119 + (numbers.next() >> 30));
    NIBBLE_ASSIGN(DeviceBuffer device_codes, on_device(codes));
    NIBBLE_ASSIGN(DeviceBuffer device_scales, on_device(scales));
    NIBBLE_ASSIGN(DeviceBuffer range, zeroed(sizeof(Mxfp4ScaleRange)));
    NIBBLE_ASSIGN(data, zeroed(experts * shape.bytes()));
    NIBBLE_RETURN_IF_ERROR(repack_mxfp4_cuda({.blocks = device_codes.as<std::uint8_t>(),
                                              .scales = device_scales.as<std::uint8_t>(),
                                              .experts = experts,
                                              .shape = shape,
                                              .out = data.as<std::uint8_t>(),
                                              .range = range.as<Mxfp4ScaleRange>()},
                                             nullptr));
    cuda_check(cudaDeviceSynchronize());
    return {};
  }
  Granules view() { return {data.as<std::uint8_t>(), experts, shape}; }
  void decode(int row, std::span<float> values) const {
    const std::size_t block = static_cast<std::size_t>(row * shape.cols / mxfp4_block);
    mxfp4_decode(&codes[block * mxfp4_block_bytes], &scales[block], values);
  }
};

struct Nvfp4Experts {
  using Granules = Nvfp4Granules;
  static constexpr float tensor_scale = 0.02f;
  Nvfp4GranuleShape shape;
  std::vector<std::uint8_t> codes, scales;
  DeviceBuffer data, tensor_scales;

  Status make(Numbers& numbers, int rows, int cols) {
    shape = {rows, cols};
    codes = random_codes(numbers, rows, cols);
    scales.resize(codes.size() * 2 / nvfp4_block);
    for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(0x30 + (numbers.next() >> 28));
    NIBBLE_ASSIGN(DeviceBuffer device_codes, on_device(codes));
    NIBBLE_ASSIGN(DeviceBuffer device_scales, on_device(scales));
    NIBBLE_ASSIGN(tensor_scales,
                  on_device(std::vector<PairFactors>(experts, PairFactors{tensor_scale, tensor_scale})));
    NIBBLE_ASSIGN(data, zeroed(experts * shape.bytes()));
    NIBBLE_RETURN_IF_ERROR(repack_nvfp4_cuda({.codes = device_codes.as<std::uint8_t>(),
                                              .scales = device_scales.as<std::uint8_t>(),
                                              .experts = experts,
                                              .shape = shape,
                                              .out = data.as<std::uint8_t>()},
                                             nullptr));
    cuda_check(cudaDeviceSynchronize());
    return {};
  }
  Granules view() { return {data.as<std::uint8_t>(), experts, shape, tensor_scales.as<PairFactors>()}; }
  void decode(int row, std::span<float> values) const {
    const std::size_t first = static_cast<std::size_t>(row * shape.cols);
    nvfp4_decode(&codes[first / 2], &scales[first / nvfp4_block], 1.0f, values);
    for (float& value : values) value *= tensor_scale;
  }
};

struct Int4Experts {
  using Granules = Int4Granules;
  Int4GranuleShape shape;
  std::vector<std::uint8_t> codes;
  std::vector<Bf16> scales;
  DeviceBuffer data;

  Status make(Numbers& numbers, int rows, int cols) {
    shape = {rows, cols};
    codes = random_codes(numbers, rows, cols);
    scales = numbers.list(codes.size() * 2 / int4_group, 0.01f);
    NIBBLE_ASSIGN(DeviceBuffer device_codes, on_device(codes));
    NIBBLE_ASSIGN(DeviceBuffer device_scales, on_device(scales));
    NIBBLE_ASSIGN(DeviceBuffer range, zeroed(sizeof(Int4ScaleRange)));
    NIBBLE_ASSIGN(data, zeroed(experts * shape.bytes()));
    NIBBLE_RETURN_IF_ERROR(repack_int4_cuda({.codes = device_codes.as<std::uint8_t>(),
                                             .scales = device_scales.as<Bf16>(),
                                             .experts = experts,
                                             .shape = shape,
                                             .out = data.as<std::uint8_t>(),
                                             .range = range.as<Int4ScaleRange>()},
                                            nullptr));
    cuda_check(cudaDeviceSynchronize());
    return {};
  }
  Granules view() { return {data.as<std::uint8_t>(), experts, shape}; }
  void decode(int row, std::span<float> values) const {
    for (std::size_t col = 0; col < values.size(); ++col) {
      const std::size_t at = static_cast<std::size_t>(row * shape.cols) + col;
      const std::uint8_t two = codes[at / 2];
      values[col] = int4_values(scales[at / int4_group])[at % 2 == 0 ? two & 15 : two >> 4].to_float();
    }
  }
};

// Of an expert's row and what it is multiplied with.
template <class Experts>
double product(const Experts& weights, int expert, int row, const float* with) {
  std::vector<float> values(static_cast<std::size_t>(weights.shape.cols));
  weights.decode(expert * weights.shape.rows + row, values);
  double sum = 0;
  for (std::size_t k = 0; k < values.size(); ++k) sum += double{values[k]} * double{with[k]};
  return sum;
}

// A layer's memory on the device, for so many tokens, and what it gives.
template <class Experts>
struct Layer {
  int tokens;
  Experts up, down;
  std::vector<Bf16> up_biases, down_biases, inputs;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  DeviceBuffer up_bias, down_bias, x, device_ids, device_weights;
  DeviceBuffer activations, products, arrived, room, counters;

  Status make(Numbers& numbers) {
    NIBBLE_RETURN_IF_ERROR(up.make(numbers, 2 * width, hidden));
    NIBBLE_RETURN_IF_ERROR(down.make(numbers, hidden, width));
    up_biases = numbers.list(experts * 2 * width, 0.1f);
    down_biases = numbers.list(experts * hidden, 0.1f);
    for (int token = 0; token < tokens; ++token) {
      const int first = static_cast<int>(numbers.next() >> 30);
      ids.insert(ids.end(), {first, (first + 1 + static_cast<int>(numbers.next() >> 8) % 3) % experts});
      weights.insert(weights.end(), {0.7f, 0.3f});
    }
    inputs = numbers.list(static_cast<std::size_t>(tokens * hidden));
    NIBBLE_ASSIGN(up_bias, on_device(up_biases));
    NIBBLE_ASSIGN(down_bias, on_device(down_biases));
    NIBBLE_ASSIGN(x, on_device(inputs));
    NIBBLE_ASSIGN(device_ids, on_device(ids));
    NIBBLE_ASSIGN(device_weights, on_device(weights));
    const int slots = tokens * top_k;
    NIBBLE_ASSIGN(activations, zeroed(static_cast<std::size_t>(slots * down.shape.padded_cols()) * 2));
    NIBBLE_ASSIGN(products, zeroed(static_cast<std::size_t>(slots * hidden) * sizeof(float)));
    NIBBLE_ASSIGN(arrived, zeroed(sizeof(std::uint32_t)));
    NIBBLE_ASSIGN(room, zeroed(moe_many_bytes(slots, experts, up.shape, down.shape)));
    NIBBLE_ASSIGN(counters, zeroed(static_cast<std::size_t>(moe_many_counters(slots, experts)) *
                                   sizeof(std::uint32_t)));
    return {};
  }
  MoeCudaWeightsOf<typename Experts::Granules> view() {
    return {.gate_up = up.view(),
            .down = down.view(),
            .gate_up_bias = up_bias.as<Bf16>(),
            .down_bias = down_bias.as<Bf16>(),
            .unit = gpt_oss_unit(7.0f)};
  }
  // Of `count` tokens from `first` on.
  MoeCudaArgs args(int first, int count, DeviceBuffer& out) {
    return {.x = x.as<Bf16>() + first * hidden,
            .x_stride = hidden,
            .tokens = count,
            .top_k = top_k,
            .expert_ids = device_ids.as<std::int32_t>() + first * top_k,
            .expert_weights = device_weights.as<float>() + first * top_k,
            .out = out.as<float>() + first * hidden,
            .workspace = {activations.as<Bf16>(), products.as<float>(), arrived.as<std::uint32_t>(),
                          room.as<std::uint8_t>(), counters.as<std::uint32_t>()}};
  }
  // Of the first `count` tokens, in double precision.
  std::vector<double> expected(std::size_t count) const {
    std::vector<float> values;
    for (std::size_t i = 0; i < count * hidden; ++i) values.push_back(inputs[i].to_float());
    ThreadPool threads(1);
    const auto of = [](const Experts& matrices) {
      return [&matrices](int expert, int row, const float* with) {
        return product(matrices, expert, row, with);
      };
    };
    const std::size_t slots = count * top_k;
    return moe_reference(threads,
                         {.top_k = top_k,
                          .hidden = hidden,
                          .intermediate = width,
                          .gate_up_bias = up_biases.data(),
                          .down_bias = down_biases.data(),
                          .bf16_h = true},
                         values, {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(slots)},
                         {weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(slots)}, of(up),
                         of(down));
  }
};

template <class Experts>
Result<std::string> check_experts() {
  constexpr int tokens = 96;
  Numbers numbers;
  Layer<Experts> layer{.tokens = tokens};
  NIBBLE_RETURN_IF_ERROR(layer.make(numbers));
  NIBBLE_ASSIGN(DeviceBuffer few, zeroed(tokens * hidden * sizeof(float)));
  NIBBLE_ASSIGN(DeviceBuffer many, zeroed(tokens * hidden * sizeof(float)));
  NIBBLE_RETURN_IF_ERROR(moe_many_cuda(layer.view(), layer.args(0, tokens, many), nullptr));
  // One row has another kernel than few have.
  for (int token = 0, count = 0; token < tokens; token += count) {
    count = token < tokens / 2 ? 1 : 2;
    NIBBLE_RETURN_IF_ERROR(moe_few_cuda(layer.view(), layer.args(token, count, few), nullptr));
  }
  if (bytes_of(few) != bytes_of(many)) return std::string("other bits alone or of few than of many");
  std::vector<float> found(tokens * hidden);
  many.copy_to(std::span(found));
  // Sums that differ in their last bits sometimes round apart when they become the second product's inputs.
  return is_near(layer.expected(5), found, 1e-3) ? std::string() : std::string("far from double precision");
}

}  // namespace

Result<std::string> check_mxfp4_experts() { return check_experts<Mxfp4Experts>(); }
Result<std::string> check_nvfp4_experts() { return check_experts<Nvfp4Experts>(); }
Result<std::string> check_int4_experts() { return check_experts<Int4Experts>(); }

}  // namespace nibble
