// Per split and tile of eight queries at head_dim 64: 2 x 8 x 256 x 64 multiply-adds, of which 16 are one
// instruction, against 64 KiB of bfloat16 keys and values, each line of which is loaded and widened once.
#include <immintrin.h>

#include <algorithm>

#include "ops/attention/attention_kernels.h"
#include "ops/fixed_math_avx512.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))

namespace nibble {
namespace {

constexpr int lanes = 16;
static_assert(lanes == kv_run, "one lane a position");

// A line of keys (key_dimensions dimensions of a run) and a chunk of a value (dimensions 0..15, 16..31)
// as floats.
struct Floats {
  static constexpr int key_dimensions = 1;
  static constexpr int bytes = 4;
  NIBBLE_AVX512 static void keys(const std::byte* line, __m512 (&out)[1]) {
    out[0] = _mm512_loadu_ps(reinterpret_cast<const float*>(line));
  }
  NIBBLE_AVX512 static void values(const std::byte* chunk, __m512 (&out)[2]) {
    out[0] = _mm512_loadu_ps(reinterpret_cast<const float*>(chunk));
    out[1] = _mm512_loadu_ps(reinterpret_cast<const float*>(chunk) + lanes);
  }
};

struct Bf16s {
  static constexpr int key_dimensions = 2;
  static constexpr int bytes = 2;
  NIBBLE_AVX512 static void keys(const std::byte* line, __m512 (&out)[2]) {
    const __m512i words = _mm512_loadu_si512(line);
    out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    out[1] = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  NIBBLE_AVX512 static void values(const std::byte* chunk, __m512 (&out)[2]) { keys(chunk, out); }
};

// A byte moved to bits 14..7 of a half float is the value times 2^-8, subnormals included; only the NaN
// code needs care. This conversion is not subject to the denormals-are-zero mode.
struct E4m3s {
  static constexpr int key_dimensions = 4;
  static constexpr int bytes = 1;
  static constexpr int magnitude = 0x3f80, sign_and_magnitude = 0xbf80;
  // Of the odd byte of each 16 bits.
  NIBBLE_AVX512 static __m512i odd_halves(__m512i pairs) {
    const __m512i half = _mm512_and_si512(_mm512_srai_epi16(pairs, 1),
                                          _mm512_set1_epi16(static_cast<short>(sign_and_magnitude)));
    const __m512i nan = _mm512_set1_epi16(magnitude);
    const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(half, nan), nan);
    return _mm512_mask_mov_epi16(half, is_nan, _mm512_set1_epi16(-1));
  }
  NIBBLE_AVX512 static __m512 widen(__m256i halves) {
    return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f));
  }
  NIBBLE_AVX512 static void keys(const std::byte* line, __m512 (&out)[4]) {
    const __m512i pairs = _mm512_loadu_si512(line);
    const __m512i odd = odd_halves(pairs), even = odd_halves(_mm512_slli_epi16(pairs, 8));
    out[0] = widen(_mm512_castsi512_si256(odd));
    out[1] = widen(_mm512_extracti64x4_epi64(odd, 1));
    out[2] = widen(_mm512_castsi512_si256(even));
    out[3] = widen(_mm512_extracti64x4_epi64(even, 1));
  }
  NIBBLE_AVX512 static void values(const std::byte* chunk, __m512 (&out)[2]) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk));
    const __m512i both =
        odd_halves(_mm512_inserti64x4(_mm512_castsi256_si512(pairs), _mm256_slli_epi16(pairs, 8), 1));
    out[0] = widen(_mm512_castsi512_si256(both));
    out[1] = widen(_mm512_extracti64x4_epi64(both, 1));
  }
};

