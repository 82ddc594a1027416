// A matrix that every row of activations is multiplied by, on one GPU, in the format that its checkpoint has.
#pragma once

#include <optional>

#include "checkpoint/architecture.h"
#include "models/cuda/decoder_stream.h"
#include "models/cuda/weight_placing.h"

namespace nibble {

struct DeviceMatrix {
  DenseTiles tiles;                   // in bf16
  std::optional<DenseBlocks> blocks;  // instead, in FP8 or NVFP4

  static DeviceMatrix lay_out(DeviceArena& arena, TensorFormat format, std::int64_t rows, std::int64_t cols);
  int rows() const;
};

// Formats it may have.
constexpr bool device_matrix_takes(TensorFormat format) {
  return format == TensorFormat::bf16 || format == TensorFormat::fp8_block ||
         format == TensorFormat::fp8_row || format == TensorFormat::nvfp4 ||
         format == TensorFormat::nvfp4_packed;
}
inline constexpr const char* device_matrix_formats = "bf16, fp8_block, fp8_row or nvfp4";
// Matrices that lie one below the other in one begin at such rows.
constexpr std::int64_t stacked_row(TensorFormat format, std::int64_t rows) {
  const std::int64_t whole = format == TensorFormat::bf16 ? dense_tile_rows : block_granule_rows;
  return (rows + whole - 1) / whole * whole;
}

// y: [x.tokens, matrix.rows()]
Status multiply(const DecoderStream& decoder, const DeviceMatrix& matrix, const TokenTiles& x, float* y,
                cudaStream_t stream);

// Two products of the same rows. Where the wide matrix is in blocks and rows are few, the narrow one's runs
// beside it.
struct ProductOfRows {
  const DeviceMatrix& matrix;
  float* y;  // as multiply's
};
Status multiply_both(const DecoderStream& decoder, const ProductOfRows& wide, const ProductOfRows& narrow,
                     const TokenTiles& x, cudaStream_t stream);

// Brings a weight, all of it or some rows, to row `to_row` of the matrix, whose format it has.
Status place(WeightPlacing& placing, const Weight& weight, const DeviceMatrix& to, std::int64_t to_row = 0);
Status place_rows(WeightPlacing& placing, const Weight& weight, const Run& rows, const DeviceMatrix& to,
                  std::int64_t to_row = 0);

// The tensor that holds a vector, or a matrix in bf16.
ExpectedTensor placed_tensor(const Weight& weight);

// Rows [first, ..) of activations, `first` a multiple of 8, of a matrix of so many columns.
inline TokenTiles tiles_from(const std::uint8_t* tiles, int first, int rows, int cols) {
  return {tiles + DenseShape{0, cols}.token_bytes(first), rows};
}

}  // namespace nibble
