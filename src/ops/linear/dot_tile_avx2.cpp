#include "ops/linear/dot_tile_avx2.h"

#include <cstring>

#include "base/check.h"
#include "ops/linear/dot_few_avx2.h"
#include "ops/linear/dot_tile_scalar.h"
#include "ops/linear/simd256.h"

namespace nibble {
namespace {

constexpr int lanes = 8;
constexpr int halves = tile_rows / lanes;
constexpr int word_count = dot_step / 2;

// One step of a tile's weights as bfloat16, two columns a 32-bit word, one lane a row.
struct WeightWords {
  alignas(32) std::uint32_t words[word_count][tile_rows];
  // Block formats only: the scale in two factors, as 2^-127 is subnormal and would count as zero.
  alignas(32) float scales[tile_rows], halves[tile_rows];
};

// Which column the low half of a word holds; the high half holds the next one of the same kind.
struct NeighbourPairs {  // (0, 1), (2, 3), ...: words as they lie in a bf16 matrix
  static constexpr int low(int word) { return 2 * word; }
  static constexpr int high(int word) { return 2 * word + 1; }
};
struct ParityPairs {  // (0, 2), (4, 6), ... and then (1, 3), (5, 7), ...: low nibbles, then high nibbles
  static constexpr int low(int word) {
    return word < word_count / 2 ? 4 * word : 4 * (word - word_count / 2) + 1;
  }
  static constexpr int high(int word) { return low(word) + 2; }
};

// Four registers, each with four words of row r in its low and of row r + 4 in its high half, transposed:
// words[c] holds word c of rows 0 .. 7.
NIBBLE_AVX2 inline void store_transposed(const __m256i (&pair)[4], std::uint32_t (*words)[tile_rows]) {
  __m256i columns[4];
  transpose_halves(pair, columns);
  for (int c = 0; c < 4; ++c) _mm256_store_si256(reinterpret_cast<__m256i*>(words[c]), columns[c]);
}

NIBBLE_AVX2 inline void set_scale(std::uint8_t byte, int row, WeightWords& step) {
  step.scales[row] = E8m0{byte == 0 ? std::uint8_t{1} : byte}.to_float();
  step.halves[row] = byte == 0 ? 0.5f : 1.0f;
}

// Full steps of full tiles only.
NIBBLE_AVX2 inline void load_words(const Bf16Matrix& matrix, int row, int k, WeightWords& step) {
  for (int half = 0; half < halves; ++half) {
    for (int word = 0; word < word_count; word += lanes) {
      __m256i rows[lanes], columns[lanes];
      for (int r = 0; r < lanes; ++r) {
        const Bf16* weights =
            matrix.data + static_cast<std::int64_t>(row + half * lanes + r) * matrix.cols + k + 2 * word;
        rows[r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
      }
      transpose_words(rows, columns);
      for (int i = 0; i < lanes; ++i) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(step.words[word + i] + half * lanes), columns[i]);
      }
    }
  }
}

NIBBLE_AVX2 inline void load_words(const Mxfp4Checkpoint& matrix, int row, int k, WeightWords& step) {
  static_assert(dot_step == mxfp4_block);
  const Mxfp4Bytes lookup;
  const std::int64_t row_blocks = matrix.cols / mxfp4_block, row_bytes = row_blocks * mxfp4_block_bytes;
  for (int half = 0; half < halves; ++half) {
    const std::int64_t first = (row + half * lanes) * row_blocks + k / mxfp4_block;
    const std::uint8_t* codes = matrix.blocks + first * mxfp4_block_bytes;
    __m256i words[4][4];  // [columns 0, 2 .. 14; 16 .. 30; 1, 3 .. 15; 17 .. 31][row]
    for (int r = 0; r < 4; ++r) {
      const __m256i bytes = two_parts(codes + r * row_bytes, codes + (r + 4) * row_bytes);
      lookup.look_up(Mxfp4Bytes::lower(bytes), words[0][r], words[1][r]);
      lookup.look_up(Mxfp4Bytes::upper(bytes), words[2][r], words[3][r]);
    }
    for (int part = 0; part < 4; ++part) {
      store_transposed(words[part],
                       reinterpret_cast<std::uint32_t(*)[tile_rows]>(step.words[4 * part] + half * lanes));
    }
    for (int r = 0; r < lanes; ++r) set_scale(matrix.scales[first + r * row_blocks], half * lanes + r, step);
  }
}

NIBBLE_AVX2 inline void load_words(const Q8Matrix& matrix, int row, int k, WeightWords& step) {
  static_assert(dot_step == q8_block);
  for (int half = 0; half < halves; ++half) {
    __m256i rows[lanes], columns[lanes];
    for (int r = 0; r < lanes; ++r) {
      const std::int64_t at = row + half * lanes + r;
      rows[r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(matrix.codes + at * matrix.cols + k));
      set_scale(matrix.scales[at * (matrix.cols / q8_block) + k / q8_block], half * lanes + r, step);
    }
    transpose_words(rows, columns);
    for (int i = 0; i < lanes; ++i) {
      const auto code = [&](int byte) NIBBLE_AVX2 {
        const __m256i top = _mm256_slli_epi32(columns[i], 24 - 8 * byte);
        return _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24)));
      };
      // Small integers have nothing in the lower half of a float.
      for (int pair = 0; pair < 2; ++pair) {
        const __m256i low = _mm256_srli_epi32(code(2 * pair), 16);
        _mm256_store_si256(reinterpret_cast<__m256i*>(step.words[2 * i + pair] + half * lanes),
                           _mm256_or_si256(low, code(2 * pair + 1)));
      }
    }
  }
}