// scores[q][run * lanes ..] = q . k for `queries` queries and `runs` runs from `first_run` on.
template <class Stored, int queries, int runs>
NIBBLE_AVX512 inline void score_runs(const float* const* q, const SplitView& split, int first_run,
                                     float (*scores)[kv_split]) {
  constexpr int dimensions = Stored::key_dimensions;
  __m512 sums[queries][runs];
  for (int i = 0; i < queries; ++i) {
    for (int run = 0; run < runs; ++run) sums[i][run] = _mm512_setzero_ps();
  }
  for (int d = 0; d < split.head_dim; d += dimensions) {
    __m512 keys[runs][dimensions];
    for (int run = 0; run < runs; ++run) {
      const int line = d * lanes * Stored::bytes;
      // Values are wanted next, then the following keys; pages lie apart, so that the hardware does not
      // guess where.
      _mm_prefetch(split.keys[first_run + runs + run] + line, _MM_HINT_T0);
      _mm_prefetch(split.values[first_run + run] + line, _MM_HINT_T1);
      Stored::keys(split.keys[first_run + run] + line, keys[run]);
    }
    for (int within = 0; within < dimensions; ++within) {
      for (int i = 0; i < queries; ++i) {
        const __m512 element = _mm512_set1_ps(q[i][d + within]);
        for (int run = 0; run < runs; ++run)
          sums[i][run] = _mm512_fmadd_ps(element, keys[run][within], sums[i][run]);
      }
    }
  }
  for (int i = 0; i < queries; ++i) {
    for (int run = 0; run < runs; ++run) _mm512_store_ps(scores[i] + (first_run + run) * lanes, sums[i][run]);
  }
}

template <class Stored, int queries>
NIBBLE_AVX512 void score(const float* const* q, const SplitView& split, int begin, int end,
                         float (*scores)[kv_split]) {
  const int last_run = (end + lanes - 1) / lanes;
  int run = begin / lanes;
  for (; run + 2 <= last_run; run += 2) score_runs<Stored, queries, 2>(q, split, run, scores);
  if (run < last_run) score_runs<Stored, queries, 1>(q, split, run, scores);
}

// Scores become weights, zero outside [begin, end); the maximum and the sum go to the partial.
NIBBLE_AVX512 inline void weigh(float* scores, int begin, int end, float scale, float* partial,
                                int head_dim) {
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const int first = begin / lanes * lanes;
  __m512 maxima = none;
  for (int at = first; at < end; at += lanes) {
    const __m512i position = _mm512_add_epi32(lane, _mm512_set1_epi32(at));
    const __mmask16 seen = _mm512_cmpge_epi32_mask(position, _mm512_set1_epi32(begin)) &
                           _mm512_cmplt_epi32_mask(position, _mm512_set1_epi32(end));
    const __m512 score = _mm512_mask_mul_ps(none, seen, _mm512_load_ps(scores + at), _mm512_set1_ps(scale));
    _mm512_store_ps(scores + at, score);
    maxima = _mm512_max_ps(score, maxima);
  }
  const float maximum = _mm512_reduce_max_ps(maxima);
  __m512 sums = _mm512_setzero_ps();
  for (int at = first; at < end; at += lanes) {
    const __m512 weight =
        fixed_exp_sixteen(_mm512_sub_ps(_mm512_load_ps(scores + at), _mm512_set1_ps(maximum)));
    _mm512_store_ps(scores + at, weight);
    sums = _mm512_add_ps(sums, weight);
  }
  *partial_maximum(partial, head_dim) = maximum;
  *partial_weight(partial, head_dim) = tree_sum(sums);
}

// The partials of `queries` queries take in the values of positions [begin, end).
template <class Stored, int queries>
NIBBLE_AVX512 void add_values(const float (*weights)[kv_split], const SplitView& split, int begin, int end,
                              float* partials) {
  const int head_dim = split.head_dim, stride = partial_floats(head_dim);
  for (int d = 0; d < head_dim; d += kv_chunk) {
    const bool begins_line = d * Stored::bytes % 64 == 0;
    __m512 sums[queries][2];
    for (int i = 0; i < queries; ++i) {
      for (int half = 0; half < 2; ++half)
        sums[i][half] = _mm512_loadu_ps(partials + i * stride + d + half * lanes);
    }
    for (int position = begin; position < end;) {
      RunChunks<Stored::bytes> run(split, position, end, d);
      for (; position < run.end; ++position, run.next()) {
        if (begins_line) run.ask_ahead();
        __m512 values[2];
        Stored::values(run.value, values);
        for (int i = 0; i < queries; ++i) {
          const __m512 weight = _mm512_set1_ps(weights[i][position]);
          for (int half = 0; half < 2; ++half)
            sums[i][half] = _mm512_fmadd_ps(weight, values[half], sums[i][half]);
        }
      }
    }
    for (int i = 0; i < queries; ++i) {
      for (int half = 0; half < 2; ++half)
        _mm512_storeu_ps(partials + i * stride + d + half * lanes, sums[i][half]);
    }
  }
}

