#include "models/cuda/decoder_stream.h"

#include <algorithm>

namespace nibble {

DecoderStream DecoderStream::lay_out(const ModelConfig& config, const CudaForwardLimits& limits,
                                     CudaPlace& place, int processors, DeviceArena& arena) {
  DecoderStream stream{.hidden = static_cast<int>(config.hidden_size),
                       .eps = static_cast<float>(config.rms_norm_eps)};
  const std::size_t rows = static_cast<std::size_t>(limits.rows),
                    hidden = static_cast<std::size_t>(stream.hidden);
  stream.residual = arena.take<float>(rows * hidden);
  stream.delta = place.take_shared<float>(rows * hidden, arena);
  stream.normed = arena.take<Bf16>(rows * static_cast<std::size_t>(stream.padded()));
  stream.normed_tiles = arena.take<std::uint8_t>(DenseShape{0, stream.hidden}.token_bytes(limits.rows));
  stream.linear.few_sums =
      arena.take<float>(linear_few_floats(processors, std::max(limits.rows, limits.logit_rows)));
  stream.linear.many_sums = arena.take<float>(linear_many_floats(processors));
  stream.linear.arrived = arena.take<std::uint32_t>(static_cast<std::size_t>(processors));
  stream.linear.stuck = limits.stuck;
  return stream;
}

AddRmsNormCudaArgs DecoderStream::norm(const Bf16* weight, const PendingSum& pending, Bf16* plain,
                                       int rows) const {
  return {.residual = pending.residual,
          .residual_out = residual,
          .delta = pending.delta,
          .experts = pending.experts,
          .weight = weight,
          .out = plain,
          .out_stride = plain == nullptr ? 0 : padded(),
          .out_tiles = normed_tiles,
          .rows = rows,
          .hidden = hidden,
          .eps = eps};
}

Status multiply_blocks(const DenseBlocks& weight, const TokenTiles& x, float* y, int y_stride,
                       cudaStream_t stream) {
  return std::visit(
      [&]<class Codes>(const BlockMatrices<Codes>& matrix) {
        return block_linear_cuda(
            BlockLinearCudaArgs<Codes>{.x = x, .weight = matrix, .y = y, .y_stride = y_stride}, stream);
      },
      weight);
}

DenseTiles lay_out_tiles(DeviceArena& arena, std::int64_t rows, std::int64_t cols) {
  const DenseShape shape{static_cast<int>(rows), static_cast<int>(cols)};
  return {arena.take<std::uint8_t>(shape.bytes()), shape};
}

}  // namespace nibble
