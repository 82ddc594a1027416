#include "ops/linear/dot_tile_avx2.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/linear/dot_tile_scalar.h"

// The target goes on each function, not on the file: a file compiled for AVX2 would also emit inline
// functions of headers for AVX2, and the linker might pick those for machines without it.
#define NIBBLE_AVX2 __attribute__((target("avx2")))

namespace nibble {
namespace {

constexpr int lanes = 8;
constexpr int halves = tile_rows / lanes;

// One step of a tile's weights, column by column; a column's rows are two registers.
struct WeightStep {
  alignas(32) float columns[dot_step][tile_rows];
  alignas(32) float scales[tile_rows];  // MXFP4 only
};

// Eight rows of eight 32-bit words, transposed: out[c] holds word c of each row.
NIBBLE_AVX2 inline void transpose_words(const __m256i (&rows)[lanes], __m256i (&out)[lanes]) {
  __m256i pairs[lanes], quads[lanes];
  for (int i = 0; i < lanes; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < lanes; i += 4) {
    quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    out[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}

// Full steps of full tiles only. A 32-bit word holds an even and an odd column.
NIBBLE_AVX2 void decode_step(const Bf16Matrix& matrix, int row, int k, WeightStep& step) {
  const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int half = 0; half < halves; ++half) {
    for (int c = 0; c < dot_step; c += 2 * lanes) {
      __m256i rows[lanes], words[lanes];
      for (int r = 0; r < lanes; ++r) {
        const Bf16* weights =
            matrix.data + static_cast<std::int64_t>(row + half * lanes + r) * matrix.cols + k + c;
        rows[r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
      }
      transpose_words(rows, words);
      for (int word = 0; word < lanes; ++word) {
        float* even = step.columns[c + 2 * word] + half * lanes;
        _mm256_store_ps(even, _mm256_castsi256_ps(_mm256_slli_epi32(words[word], 16)));
        _mm256_store_ps(even + tile_rows, _mm256_castsi256_ps(_mm256_and_si256(words[word], high_half)));
      }
    }
  }
}

// Eight rows' blocks of 16 bytes, transposed: out[d] holds bytes 4d .. 4d + 3 of each row.
NIBBLE_AVX2 inline void load_blocks(const std::uint8_t* first, std::int64_t row_bytes, __m256i (&out)[4]) {
  __m256i pair[4];  // rows r and r + 4
  for (int r = 0; r < 4; ++r) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first + r * row_bytes));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first + (r + 4) * row_bytes));
    pair[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
  const __m256i a = _mm256_unpacklo_epi32(pair[0], pair[1]), b = _mm256_unpackhi_epi32(pair[0], pair[1]);
  const __m256i c = _mm256_unpacklo_epi32(pair[2], pair[3]), d = _mm256_unpackhi_epi32(pair[2], pair[3]);
  out[0] = _mm256_unpacklo_epi64(a, c);
  out[1] = _mm256_unpackhi_epi64(a, c);
  out[2] = _mm256_unpacklo_epi64(b, d);
  out[3] = _mm256_unpackhi_epi64(b, d);
}

NIBBLE_AVX2 void decode_step(const Mxfp4Checkpoint& matrix, int row, int k, WeightStep& step) {
  static_assert(dot_step == mxfp4_block);
  const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i sign_bit = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  const std::int64_t row_blocks = matrix.cols / mxfp4_block;
  for (int half = 0; half < halves; ++half) {
    const std::int64_t first = (row + half * lanes) * row_blocks + k / mxfp4_block;
    __m256i words[4];
    load_blocks(matrix.blocks + first * mxfp4_block_bytes, row_blocks * mxfp4_block_bytes, words);
    for (int d = 0; d < 4; ++d) {
      for (int nibble = 0; nibble < 8; ++nibble) {
        // The permutation looks at the low three bits of a lane: the magnitude. Bit 3 is the sign.
        const __m256i code = _mm256_srli_epi32(words[d], 4 * nibble);
        const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(code, 28), sign_bit);
        const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, code);
        _mm256_store_ps(step.columns[8 * d + nibble] + half * lanes,
                        _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign)));
      }
    }
    for (int r = 0; r < lanes; ++r)
      step.scales[half * lanes + r] = E8m0{matrix.scales[first + r * row_blocks]}.to_float();
  }
}

// The step's products with `count` inputs, added to their totals. Multiplications and additions stay apart:
// a fused one would round once where the contract rounds twice.
template <int count, bool scaled>
NIBBLE_AVX2 inline void multiply_step(const WeightStep& step, const float* const* inputs, int k,
                                      TileTotals* totals) {
  // [even, odd][half][input]; the loops below have constant bounds, so all of them stay in registers.
  __m256 sums[2][halves][count];
  for (auto& parity : sums) {
    for (auto& half : parity) {
      for (__m256& sum : half) sum = _mm256_setzero_ps();
    }
  }
  for (int c = 0; c < dot_step; c += 2) {
    for (int parity = 0; parity < 2; ++parity) {
      for (int i = 0; i < count; ++i) {
        const __m256 x = _mm256_broadcast_ss(inputs[i] + k + c + parity);
        for (int half = 0; half < halves; ++half) {
          const __m256 weights = _mm256_load_ps(step.columns[c + parity] + half * lanes);
          sums[parity][half][i] = _mm256_add_ps(sums[parity][half][i], _mm256_mul_ps(weights, x));
        }
      }
    }
  }
  for (int i = 0; i < count; ++i) {
    for (int half = 0; half < halves; ++half) {
      __m256 sum = _mm256_add_ps(sums[0][half][i], sums[1][half][i]);
      if (scaled) sum = _mm256_mul_ps(sum, _mm256_load_ps(step.scales + half * lanes));
      float* total = totals[i] + half * lanes;
      _mm256_storeu_ps(total, _mm256_add_ps(_mm256_loadu_ps(total), sum));
    }
  }
}

template <bool scaled, class Matrix>
NIBBLE_AVX2 void multiply(const Matrix& matrix, int row, std::span<const float* const> inputs,
                          TileTotals* totals) {
  NIBBLE_CHECK(inputs.size() <= max_tile_inputs);
  const int cols = static_cast<int>(matrix.cols), count = static_cast<int>(inputs.size());
  std::memset(totals, 0, inputs.size() * sizeof(TileTotals));
  WeightStep step;
  for (int k = 0; k < cols; k += dot_step) {
    decode_step(matrix, row, k, step);
    int i = 0;
    for (; i + 2 <= count; i += 2) multiply_step<2, scaled>(step, inputs.data() + i, k, totals + i);
    if (i < count) multiply_step<1, scaled>(step, inputs.data() + i, k, totals + i);
  }
}

}  // namespace

bool avx2_supported() { return __builtin_cpu_supports("avx2"); }

// Ragged ends are rare (every width of a real model is a multiple of 32) and left to the plain code.
void avx2_dot_bf16(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs,
                   TileTotals* totals) {
  if (matrix.rows - row < tile_rows || matrix.cols % dot_step != 0) {
    scalar_dot_bf16(matrix, row, inputs, totals);
  } else {
    multiply<false>(matrix, row, inputs, totals);
  }
}

void avx2_dot_mxfp4(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                    TileTotals* totals) {
  if (matrix.rows - row < tile_rows) {
    scalar_dot_mxfp4(matrix, row, inputs, totals);
  } else {
    multiply<true>(matrix, row, inputs, totals);
  }
}

}  // namespace nibble
