// MXFP4: blocks of 32 consecutive values along K, each an E2M1 code, sharing one E8M0 scale. A value is
// its code times the scale; 17 bytes a block.
//
// Decoding has one meaning everywhere. Encoding has two conventions for the scale, and checkpoints made by
// either are about, so the convention is always named.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e8m0.h"
#include "tensor/tensor.h"

namespace nibble {

inline constexpr int mxfp4_block = 32;        // values
inline constexpr int mxfp4_block_bytes = 16;  // of codes

// How the scale follows from amax, the largest magnitude of a block. They differ where amax lies in
// (6, 8) * 2^e.
enum class Mxfp4Scale : std::uint8_t {
  // OCP: 2^(floor(log2 amax) - 2); amax in [4, 8) -> 1.0. What then lies past 6 saturates.
  ocp_floor,
  // FlashInfer: the smallest power of two that is at least amax / 6; amax 6 -> 1.0, 6.0001 -> 2.0.
  // Nothing saturates.
  round_up,
};

// Decodes one block: code times scale in float32. Exact, except that 2^127 times a code past 1.5 is
// infinite; scale byte 255 makes every value NaN, byte 0 (2^-127) gives float32 subnormals.
void mxfp4_decode_block(const std::uint8_t* codes,  // [16]
                        E8m0 scale,
                        float* values);  // [32]

// Encodes one block and returns its scale; each value is rounded as E2m1::from_float does after an exact
// division by the scale. A block of zeros has scale byte 0 and keeps the zeros' signs. A block with a NaN
// or an infinity gets scale byte 255, so that all of it reads back as NaN.
E8m0 mxfp4_encode_block(const float* values,  // [32]
                        Mxfp4Scale convention,
                        std::uint8_t* codes);  // [16]

// The same for consecutive blocks, whole rows or any part of a matrix, in lanes.
void mxfp4_encode(std::span<const Bf16> values,  // [blocks * 32]
                  Mxfp4Scale convention,
                  std::uint8_t* codes,    // [blocks * 16]
                  std::uint8_t* scales);  // [blocks]
void mxfp4_encode(std::span<const float> values, Mxfp4Scale convention, std::uint8_t* codes,
                  std::uint8_t* scales);
void mxfp4_decode(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> values);

// The layout of a Hugging Face checkpoint: row-major, blocks [rows, cols / 32, 16], scales [rows, cols / 32].
struct Mxfp4CheckpointLayout {
  static constexpr std::string_view tag = "mxfp4_checkpoint";
};

// A matrix of MXFP4 weights that somebody else owns, in the layout its type names: code that was written
// for one layout cannot be handed another.
template <class Layout>
struct Mxfp4View {
  const std::uint8_t* blocks = nullptr;  // codes, rows * cols / 2 bytes
  const std::uint8_t* scales = nullptr;  // E8M0, rows * cols / 32 bytes
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // a multiple of 32
};
using Mxfp4Checkpoint = Mxfp4View<Mxfp4CheckpointLayout>;

// A matrix from its two tensors: blocks u8 [rows, cols / 32, 16], scales u8 [rows, cols / 32].
Result<Mxfp4Checkpoint> mxfp4_checkpoint_matrix(const ConstTensor& blocks, const ConstTensor& scales);

// Decodes one row of the matrix.
void mxfp4_decode_row(const Mxfp4Checkpoint& matrix, std::int64_t row,
                      std::span<float> values);  // [cols]

}  // namespace nibble