// Queries in groups of 8, 4, 2 and 1, so that few sizes of register tiles serve any count.
template <class Stored>
NIBBLE_AVX512 void score_tile(const QueryTile& tile, const SplitView& split, float (*scores)[kv_split]) {
  const int begin = tile.begin[0], end = tile.end[tile.count - 1];
  int i = 0;
  for (; i + 8 <= tile.count; i += 8) score<Stored, 8>(tile.q + i, split, begin, end, scores + i);
  for (; i + 4 <= tile.count; i += 4) score<Stored, 4>(tile.q + i, split, begin, end, scores + i);
  for (; i + 2 <= tile.count; i += 2) score<Stored, 2>(tile.q + i, split, begin, end, scores + i);
  for (; i < tile.count; ++i) score<Stored, 1>(tile.q + i, split, begin, end, scores + i);
}

template <class Stored>
NIBBLE_AVX512 void add_values_to(int count, const float (*weights)[kv_split], const SplitView& split,
                                 int begin, int end, float* partials) {
  if (begin >= end) return;
  const int stride = partial_floats(split.head_dim);
  int i = 0;
  for (; i + 8 <= count; i += 8) add_values<Stored, 8>(weights + i, split, begin, end, partials + i * stride);
  for (; i + 4 <= count; i += 4) add_values<Stored, 4>(weights + i, split, begin, end, partials + i * stride);
  for (; i + 2 <= count; i += 2) add_values<Stored, 2>(weights + i, split, begin, end, partials + i * stride);
  for (; i < count; ++i) add_values<Stored, 1>(weights + i, split, begin, end, partials + i * stride);
}

template <class Stored>
NIBBLE_AVX512 void attend(const QueryTile& tile, const SplitView& split, float* partials) {
  const int head_dim = split.head_dim, stride = partial_floats(head_dim);
  alignas(64) float scores[max_tile_queries][kv_split];
  score_tile<Stored>(tile, split, scores);
  for (int i = 0; i < tile.count; ++i) {
    weigh(scores[i], tile.begin[i], tile.end[i], tile.scale, partials + i * stride, head_dim);
    for (int d = 0; d < head_dim; d += lanes)
      _mm512_storeu_ps(partials + i * stride + d, _mm512_setzero_ps());
  }
  // Positions that all queries see are added together; what lies before and after, query by query, so that
  // no query touches a value that it does not see.
  const int shared_begin = std::min(tile.begin[tile.count - 1], tile.end[0]), shared_end = tile.end[0];
  for (int i = 0; i < tile.count; ++i) {
    add_values_to<Stored>(1, scores + i, split, tile.begin[i], std::min(shared_begin, tile.end[i]),
                          partials + i * stride);
  }
  add_values_to<Stored>(tile.count, scores, split, shared_begin, shared_end, partials);
  for (int i = 0; i < tile.count; ++i) {
    add_values_to<Stored>(1, scores + i, split, std::max(shared_end, tile.begin[i]), tile.end[i],
                          partials + i * stride);
  }
}

}  // namespace

bool avx512_attention_supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

NIBBLE_AVX512 void avx512_attend_split(const QueryTile& tile, const SplitView& split, float* partials) {
  switch (split.dtype) {
    case DType::bf16: return attend<Bf16s>(tile, split, partials);
    case DType::f8_e4m3: return attend<E4m3s>(tile, split, partials);
    default: return attend<Floats>(tile, split, partials);
  }
}

}  // namespace nibble
