// What tests of products with matrices in blocks share: random matrices on the host and on the device.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "formats/e4m3.h"
#include "ops/cuda/device_test_util.h"
#include "ops/linear/cuda/block_linear_cuda.h"
#include "ops/linear/cuda/linear_device_test_util.h"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/op_test_util.h"

namespace nibble {

// Matrices [experts, parts, rows / parts, cols] with scales of tiles of 128 x 128 of each part, if their
// codes have any, or of rows. Of two parts, gates and up projections, the rows take turns on the device.
template <class Codes>
struct RandomBlocks {
  int experts, parts;
  BlockShape<Codes> shape;
  bool narrow = false;  // scales in bfloat16
  bool by_row = false;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  DeviceBuffer device_codes, device_factors, device_row_scales;

  RandomBlocks(std::mt19937& random, int experts_, int parts_, int rows, int cols)
      : experts(experts_), parts(parts_), shape{rows, cols} {
    const std::size_t values = static_cast<std::size_t>(experts) * static_cast<std::size_t>(rows * cols);
    if constexpr (std::is_same_v<Codes, E4m3Codes>) {
      for (std::size_t i = 0; i < values; ++i) {
        const auto code = static_cast<std::uint8_t>(random());
        codes.push_back((code & 0x7f) == 0x7f ? std::uint8_t{0x7e} : code);
      }
      for (int i = 0; i < experts * parts * tiles_of_part(); ++i)
        scales.push_back(Bf16::from_float(0.0003f + 0.0001f * static_cast<float>(random() % 50)).to_float());
    } else {
      for (const Bf16 value : random_bf16(random, values, 0.1f)) {
        codes.push_back(static_cast<std::uint8_t>(value.bits));
        codes.push_back(static_cast<std::uint8_t>(value.bits >> 8));
      }
    }
  }

  int tiles_of_part() const { return (shape.rows / parts + 127) / 128 * shape.scale_blocks(); }

  void scale_rows(std::mt19937& random) {
    by_row = true;
    scales.clear();
    for (int i = 0; i < experts * shape.rows; ++i)
      scales.push_back(Bf16::from_float(0.0003f + 0.0001f * static_cast<float>(random() % 50)).to_float());
  }

  // Of an expert's row as the device counts them.
  float value(int expert, int row, int col) const {
    const int part = row % parts, of_part = row / parts, part_rows = shape.rows / parts;
    const std::size_t at = static_cast<std::size_t>((expert * parts + part) * part_rows + of_part) *
                               static_cast<std::size_t>(shape.cols) +
                           static_cast<std::size_t>(col);
    if constexpr (std::is_same_v<Codes, E4m3Codes>) {
      const int tile = of_part / 128 * shape.scale_blocks() + col / 128;
      const int scale = by_row ? (expert * parts + part) * part_rows + of_part
                               : (expert * parts + part) * tiles_of_part() + tile;
      return E4m3{codes[at]}.to_float() * scales[static_cast<std::size_t>(scale)];
    } else {
      return Bf16{static_cast<std::uint16_t>(codes[2 * at] | codes[2 * at + 1] << 8)}.to_float();
    }
  }
  double product(int expert, int row, const float* x) const {
    double sum = 0;
    for (int col = 0; col < shape.cols; ++col) sum += double{value(expert, row, col)} * double{x[col]};
    return sum;
  }

  void upload(ColumnOrder order = ColumnOrder::quarters) {
    DeviceBuffer from = on_device(codes);
    device_codes = device_bytes(static_cast<std::size_t>(experts) * shape.bytes(), 0xcd);
    if constexpr (Codes::scaled) {
      std::vector<Bf16> narrow_scales;
      for (const float scale : scales) narrow_scales.push_back(Bf16::from_float(scale));
      const DeviceBuffer stored = narrow ? on_device(narrow_scales) : on_device(scales);
      device_factors =
          device_bytes(static_cast<std::size_t>(experts) * shape.factors() * sizeof(BlockFactors), 0xcd);
      device_row_scales = device_bytes(static_cast<std::size_t>(experts * shape.rows) * sizeof(float), 0xcd);
      place_block_scales_cuda({.scales = stored.data(),
                               .narrow = narrow,
                               .experts = experts,
                               .shape = shape,
                               .halves = parts == 2,
                               .factors = device_factors.as<BlockFactors>(),
                               .row_scales = by_row ? device_row_scales.as<float>() : nullptr},
                              nullptr);
    }
    const Status status = repack_blocks_cuda(
        BlockRepack<Codes>{.codes = from.as<std::uint8_t>(),
                           .experts = experts,
                           .shape = shape,
                           .halves = parts == 2,
                           .order = order,
                           .out = device_codes.as<std::uint8_t>(),
                           .factors = Codes::scaled ? device_factors.as<BlockFactors>() : nullptr},
        nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
  }
  BlockMatrices<Codes> view() {
    return {device_codes.as<std::uint8_t>(), Codes::scaled ? device_factors.as<BlockFactors>() : nullptr,
            experts, shape, by_row ? device_row_scales.as<float>() : nullptr};
  }
};

// One matrix in NVFP4. odd_share: what factors of odd rows are of those of even ones.
struct RandomNvfp4Blocks {
  RandomNvfp4 host;
  BlockShape<Nvfp4Codes> shape;
  DeviceBuffer granules, factors;

  RandomNvfp4Blocks(std::mt19937& random, int rows, int cols, float odd_share = 1)
      : host(random, 1, rows, cols), shape{rows, cols} {
    DeviceBuffer codes = on_device(host.codes), scales = on_device(host.scales);
    granules = device_bytes(shape.bytes(), 0xcd);
    const Status status = repack_nvfp4_cuda({.codes = codes.as<std::uint8_t>(),
                                             .scales = scales.as<std::uint8_t>(),
                                             .experts = 1,
                                             .shape = {rows, cols},
                                             .out = granules.as<std::uint8_t>()},
                                            nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
    const float scale = 128.0f * host.tensor_scales[0];
    factors = on_device(std::vector<BlockFactors>(shape.factors(), {scale, odd_share * scale}));
  }
  BlockMatrices<Nvfp4Codes> view() {
    return {granules.as<std::uint8_t>(), factors.as<BlockFactors>(), 1, shape};
  }
};

// y [tokens, rows]. rounds: the rows of x are rounded to FP8 first.
inline std::vector<float> product_on_gpu(RandomBlocks<E4m3Codes>& matrix, const std::vector<Bf16>& x,
                                         BlockLinearPath path = BlockLinearPath::fastest,
                                         bool rounds = false) {
  const int rows = matrix.shape.rows, cols = matrix.shape.cols, tokens = static_cast<int>(x.size()) / cols;
  DeviceBuffer tiles = tokens_of(x, cols);
  DeviceBuffer y = device_bytes(static_cast<std::size_t>(tokens * rows) * 4, 0xff);
  DeviceBuffer codes = device_bytes(static_cast<std::size_t>(tokens * rounded_row_bytes(cols)), 0xff),
               scales = device_bytes(static_cast<std::size_t>(tokens) * 4, 0xff);
  BlockLinearCudaArgs<E4m3Codes> args{.x = {tiles.as<std::uint8_t>(), tokens},
                                      .weight = matrix.view(),
                                      .y = y.as<float>(),
                                      .y_stride = rows,
                                      .path = path};
  if (rounds) args.rounding = {codes.as<std::uint8_t>(), scales.as<float>()};
  const Status status = block_linear_cuda(args, nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  std::vector<float> result(static_cast<std::size_t>(tokens * rows));
  y.copy_to(std::span(result));
  return result;
}

}  // namespace nibble
