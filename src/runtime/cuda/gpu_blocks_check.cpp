// Kernels of matrices in blocks (ops/linear/cuda/block_matrices.h): dense products in FP8 and NVFP4, and
// experts in FP8 and bfloat16, for few rows and for many; and products of rows that are rounded to FP8.
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/thread_pool.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/nvfp4.h"
#include "ops/linear/cuda/block_linear_cuda.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/moe/cuda/block_moe_cuda.h"
#include "ops/moe/moe_reference.h"
#include "runtime/cuda/gpu_check_util.h"
#include "tensor/cuda_check.h"
#include "tensor/device_buffer.h"

namespace nibble {
namespace {

// What FP8 has scales of: tiles of 128 x 128, or rows.
enum class ScalesOf { tiles, rows };

// Matrices [experts, rows, cols].
template <class Codes>
struct Matrices {
  int experts = 0;
  BlockShape<Codes> shape;
  ScalesOf scales_of = ScalesOf::tiles;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  DeviceBuffer data, factors, row_scales;

  BlockMatrices<Codes> view() {
    return {data.as<std::uint8_t>(), Codes::scaled ? factors.as<BlockFactors>() : nullptr, experts, shape,
            scales_of == ScalesOf::rows ? row_scales.as<float>() : nullptr};
  }
  int scales_of_one() const {
    return scales_of == ScalesOf::rows ? shape.rows : (shape.rows + 127) / 128 * shape.scale_blocks();
  }
  double value(int expert, int row, int col) const {
    const std::size_t at =
        static_cast<std::size_t>(expert * shape.rows + row) * static_cast<std::size_t>(shape.cols) +
        static_cast<std::size_t>(col);
    if constexpr (std::is_same_v<Codes, E4m3Codes>) {
      const int place = scales_of == ScalesOf::rows ? row : row / 128 * shape.scale_blocks() + col / 128;
      return double{E4m3{codes[at]}.to_float()} *
             double{scales[static_cast<std::size_t>(expert * scales_of_one() + place)]};
    } else {
      Bf16 value;
      std::memcpy(&value, &codes[at * sizeof value], sizeof value);
      return double{value.to_float()};
    }
  }
  double product(int expert, int row, const float* x) const {
    double sum = 0;
    for (int col = 0; col < shape.cols; ++col) sum += value(expert, row, col) * double{x[col]};
    return sum;
  }
};

template <class Codes>
Result<Matrices<Codes>> matrices(Numbers& numbers, int experts, BlockShape<Codes> shape, ColumnOrder order,
                                 ScalesOf scales_of) {
  Matrices<Codes> made;
  made.experts = experts, made.shape = shape, made.scales_of = scales_of;
  const std::size_t values = static_cast<std::size_t>(experts * shape.rows * shape.cols),
                    all = static_cast<std::size_t>(experts);
  made.codes.resize(values * Codes::bytes);
  if constexpr (Codes::scaled) {
    for (std::uint8_t& code : made.codes) {
      code = static_cast<std::uint8_t>(numbers.next() >> 24);
      if ((code & 0x7f) == 0x7f) code = 0;  // no number
    }
    for (int i = 0; i < experts * made.scales_of_one(); ++i)
      made.scales.push_back(0.0003f + 0.0001f * static_cast<float>(numbers.next() >> 28));
    NIBBLE_ASSIGN(DeviceBuffer scales, on_device(made.scales));
    NIBBLE_ASSIGN(made.factors, zeroed(all * shape.factors() * sizeof(BlockFactors)));
    NIBBLE_ASSIGN(made.row_scales, zeroed(all * static_cast<std::size_t>(shape.rows) * sizeof(float)));
    place_block_scales_cuda(
        {.scales = scales.data(),
         .experts = experts,
         .shape = shape,
         .factors = made.factors.template as<BlockFactors>(),
         .row_scales = scales_of == ScalesOf::rows ? made.row_scales.template as<float>() : nullptr},
        nullptr);
    cuda_check(cudaDeviceSynchronize());
  } else {
    const std::vector<Bf16> list = numbers.list(values, 0.1f);
    std::memcpy(made.codes.data(), list.data(), made.codes.size());
  }
  NIBBLE_ASSIGN(DeviceBuffer codes, on_device(made.codes));
  NIBBLE_ASSIGN(made.data, zeroed(all * shape.bytes()));
  NIBBLE_RETURN_IF_ERROR(repack_blocks_cuda(
      BlockRepack<Codes>{.codes = codes.as<std::uint8_t>(),
                         .experts = experts,
                         .shape = shape,
                         .order = order,
                         .out = made.data.template as<std::uint8_t>(),
                         .factors = Codes::scaled ? made.factors.template as<BlockFactors>() : nullptr},
      nullptr));
  cuda_check(cudaDeviceSynchronize());
  return made;
}

// One product by the kernel for many rows, beside double precision; and by those for few, whose rows it has
// first. value(row, col): of the matrix.
template <class Codes, class Value>
Result<std::string> check_products(Numbers& numbers, const BlockMatrices<Codes>& weight, const Value& value) {
  constexpr int tokens = 37;
  const int rows = weight.shape.rows, cols = weight.shape.cols;
  const std::vector<Bf16> x = numbers.list(static_cast<std::size_t>(tokens * cols));
  NIBBLE_ASSIGN(DeviceBuffer plain, on_device(x));
  NIBBLE_ASSIGN(DeviceBuffer tiles, zeroed(DenseShape{0, cols}.token_bytes(tokens)));
  NIBBLE_RETURN_IF_ERROR(
      pack_tokens_cuda(plain.as<Bf16>(), tokens, cols, cols, tiles.as<std::uint8_t>(), nullptr));
  const auto multiplied = [&](int count, BlockLinearPath path) -> Result<std::vector<float>> {
    std::vector<float> found(static_cast<std::size_t>(count * rows));
    NIBBLE_ASSIGN(DeviceBuffer y, zeroed(found.size() * sizeof(float)));
    NIBBLE_RETURN_IF_ERROR(
        block_linear_cuda(BlockLinearCudaArgs<Codes>{.x = {tiles.as<std::uint8_t>(), count},
                                                     .weight = weight,
                                                     .y = y.as<float>(),
                                                     .y_stride = rows,
                                                     .path = path},
                          nullptr));
    y.copy_to(std::span(found));
    return found;
  };
  NIBBLE_ASSIGN(const std::vector<float> many, multiplied(tokens, BlockLinearPath::many));
  std::vector<double> expected;
  std::vector<float> compared;
  for (int token = 0; token < tokens; token += 9) {
    for (int row = 0; row < rows; ++row) {
      double sum = 0;
      for (int col = 0; col < cols; ++col)
        sum += value(row, col) * double{x[static_cast<std::size_t>(token * cols + col)].to_float()};
      expected.push_back(sum);
      compared.push_back(many[static_cast<std::size_t>(token * rows + row)]);
    }
  }
  if (!is_near(expected, compared, 1e-5)) return std::string("far from double precision");
  for (const int count : {1, 8, 19, 32}) {  // up to eight by the kernel for short matrices
    NIBBLE_ASSIGN(const std::vector<float> few, multiplied(count, BlockLinearPath::few));
    if (std::memcmp(few.data(), many.data(), few.size() * sizeof(float)) != 0)
      return std::string("other bits for few rows than for many");
  }
  if (std::is_same_v<Codes, E4m3Codes>) {
    NIBBLE_ASSIGN(const std::vector<float> some, multiplied(tokens, BlockLinearPath::some));
    if (some != many) return std::string("other bits for some rows than for many");
  }
  return std::string();
}

// A layer whose gates and ups are even and odd rows.
template <class Codes>
Result<std::string> check_layer(ScalesOf scales_of) {
  constexpr int experts = 4, top_k = 2, hidden = 160, width = 144, tokens = 44, slots = tokens * top_k;
  Numbers numbers;
  NIBBLE_ASSIGN(Matrices<Codes> gate_up, matrices(numbers, experts, BlockShape<Codes>{2 * width, hidden},
                                                  ColumnOrder::quarters, scales_of));
  NIBBLE_ASSIGN(Matrices<Codes> down, matrices(numbers, experts, BlockShape<Codes>{hidden, width},
                                               ColumnOrder::quarters, scales_of));
  constexpr int stride = BlockShape<Codes>{2 * width, hidden}.padded_cols();
  std::vector<Bf16> x(tokens * stride);
  std::vector<float> values;
  std::vector<std::int32_t> ids;
  for (int token = 0; token < tokens; ++token) {
    for (int col = 0; col < hidden; ++col) {
      const Bf16 value = x[static_cast<std::size_t>(token * stride + col)] = numbers.bf16();
      values.push_back(value.to_float());
    }
    const int first = static_cast<int>(numbers.next() >> 30);
    ids.insert(ids.end(), {first, (first + 1 + static_cast<int>(numbers.next() >> 8) % 3) % experts});
  }
  NIBBLE_ASSIGN(DeviceBuffer device_x, on_device(x));
  NIBBLE_ASSIGN(DeviceBuffer device_ids, on_device(ids));
  NIBBLE_ASSIGN(DeviceBuffer activations,
                zeroed(slots * static_cast<std::size_t>(down.shape.padded_cols()) * 2));
  NIBBLE_ASSIGN(DeviceBuffer groups, zeroed(block_moe_group_bytes(slots, experts)));
  const auto products_of = [&](int count, BlockMoePath path) -> Result<std::vector<float>> {
    std::vector<float> found(static_cast<std::size_t>(count * top_k * hidden));
    NIBBLE_ASSIGN(DeviceBuffer products, zeroed(found.size() * sizeof(float)));
    NIBBLE_RETURN_IF_ERROR(block_moe_cuda(
        BlockMoeWeightsOf<Codes>{gate_up.view(), down.view(), silu_unit},
        {.x = device_x.as<Bf16>(),
         .x_stride = stride,
         .tokens = count,
         .top_k = top_k,
         .expert_ids = device_ids.as<std::int32_t>(),
         .workspace = {activations.as<Bf16>(), products.as<float>(), groups.as<std::uint8_t>()},
         .path = path},
        nullptr));
    products.copy_to(std::span(found));
    return found;
  };
  NIBBLE_ASSIGN(const std::vector<float> many, products_of(tokens, BlockMoePath::many));
  for (const int count : {1, 13, tokens}) {
    NIBBLE_ASSIGN(const std::vector<float> few, products_of(count, BlockMoePath::few));
    if (std::memcmp(few.data(), many.data(), few.size() * sizeof(float)) != 0)
      return std::string("other bits for few rows than for many");
  }

  constexpr std::size_t compared = 5;  // tokens
  values.resize(compared * hidden);
  ids.resize(compared * top_k);
  ThreadPool threads(1);
  const std::vector<double> expected = moe_reference(
      threads, {.top_k = top_k, .hidden = hidden, .intermediate = width, .unit = silu_unit, .bf16_h = true},
      values, ids, std::vector<float>(ids.size(), 1.0f),
      [&](int expert, int row, const float* with) { return gate_up.product(expert, row, with); },
      [&](int expert, int row, const float* with) { return down.product(expert, row, with); });
  std::vector<float> found;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t first = i / hidden * top_k * hidden + i % hidden;
    found.push_back(many[first] + many[first + hidden]);
  }
  // Sums that differ in their last bits sometimes round apart when they become the second product's inputs.
  return is_near(expected, found, 2e-3) ? std::string() : std::string("far from double precision");
}

}  // namespace