// sum + weight * x. A fused multiply-add rounds once where the contract rounds twice, unless the product is
// exact, as it is when both factors are bfloat16.
template <bool exact_products>
NIBBLE_AVX2 inline __m256 multiply_add(__m256 weight, __m256 x, __m256 sum) {
  if constexpr (exact_products) return _mm256_fmadd_ps(weight, x, sum);
  return _mm256_add_ps(sum, _mm256_mul_ps(weight, x));
}

template <bool scaled>
NIBBLE_AVX2 inline void add_to_total(const WeightWords& step, int row, __m256 even, __m256 odd,
                                     float* total) {
  __m256 sum = _mm256_add_ps(even, odd);
  if constexpr (scaled) {
    sum = _mm256_mul_ps(_mm256_mul_ps(sum, _mm256_load_ps(step.halves + row)),
                        _mm256_load_ps(step.scales + row));
  }
  _mm256_storeu_ps(total, _mm256_add_ps(_mm256_loadu_ps(total), sum));
}

// One input: weights are widened on the fly.
template <class Pairs, bool scaled, bool exact_products>
NIBBLE_AVX2 inline void multiply_words(const WeightWords& step, const float* x, TileTotals& totals) {
  __m256 sums[halves][2];
  for (auto& half : sums) half[0] = half[1] = _mm256_setzero_ps();
#pragma GCC unroll 16
  for (int word = 0; word < word_count; ++word) {
    const int low = Pairs::low(word), high = Pairs::high(word);
    for (int half = 0; half < halves; ++half) {
      const __m256i words =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(step.words[word] + half * lanes));
      __m256(&sum)[2] = sums[half];
      sum[low % 2] =
          multiply_add<exact_products>(low_halves(words), _mm256_broadcast_ss(x + low), sum[low % 2]);
      sum[high % 2] =
          multiply_add<exact_products>(high_halves(words), _mm256_broadcast_ss(x + high), sum[high % 2]);
    }
  }
  for (int half = 0; half < halves; ++half) {
    add_to_total<scaled>(step, half * lanes, sums[half][0], sums[half][1], totals + half * lanes);
  }
}

// More inputs: the weights are widened once, column by column. All loops have constant bounds, so sums stay
// in registers.
struct WeightColumns {
  alignas(32) float columns[dot_step][tile_rows];
};

template <class Pairs>
NIBBLE_AVX2 inline void widen(const WeightWords& step, WeightColumns& wide) {
  for (int word = 0; word < word_count; ++word) {
    for (int half = 0; half < halves; ++half) {
      const __m256i words =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(step.words[word] + half * lanes));
      _mm256_store_ps(wide.columns[Pairs::low(word)] + half * lanes, low_halves(words));
      _mm256_store_ps(wide.columns[Pairs::high(word)] + half * lanes, high_halves(words));
    }
  }
}

