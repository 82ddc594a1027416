// Rows of float32 weights to a format, and what that cost.
#pragma once

#include <cstdint>

#include "quantize/weight_format.h"

namespace nibble {

struct EncodeOptions {
  WeightFormat format = WeightFormat::mxfp4;
  Mxfp4Scale mxfp4_scale = Mxfp4Scale::round_up;
  // Tries scales beside the one that amax asks for, and takes the one whose squared error over its block is
  // the smallest; the usual one where they are equal.
  bool search_scales = false;
};

// Of one row or many.
struct EncodeError {
  double squared = 0;   // sum of (x - x')^2
  double original = 0;  // sum of x^2
  double largest = 0;   // |x - x'|
  std::int64_t values = 0;
  std::int64_t not_finite = 0;  // among the originals; the sums are without meaning then

  void add(const EncodeError& other);
  // sqrt(squared / original), and 0 for zeros.
  double relative() const;
};

struct EncodedRows {
  std::uint8_t* codes = nullptr;   // [code_bytes]
  std::uint8_t* scales = nullptr;  // [scale_bytes_of]
};

// values: [rows, cols], rows as rows_together says. errors: [rows].
void encode_rows(const EncodeOptions& options, float nvfp4_global_scale, const float* values,
                 std::int64_t rows, std::int64_t cols, const EncodedRows& out, EncodeError* errors);

}  // namespace nibble