Result<std::string> check_fp8_linear() {
  Numbers numbers;
  for (const ScalesOf scales_of : {ScalesOf::tiles, ScalesOf::rows}) {
    NIBBLE_ASSIGN(Matrices<E4m3Codes> matrix,
                  matrices(numbers, 1, BlockShape<E4m3Codes>{144, 336}, ColumnOrder::steps, scales_of));
    NIBBLE_ASSIGN(const std::string found, check_products(numbers, matrix.view(), [&](int row, int col) {
                    return matrix.value(0, row, col);
                  }));
    if (!found.empty()) return found;
  }
  return std::string();
}

Result<std::string> check_rounded_linear() {
  constexpr int tokens = 37, rows = 144, cols = 336;
  Numbers numbers;
  NIBBLE_ASSIGN(Matrices<E4m3Codes> matrix,
                matrices(numbers, 1, BlockShape<E4m3Codes>{rows, cols}, ColumnOrder::steps, ScalesOf::tiles));
  const std::vector<Bf16> x = numbers.list(tokens * cols);
  NIBBLE_ASSIGN(DeviceBuffer plain, on_device(x));
  NIBBLE_ASSIGN(DeviceBuffer tiles, zeroed(DenseShape{0, cols}.token_bytes(tokens)));
  NIBBLE_ASSIGN(DeviceBuffer codes, zeroed(static_cast<std::size_t>(tokens * rounded_row_bytes(cols))));
  NIBBLE_ASSIGN(DeviceBuffer scales, zeroed(tokens * sizeof(float)));
  NIBBLE_RETURN_IF_ERROR(
      pack_tokens_cuda(plain.as<Bf16>(), tokens, cols, cols, tiles.as<std::uint8_t>(), nullptr));
  const auto multiplied = [&](int count) -> Result<std::vector<float>> {
    std::vector<float> found(static_cast<std::size_t>(count * rows));
    NIBBLE_ASSIGN(DeviceBuffer y, zeroed(found.size() * sizeof(float)));
    NIBBLE_RETURN_IF_ERROR(block_linear_cuda(
        BlockLinearCudaArgs<E4m3Codes>{.x = {tiles.as<std::uint8_t>(), count},
                                       .weight = matrix.view(),
                                       .y = y.as<float>(),
                                       .y_stride = rows,
                                       .rounding = {codes.as<std::uint8_t>(), scales.as<float>()}},
        nullptr));
    y.copy_to(std::span(found));
    return found;
  };
  NIBBLE_ASSIGN(const std::vector<float> all, multiplied(tokens));
  NIBBLE_ASSIGN(const std::vector<float> some, multiplied(5));
  if (std::memcmp(some.data(), all.data(), some.size() * sizeof(float)) != 0)
    return std::string("other bits among few rows than among many");
  std::vector<double> expected;
  std::vector<float> compared;
  for (int token = 0; token < tokens; token += 9) {
    std::vector<float> row_of_x, rounded(cols);
    for (int col = 0; col < cols; ++col)
      row_of_x.push_back(x[static_cast<std::size_t>(token * cols + col)].to_float());
    round_to_e4m3(row_of_x, e4m3_row_factor(row_of_x), rounded.data());
    for (int row = 0; row < rows; ++row) {
      expected.push_back(matrix.product(0, row, rounded.data()));
      compared.push_back(all[static_cast<std::size_t>(token * rows + row)]);
    }
  }
  // FP8 tensor cores keep fewer bits of their sums than float32 has.
  return is_near(expected, compared, 1e-3) ? std::string() : std::string("far from double precision");
}