template <int count, bool scaled, bool exact_products>
NIBBLE_AVX2 inline void multiply_columns(const WeightColumns& wide, const WeightWords& step,
                                         const float* const* inputs, int k, TileTotals* totals) {
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
          const __m256 weights = _mm256_load_ps(wide.columns[c + parity] + half * lanes);
          sums[parity][half][i] = multiply_add<exact_products>(weights, x, sums[parity][half][i]);
        }
      }
    }
  }
  for (int i = 0; i < count; ++i) {
    for (int half = 0; half < halves; ++half) {
      add_to_total<scaled>(step, half * lanes, sums[0][half][i], sums[1][half][i], totals[i] + half * lanes);
    }
  }
}

template <class Pairs, bool scaled, bool exact_products, class Matrix>
NIBBLE_AVX2 void multiply(const Matrix& matrix, int row, std::span<const float* const> inputs,
                          TileTotals* totals) {
  NIBBLE_CHECK(inputs.size() <= max_tile_inputs);
  const int cols = static_cast<int>(matrix.cols), count = static_cast<int>(inputs.size());
  std::memset(totals, 0, inputs.size() * sizeof(TileTotals));
  WeightWords step;
  WeightColumns wide;
  for (int k = 0; k < cols; k += dot_step) {
    load_words(matrix, row, k, step);
    if (count == 1) {
      multiply_words<Pairs, scaled, exact_products>(step, inputs[0] + k, totals[0]);
    } else {
      widen<Pairs>(step, wide);
      int i = 0;
      for (; i + 3 <= count; i += 3)
        multiply_columns<3, scaled, exact_products>(wide, step, inputs.data() + i, k, totals + i);
      if (count - i == 2)
        multiply_columns<2, scaled, exact_products>(wide, step, inputs.data() + i, k, totals + i);
      if (count - i == 1)
        multiply_columns<1, scaled, exact_products>(wide, step, inputs.data() + i, k, totals + i);
    }
  }
}

// How the words of a format pair columns, and whether it has scales.
template <class Matrix>
struct Words {
  using Pairs = NeighbourPairs;
  static constexpr bool scaled = true;
};
template <>
struct Words<Bf16Matrix> {
  using Pairs = NeighbourPairs;
  static constexpr bool scaled = false;
};
template <>
struct Words<Mxfp4Checkpoint> {
  using Pairs = ParityPairs;
  static constexpr bool scaled = true;
};

// Ragged ends are rare (every width of a real model is a multiple of 32) and left to the plain code.
template <class Matrix>
void tile(const Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
          TileTotals* totals) {
  using Format = Words<Matrix>;
  if (matrix.rows - row < tile_rows || matrix.cols % dot_step != 0) {
    scalar_tile(matrix, row, inputs, values, totals);
  } else if (values == InputValues::bf16) {
    multiply<typename Format::Pairs, Format::scaled, true>(matrix, row, inputs, totals);
  } else {
    multiply<typename Format::Pairs, Format::scaled, false>(matrix, row, inputs, totals);
  }
}

}  // namespace

bool avx2_supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

void avx2_tile(const Bf16Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
               TileTotals* totals) {
  tile(matrix, row, inputs, values, totals);
}
void avx2_tile(const Q8Matrix& matrix, int row, std::span<const float* const> inputs, InputValues values,
               TileTotals* totals) {
  tile(matrix, row, inputs, values, totals);
}
void avx2_tile(const Mxfp4Checkpoint& matrix, int row, std::span<const float* const> inputs,
               InputValues values, TileTotals* totals) {
  tile(matrix, row, inputs, values, totals);
}

void avx2_prepare(const DenseMatrix& matrix, const DotInputs& inputs, int begin, int end) {
  if (avx2_takes_few(inputs)) return avx2_few_prepare(matrix, inputs, begin, end);
  prepare_float_inputs(matrix, inputs, begin, end);
}

void avx2_multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                   const TotalsSink& store) {
  if (avx2_takes_few(inputs)) return avx2_few_multiply(matrix, begin, end, inputs, store);
  std::visit([&](const auto& each) { multiply_tiles({avx2_tile}, each, begin, end, inputs, store); }, matrix);
}

}  // namespace nibble
