#include "ops/linear/dot_tile_avx512.h"

#include <immintrin.h>

#include <cstring>

#include "base/check.h"
#include "ops/linear/dot_tile_scalar.h"
#include "ops/linear/step_rows.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))

namespace nibble {
namespace {

constexpr int lanes = 16;
static_assert(lanes == tile_rows, "one lane a row");

NIBBLE_AVX512 inline __m128i chunk(const std::uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

// Four words (16 bytes) of each of sixteen rows, transposed: words[c] holds word c of every row. Row r goes
// to lane group r / 4, so that the shuffles below stay inside 128 bits.
NIBBLE_AVX512 inline void load_words(const std::uint8_t* first, std::int64_t row_bytes, __m512i (&words)[4]) {
  __m512i rows[4];
  for (int r = 0; r < 4; ++r) {
    rows[r] = _mm512_castsi128_si512(chunk(first + r * row_bytes));
    rows[r] = _mm512_inserti32x4(rows[r], chunk(first + (r + 4) * row_bytes), 1);
    rows[r] = _mm512_inserti32x4(rows[r], chunk(first + (r + 8) * row_bytes), 2);
    rows[r] = _mm512_inserti32x4(rows[r], chunk(first + (r + 12) * row_bytes), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
  words[0] = _mm512_unpacklo_epi64(a, c);
  words[1] = _mm512_unpackhi_epi64(a, c);
  words[2] = _mm512_unpacklo_epi64(b, d);
  words[3] = _mm512_unpackhi_epi64(b, d);
}

// How a step's weights come out of the words: column(words, i) is column i of the tile as floats.
struct Bf16Step {
  static constexpr int chunks = 4;          // of 16 bytes a row
  static constexpr int columns_a_word = 2;  // low half, high half
  NIBBLE_AVX512 static __m512 column(__m512i word, int within) {
    return _mm512_castsi512_ps(
        within == 0 ? _mm512_slli_epi32(word, 16)
                    : _mm512_and_si512(word, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};
struct Mxfp4Step {
  static constexpr int chunks = 1;
  static constexpr int columns_a_word = 8;  // nibbles
  // The permutation looks at the low four bits of a lane: the code.
  NIBBLE_AVX512 static __m512 column(__m512i word, int within) {
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f,
                                         -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(word, static_cast<unsigned>(4 * within)), values);
  }
};

struct Q8Step {
  static constexpr int chunks = 2;
  static constexpr int columns_a_word = 4;  // bytes
  NIBBLE_AVX512 static __m512 column(__m512i word, int within) {
    const __m512i top = _mm512_slli_epi32(word, static_cast<unsigned>(24 - 8 * within));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
  }
};

// A block's scale in two factors, as 2^-127 is subnormal and would count as zero.
struct Scales {
  __m512 half, scale;
};
NIBBLE_AVX512 inline Scales scales_of(const std::uint8_t* first, std::int64_t row_bytes) {
  alignas(16) std::uint8_t bytes[lanes];
  for (int r = 0; r < lanes; ++r) bytes[r] = first[r * row_bytes];
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  const __m512i exponents = _mm512_slli_epi32(_mm512_max_epu32(wide, _mm512_set1_epi32(1)), 23);
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(E8m0::nan_bits));
  const __mmask16 smallest = _mm512_testn_epi32_mask(wide, wide);
  return {_mm512_mask_blend_ps(smallest, _mm512_set1_ps(1.0f), _mm512_set1_ps(0.5f)),
          _mm512_castsi512_ps(_mm512_mask_blend_epi32(nan, exponents, _mm512_set1_epi32(0x7fc00000)))};
}

// See dot_tile_avx2.cpp: fused only where the product is exact.
template <bool exact_products>
NIBBLE_AVX512 inline __m512 multiply_add(__m512 weight, __m512 x, __m512 sum) {
  if constexpr (exact_products) return _mm512_fmadd_ps(weight, x, sum);
  return _mm512_add_ps(sum, _mm512_mul_ps(weight, x));
}

NIBBLE_AVX512 inline void add_to_total(const Scales* scales, __m512 even, __m512 odd, TileTotals& totals) {
  __m512 sum = _mm512_add_ps(even, odd);
  if (scales != nullptr) sum = _mm512_mul_ps(_mm512_mul_ps(sum, scales->half), scales->scale);
  _mm512_storeu_ps(totals, _mm512_add_ps(_mm512_loadu_ps(totals), sum));
}

// One input: weights go from the words straight into the products.
template <class Step, bool exact_products>
NIBBLE_AVX512 inline void multiply_one(const std::uint8_t* first, std::int64_t row_bytes,
                                       const Scales* scales, const float* x, TileTotals& totals) {
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
  for (int chunk = 0; chunk < Step::chunks; ++chunk) {
    __m512i words[4];
    load_words(first + 16 * chunk, row_bytes, words);
#pragma GCC unroll 4
    for (int word = 0; word < 4; ++word) {
#pragma GCC unroll 8
      for (int within = 0; within < Step::columns_a_word; within += 2) {
        const float* inputs = x + (4 * chunk + word) * Step::columns_a_word + within;
        even =
            multiply_add<exact_products>(Step::column(words[word], within), _mm512_set1_ps(inputs[0]), even);
        odd = multiply_add<exact_products>(Step::column(words[word], within + 1), _mm512_set1_ps(inputs[1]),
                                           odd);
      }
    }
  }
  add_to_total(scales, even, odd, totals);
}

// More inputs: the weights are widened once, column by column.
struct WeightColumns {
  alignas(64) float columns[dot_step][lanes];
};

template <class Step>
NIBBLE_AVX512 inline void widen(const std::uint8_t* first, std::int64_t row_bytes, WeightColumns& wide) {
  for (int chunk = 0; chunk < Step::chunks; ++chunk) {
    __m512i words[4];
    load_words(first + 16 * chunk, row_bytes, words);
    for (int word = 0; word < 4; ++word) {
      for (int within = 0; within < Step::columns_a_word; ++within) {
        _mm512_store_ps(wide.columns[(4 * chunk + word) * Step::columns_a_word + within],
                        Step::column(words[word], within));
      }
    }
  }
}

template <int count, bool exact_products>
NIBBLE_AVX512 inline void multiply_columns(const WeightColumns& wide, const Scales* scales,
                                           const float* const* inputs, int k, TileTotals* totals) {
  __m512 sums[2][count];
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) sums[0][i] = sums[1][i] = _mm512_setzero_ps();
  for (int c = 0; c < dot_step; c += 2) {
#pragma GCC unroll 2
    for (int parity = 0; parity < 2; ++parity) {
      const __m512 weights = _mm512_load_ps(wide.columns[c + parity]);
#pragma GCC unroll 8
      for (int i = 0; i < count; ++i) {
        sums[parity][i] =
            multiply_add<exact_products>(weights, _mm512_set1_ps(inputs[i][k + c + parity]), sums[parity][i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) add_to_total(scales, sums[0][i], sums[1][i], totals[i]);
}

template <class Step, bool exact_products>
NIBBLE_AVX512 inline void multiply_step(const std::uint8_t* first, std::int64_t row_bytes,
                                        const Scales* scales, std::span<const float* const> inputs, int k,
                                        TileTotals* totals) {
  const int count = static_cast<int>(inputs.size());
  if (count == 1)
    return multiply_one<Step, exact_products>(first, row_bytes, scales, inputs[0] + k, totals[0]);
  WeightColumns wide;
  widen<Step>(first, row_bytes, wide);
  int i = 0;
  for (; i + 8 <= count; i += 8)
    multiply_columns<8, exact_products>(wide, scales, inputs.data() + i, k, totals + i);
  if (i == count) return;
  with_count<1, 7>(count - i, [&](auto left) NIBBLE_AVX512 {
    multiply_columns<left, exact_products>(wide, scales, inputs.data() + i, k, totals + i);
  });
}

// Full tiles only.
template <bool exact_products>
NIBBLE_AVX512 void multiply(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs,
                            TileTotals* totals) {
  const std::int64_t row_bytes = matrix.cols * static_cast<std::int64_t>(sizeof(Bf16));
  const std::uint8_t* first = reinterpret_cast<const std::uint8_t*>(matrix.data) + row * row_bytes;
  for (int k = 0; k < matrix.cols; k += dot_step) {
    multiply_step<Bf16Step, exact_products>(first + 2 * k, row_bytes, nullptr, inputs, k, totals);
  }
}

template <class Step, bool exact_products>
NIBBLE_AVX512 void multiply_blocks(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t blocks,
                                   int row, std::span<const float* const> inputs, TileTotals* totals) {
  constexpr std::int64_t block_bytes = 16 * Step::chunks;
  const std::uint8_t* first = codes + row * blocks * block_bytes;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const Scales scale = scales_of(scales + row * blocks + block, blocks);
    multiply_step<Step, exact_products>(first + block * block_bytes, blocks * block_bytes, &scale, inputs,
                                        static_cast<int>(block) * dot_step, totals);
  }
}
template <bool exact_products>
NIBBLE_AVX512 void multiply(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                            TileTotals* totals) {
  multiply_blocks<Mxfp4Step, exact_products>(matrix.blocks, matrix.scales, matrix.cols / dot_step, row,
                                             inputs, totals);
}
template <bool exact_products>
NIBBLE_AVX512 void multiply(const Q8Matrix& matrix, int row, std::span<const float* const> inputs,
                            TileTotals* totals) {
  multiply_blocks<Q8Step, exact_products>(reinterpret_cast<const std::uint8_t*>(matrix.codes), matrix.scales,
                                          matrix.cols / dot_step, row, inputs, totals);
}

// Ragged ends are rare (every width of a real model is a multiple of 32) and left to the plain code.
template <class Matrix>
void tile(const Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
          TileTotals* totals) {
  if (matrix.rows - row < tile_rows || matrix.cols % dot_step != 0)
    return scalar_tile(matrix, row, inputs, values, totals);
  NIBBLE_CHECK(inputs.size() <= max_tile_inputs);
  std::memset(totals, 0, inputs.size() * sizeof(TileTotals));
  values == InputValues::bf16 ? multiply<true>(matrix, row, inputs, totals)
                              : multiply<false>(matrix, row, inputs, totals);
}

}  // namespace

bool avx512_supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

void avx512_tile(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
                 TileTotals* totals) {
  tile(matrix, row, inputs, values, totals);
}
void avx512_tile(const Q8Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
                 TileTotals* totals) {
  tile(matrix, row, inputs, values, totals);
}
void avx512_tile(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
                 InputValues values, TileTotals* totals) {
  tile(matrix, row, inputs, values, totals);
}

void avx512_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                     const TotalsSink& store) {
  std::visit([&](const auto& each) { multiply_tiles({avx512_tile}, each, begin, end, inputs, store); },
             matrix);
}

}  // namespace nibble