Result<std::string> check_nvfp4_linear() {
  constexpr int rows = 48, cols = 208;
  constexpr BlockShape<Nvfp4Codes> shape{rows, cols};
  constexpr float scale = 0.003f;
  Numbers numbers;
  std::vector<std::uint8_t> codes(rows * cols / 2), scales(rows * cols / nvfp4_block);
  for (std::uint8_t& byte : codes) byte = static_cast<std::uint8_t>(numbers.next() >> 24);
  for (std::uint8_t& byte : scales) byte = static_cast<std::uint8_t>(72 + (numbers.next() >> 28));
  std::vector<float> unscaled(rows * cols);
  nvfp4_decode(codes.data(), scales.data(), 1.0f, unscaled);
  NIBBLE_ASSIGN(DeviceBuffer device_codes, on_device(codes));
  NIBBLE_ASSIGN(DeviceBuffer device_scales, on_device(scales));
  NIBBLE_ASSIGN(DeviceBuffer granules, zeroed(shape.bytes()));
  NIBBLE_RETURN_IF_ERROR(repack_nvfp4_cuda({.codes = device_codes.as<std::uint8_t>(),
                                            .scales = device_scales.as<std::uint8_t>(),
                                            .experts = 1,
                                            .shape = {rows, cols},
                                            .out = granules.as<std::uint8_t>()},
                                           nullptr));
  NIBBLE_ASSIGN(DeviceBuffer factors,
                on_device(std::vector<BlockFactors>(shape.factors(), {128 * scale, 128 * scale})));
  return check_products(
      numbers, BlockMatrices<Nvfp4Codes>{granules.as<std::uint8_t>(), factors.as<BlockFactors>(), 1, shape},
      [&](int row, int col) {
        return double{unscaled[static_cast<std::size_t>(row * cols + col)]} * double{scale};
      });
}

Result<std::string> check_fp8_experts() {
  NIBBLE_ASSIGN(const std::string of_tiles, check_layer<E4m3Codes>(ScalesOf::tiles));
  if (!of_tiles.empty()) return of_tiles;
  return check_layer<E4m3Codes>(ScalesOf::rows);
}
Result<std::string> check_bf16_experts() { return check_layer<Bf16Codes>(ScalesOf::tiles); }

}  // namespace nibble
