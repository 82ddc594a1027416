#include "models/cuda/device_matrix.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"
#include "checkpoint/expected_tensors.h"
#include "ops/linear/cuda/block_linear_cuda.h"
#include "ops/linear/cuda/narrow_linear_cuda.h"

namespace nibble {

DeviceMatrix DeviceMatrix::lay_out(DeviceArena& arena, TensorFormat format, std::int64_t rows,
                                   std::int64_t cols) {
  switch (format) {
    case TensorFormat::fp8_block: return {.blocks = lay_out_blocks<E4m3Codes>(arena, 1, rows, cols)};
    case TensorFormat::fp8_row: return {.blocks = lay_out_fp8_rows(arena, 1, rows, cols)};
    case TensorFormat::nvfp4:
    case TensorFormat::nvfp4_packed: return {.blocks = lay_out_blocks<Nvfp4Codes>(arena, 1, rows, cols)};
    default: return {.tiles = lay_out_tiles(arena, rows, cols)};
  }
}

int DeviceMatrix::rows() const {
  if (!blocks) return tiles.shape.rows;
  return std::visit([](const auto& matrix) { return matrix.shape.rows; }, *blocks);
}

Status multiply(const DecoderStream& decoder, const DeviceMatrix& matrix, const TokenTiles& x, float* y,
                cudaStream_t stream) {
  if (matrix.blocks) return multiply_blocks(decoder, *matrix.blocks, x, y, matrix.rows(), stream);
  return linear_cuda(
      {.x = x, .weight = matrix.tiles, .y = y, .y_stride = matrix.rows(), .workspace = decoder.linear},
      stream);
}

Status multiply_both(const DecoderStream& decoder, const ProductOfRows& wide, const ProductOfRows& narrow,
                     const TokenTiles& x, cudaStream_t stream) {
  const DeviceMatrix &first = wide.matrix, &second = narrow.matrix;
  const bool beside =
      decoder.rounding.codes == nullptr && first.blocks && !second.blocks &&
      narrow_linear_takes(second.tiles.shape, x.tokens) &&
      std::visit([&](const auto& of) { return block_linear_takes_few(of.shape, x.tokens); }, *first.blocks);
  if (!beside) {
    NIBBLE_RETURN_IF_ERROR(multiply(decoder, first, x, wide.y, stream));
    return multiply(decoder, second, x, narrow.y, stream);
  }
  NIBBLE_RETURN_IF_ERROR(std::visit(
      [&]<class Codes>(const BlockMatrices<Codes>& of) {
        return block_linear_cuda(
            BlockLinearCudaArgs<Codes>{
                .x = x, .weight = of, .y = wide.y, .y_stride = of.shape.rows, .lets_beside = true},
            stream);
      },
      *first.blocks));
  return narrow_linear_cuda(
      {.x = x, .weight = second.tiles, .y = narrow.y, .y_stride = second.rows(), .rows_are_there = true},
      stream);
}

Status place(WeightPlacing& placing, const Weight& weight, const DeviceMatrix& to, std::int64_t to_row) {
  return place_rows(placing, weight, {0, weight.shape[0]}, to, to_row);
}

Status place_rows(WeightPlacing& placing, const Weight& weight, const Run& rows, const DeviceMatrix& to,
                  std::int64_t to_row) {
  if (!to.blocks) return placing.dense({placed_tensor(weight), rows}, to.tiles, static_cast<int>(to_row));
  // A wide matrix comes in parts that the placing has room for, each of whole tiles of scales.
  constexpr std::int64_t most_values = std::int64_t{32} << 20, whole = 128;
  const std::int64_t once = std::max(most_values / weight.shape[1] / whole * whole, whole);
  for (std::int64_t row = 0; row < rows.count; row += once) {
    NIBBLE_RETURN_IF_ERROR(placing.dense(weight, {rows.begin + row, std::min(once, rows.count - row)},
                                         *to.blocks, static_cast<int>(to_row + row)));
  }
  return {};
}

ExpectedTensor placed_tensor(const Weight& weight) {
  NIBBLE_CHECK(!weight.is_matrix() || weight.format == TensorFormat::bf16, weight.name);
  ExpectedTensor found;
  visit_stored(weight, weight.name, [&](ExpectedTensor tensor) { found = std::move(tensor); });
  return found;
}

}  // namespace nibble
