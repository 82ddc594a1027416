// Rows of values, tokens or weights, to FP4 and back: NVFP4 or MXFP4, scales in the layout that is asked for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"
#include "formats/scale_layout.h"
#include "tensor/tensor.h"

namespace nibble {

enum class Fp4Format : std::uint8_t { nvfp4, mxfp4 };
enum class ScaleLayout : std::uint8_t { linear, s128x4, s8x4 };

struct Fp4Options {
  Fp4Format format = Fp4Format::nvfp4;
  // NVFP4 only: f32 [1], or [rows] for one a row. A scale for each expert is refused: which rows are whose is
  // not known here.
  ConstTensor global_scale;
  Mxfp4Scale mxfp4_scale = Mxfp4Scale::round_up;  // MXFP4 only
  ScaleLayout scale_layout = ScaleLayout::linear;
};

struct Fp4Matrix {
  std::vector<std::uint8_t> codes;   // [rows, cols / 2]
  std::vector<std::uint8_t> scales;  // E4M3 or E8M0, in scale_layout
  ScaleLayout scale_layout = ScaleLayout::linear;
  Fp4Format format = Fp4Format::nvfp4;
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // a multiple of the format's block
};

// values: bf16 or f32 [rows, cols].
Result<Fp4Matrix> fp4_quantize(const ConstTensor& values, const Fp4Options& options);

// The global scale is the one the matrix was quantized with; none for MXFP4.
Result<std::vector<float>> fp4_dequantize(const Fp4Matrix& matrix, const ConstTensor& global_scale);

}  // namespace nibble
