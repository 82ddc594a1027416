// What the ops' tests share: random inputs over a wide range, and oracles in double precision.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/int4.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"
#include "formats/q8.h"
#include "ops/aligned_bytes.h"

namespace nibble {

inline std::vector<float> random_floats(std::mt19937& random, std::size_t n, float spread = 1.0f) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<Bf16> random_bf16(std::mt19937& random, std::size_t n, float spread = 1.0f) {
  std::vector<Bf16> values;
  for (float value : random_floats(random, n, spread)) values.push_back(Bf16::from_float(value));
  return values;
}

// MXFP4 matrices of random codes, with scales near 2^-4.
struct RandomMxfp4 {
  std::vector<std::uint8_t> blocks, scales;
  std::vector<Mxfp4Checkpoint> experts;

  RandomMxfp4(std::mt19937& random, int count, int rows, int cols) {
    NIBBLE_CHECK(cols % mxfp4_block == 0, "kernels read whole blocks");
    const std::size_t groups = static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / mxfp4_block);
    blocks.resize(groups * mxfp4_block_bytes * static_cast<std::size_t>(count));
    scales.resize(groups * static_cast<std::size_t>(count));
    for (std::uint8_t& byte : blocks) byte = static_cast<std::uint8_t>(random());
    for (std::uint8_t& byte : scales) byte = static_cast<std::uint8_t>(121 + random() % 5);
    for (std::size_t e = 0; e < static_cast<std::size_t>(count); ++e) {
      experts.push_back(
          {blocks.data() + e * groups * mxfp4_block_bytes, scales.data() + e * groups, rows, cols});
    }
  }
};

// NVFP4 matrices of random codes, with scales of either sign near 2^3 and tensor scales near 2^-8.
struct RandomNvfp4 {
  int rows, cols;
  std::vector<std::uint8_t> codes, scales;
  std::vector<float> tensor_scales;  // [experts]

  RandomNvfp4(std::mt19937& random, int count, int rows_, int cols_) : rows(rows_), cols(cols_) {
    codes.resize(static_cast<std::size_t>(count) * code_bytes());
    scales.resize(codes.size() / nvfp4_block_bytes);
    for (std::uint8_t& byte : codes) byte = static_cast<std::uint8_t>(random());
    for (std::uint8_t& byte : scales)
      byte = static_cast<std::uint8_t>(random() % 2 * 128 + 72 + random() % 20);
    for (int e = 0; e < count; ++e)
      tensor_scales.push_back(0.003f + 0.00001f * static_cast<float>(random() % 100));
  }
  int experts() const { return static_cast<int>(tensor_scales.size()); }
  std::size_t code_bytes() const {  // of an expert
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / 2);
  }
  const std::uint8_t* codes_of(int expert) const {
    return codes.data() + static_cast<std::size_t>(expert) * code_bytes();
  }
  const std::uint8_t* scales_of(int expert) const {
    return scales.data() + static_cast<std::size_t>(expert) * code_bytes() / nvfp4_block_bytes;
  }
  // A weight before the tensor's scale, exactly.
  float unscaled(int expert, int row, int col) const {
    const std::size_t at =
        (static_cast<std::size_t>(row) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(col));
    const std::uint8_t byte = codes_of(expert)[at / 2];
    const E2m1 code{static_cast<std::uint8_t>(byte >> (at % 2 * 4) & 15)};
    return code.to_float() * E4m3{scales_of(expert)[at / nvfp4_block]}.to_float();
  }
};

// int4 matrices of random codes, whole words of them, and scales of all signs and sizes.
struct RandomInt4 {
  int experts, rows, cols;
  std::vector<std::uint8_t> codes;
  std::vector<Bf16> scales;

  RandomInt4(std::mt19937& random, int count, int of_rows, int of_cols)
      : experts(count),
        rows(of_rows),
        cols(of_cols),
        codes(static_cast<std::size_t>(count) * code_bytes()),
        scales(random_bf16(random, codes.size() * 2 / int4_group, 0.3f)) {
    for (std::uint8_t& pair : codes) pair = static_cast<std::uint8_t>(random());
  }
  std::size_t code_bytes() const {  // of an expert
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / 2);
  }
  const std::uint8_t* codes_of(int expert) const {
    return codes.data() + static_cast<std::size_t>(expert) * code_bytes();
  }
  const Bf16* scales_of(int expert) const {
    return scales.data() + static_cast<std::size_t>(expert) * code_bytes() * 2 / int4_group;
  }
  // As int4.h says.
  float value(int expert, int row, int col) const {
    const std::size_t at =
        static_cast<std::size_t>(row) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(col);
    const int code = codes_of(expert)[at / 2] >> (at % 2 * 4) & 15;
    return Bf16::from_float(static_cast<float>(code - 8) * scales_of(expert)[at / int4_group].to_float())
        .to_float();
  }
};

struct RandomQ8 {
  std::vector<std::int8_t> codes;
  std::vector<std::uint8_t> scales;
  Q8Matrix matrix;

  RandomQ8(std::mt19937& random, int rows, int cols)
      : codes(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols)),
        scales(codes.size() / q8_block) {
    for (std::int8_t& code : codes) code = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
    for (std::uint8_t& byte : scales) byte = static_cast<std::uint8_t>(118 + random() % 5);
    matrix = {codes.data(), scales.data(), rows, cols};
  }
  RandomQ8(const RandomQ8&) = delete;
  RandomQ8& operator=(const RandomQ8&) = delete;
};

// Different experts for each row, and what each counts.
struct MoeRouting {
  std::vector<std::int32_t> ids;  // [rows, top_k]
  std::vector<float> weights;     // [rows, top_k]

  MoeRouting(std::mt19937& random, int rows, int experts, int top_k) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    for (int row = 0; row < rows; ++row) {
      std::shuffle(all.begin(), all.end(), random);
      ids.insert(ids.end(), all.begin(), all.begin() + top_k);
      for (int k = 0; k < top_k; ++k) weights.push_back(0.1f + static_cast<float>(random() % 100) / 100);
    }
  }
};

// Row `row` of the matrix times x, in double precision.
inline double exact_product(const Mxfp4Checkpoint& matrix, int row, const float* x) {
  std::vector<float> weights(static_cast<std::size_t>(matrix.cols));
  mxfp4_decode_row(matrix, row, weights);
  double sum = 0;
  for (std::size_t k = 0; k < weights.size(); ++k) sum += static_cast<double>(weights[k]) * x[k];
  return sum;
}

inline double exact_product(const RandomNvfp4& matrices, int expert, int row, const float* x) {
  const std::size_t cols = static_cast<std::size_t>(matrices.cols),
                    first = static_cast<std::size_t>(row) * cols;
  std::vector<float> weights(cols);
  nvfp4_decode(matrices.codes_of(expert) + first / 2, matrices.scales_of(expert) + first / nvfp4_block, 1.0f,
               weights);
  double sum = 0;
  for (std::size_t k = 0; k < cols; ++k) sum += static_cast<double>(weights[k]) * x[k];
  return sum * matrices.tensor_scales[static_cast<std::size_t>(expert)];
}

}  // namespace nibble
