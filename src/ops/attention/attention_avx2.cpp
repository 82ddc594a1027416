// The AVX-512 code's plan in half its width: eight positions or dimensions a register, and tiles of what
// sixteen registers hold.
#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>

#include "ops/attention/attention_kernels.h"
#include "ops/fixed_math_avx2.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace nibble {
namespace {

constexpr int lanes = 8;
static_assert(2 * lanes == kv_run, "a run is two registers");

// Half a line of keys (key_dimensions dimensions of eight positions) and half a chunk of a value
// (dimensions 8 * half .. and 16 + 8 * half ..) as floats.
struct Floats {
  static constexpr int key_dimensions = 1;
  static constexpr int bytes = 4;
  NIBBLE_AVX2 static void keys(const std::byte* line, int half, __m256 (&out)[1]) {
    out[0] = _mm256_loadu_ps(reinterpret_cast<const float*>(line) + half * lanes);
  }
  NIBBLE_AVX2 static void values(const std::byte* chunk, int half, __m256 (&out)[2]) {
    out[0] = _mm256_loadu_ps(reinterpret_cast<const float*>(chunk) + half * lanes);
    out[1] = _mm256_loadu_ps(reinterpret_cast<const float*>(chunk) + 16 + half * lanes);
  }
};

struct Bf16s {
  static constexpr int key_dimensions = 2;
  static constexpr int bytes = 2;
  NIBBLE_AVX2 static void keys(const std::byte* line, int half, __m256 (&out)[2]) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line) + half);
    out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  NIBBLE_AVX2 static void values(const std::byte* chunk, int half, __m256 (&out)[2]) {
    keys(chunk, half, out);
  }
};

// A byte moved to bits 14..7 of a half float is the value times 2^-8, subnormals included; only the NaN
// code needs care. F16C is not subject to the denormals-are-zero mode.
struct E4m3s {
  static constexpr int key_dimensions = 4;
  static constexpr int bytes = 1;
  static constexpr int magnitude = 0x3f80, sign_and_magnitude = 0xbf80;
  // Of the odd byte of each 16 bits.
  NIBBLE_AVX2 static __m256 odd_floats(__m128i pairs) {
    const __m128i half =
        _mm_and_si128(_mm_srai_epi16(pairs, 1), _mm_set1_epi16(static_cast<short>(sign_and_magnitude)));
    const __m128i nan = _mm_set1_epi16(magnitude);
    const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(half, nan), nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, is_nan)), _mm256_set1_ps(256.0f));
  }
  NIBBLE_AVX2 static __m128i load(const std::byte* line, int quarter) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(line) + quarter);
  }
  NIBBLE_AVX2 static void keys(const std::byte* line, int half, __m256 (&out)[4]) {
    const __m128i first = load(line, half), second = load(line, 2 + half);
    out[0] = odd_floats(first);
    out[1] = odd_floats(second);
    out[2] = odd_floats(_mm_slli_epi16(first, 8));
    out[3] = odd_floats(_mm_slli_epi16(second, 8));
  }
  NIBBLE_AVX2 static void values(const std::byte* chunk, int half, __m256 (&out)[2]) {
    const __m128i pairs = load(chunk, half);
    out[0] = odd_floats(pairs);
    out[1] = odd_floats(_mm_slli_epi16(pairs, 8));
  }
};

// scores[q][at ..] = q . k for `queries` queries and the eight positions from `at` on.
template <class Stored, int queries>
NIBBLE_AVX2 inline void score_eight(const float* const* q, const SplitView& split, int at,
                                    float (*scores)[kv_split]) {
  constexpr int dimensions = Stored::key_dimensions;
  const std::byte* run = split.keys[at / kv_run];
  const int half = at / lanes % 2;
  __m256 sums[queries];
  for (int i = 0; i < queries; ++i) sums[i] = _mm256_setzero_ps();
  for (int d = 0; d < split.head_dim; d += dimensions) {
    __m256 keys[dimensions];
    const int line = d * kv_run * Stored::bytes;
    if (half == 0) {
      _mm_prefetch(split.keys[at / kv_run + 1] + line, _MM_HINT_T0);
      _mm_prefetch(split.values[at / kv_run] + line, _MM_HINT_T1);
    }
    Stored::keys(run + line, half, keys);
    for (int within = 0; within < dimensions; ++within) {
      for (int i = 0; i < queries; ++i)
        sums[i] = _mm256_fmadd_ps(_mm256_broadcast_ss(q[i] + d + within), keys[within], sums[i]);
    }
  }
  for (int i = 0; i < queries; ++i) _mm256_store_ps(scores[i] + at, sums[i]);
}

template <class Stored>
NIBBLE_AVX2 void score_tile(const QueryTile& tile, const SplitView& split, float (*scores)[kv_split]) {
  for (int at = tile.begin[0] / lanes * lanes; at < tile.end[tile.count - 1]; at += lanes) {
    int i = 0;
    for (; i + 8 <= tile.count; i += 8) score_eight<Stored, 8>(tile.q + i, split, at, scores + i);
    for (; i + 4 <= tile.count; i += 4) score_eight<Stored, 4>(tile.q + i, split, at, scores + i);
    for (; i < tile.count; ++i) score_eight<Stored, 1>(tile.q + i, split, at, scores + i);
  }
}

NIBBLE_AVX2 inline float largest(__m256 values) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// Scores become weights, zero outside [begin, end); the maximum and the sum go to the partial.
NIBBLE_AVX2 inline void weigh(float* scores, int begin, int end, float scale, float* partial, int head_dim) {
  const __m256 none = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int first = begin / lanes * lanes;
  __m256 maxima = none;
  for (int at = first; at < end; at += lanes) {
    const __m256i position = _mm256_add_epi32(lane, _mm256_set1_epi32(at));
    const __m256i unseen = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), position),
                                           _mm256_cmpgt_epi32(position, _mm256_set1_epi32(end - 1)));
    const __m256 score = _mm256_blendv_ps(_mm256_mul_ps(_mm256_load_ps(scores + at), _mm256_set1_ps(scale)),
                                          none, _mm256_castsi256_ps(unseen));
    _mm256_store_ps(scores + at, score);
    maxima = _mm256_max_ps(score, maxima);
  }
  const float maximum = largest(maxima);
  __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};  // positions 0..7 and 8..15 of a run
  for (int at = first; at < end; at += lanes) {
    const __m256 weight =
        fixed_exp_eight(_mm256_sub_ps(_mm256_load_ps(scores + at), _mm256_set1_ps(maximum)));
    _mm256_store_ps(scores + at, weight);
    __m256& sum = sums[at / lanes % 2];
    sum = _mm256_add_ps(sum, weight);
  }
  const __m256 eight = _mm256_add_ps(sums[0], sums[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  *partial_maximum(partial, head_dim) = maximum;
  *partial_weight(partial, head_dim) = _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// The partials of `queries` queries take in sixteen dimensions (eight from `d` on and eight from d + 16
// on) of the values of positions [begin, end).
template <class Stored, int queries>
NIBBLE_AVX2 inline void add_dimensions(const float (*weights)[kv_split], const SplitView& split, int d,
                                       int begin, int end, float* partials) {
  const int head_dim = split.head_dim, stride = partial_floats(head_dim);
  const int half = d % kv_chunk / lanes;
  const bool begins_line = d * Stored::bytes % 64 == 0;
  __m256 sums[queries][2];
  for (int i = 0; i < queries; ++i) {
    for (int part = 0; part < 2; ++part)
      sums[i][part] = _mm256_loadu_ps(partials + i * stride + d + part * 16);
  }
  for (int position = begin; position < end;) {
    RunChunks<Stored::bytes> run(split, position, end, d / kv_chunk * kv_chunk);
    for (; position < run.end; ++position, run.next()) {
      if (begins_line) run.ask_ahead();
      __m256 values[2];
      Stored::values(run.value, half, values);
      for (int i = 0; i < queries; ++i) {
        const __m256 weight = _mm256_broadcast_ss(&weights[i][position]);
        for (int part = 0; part < 2; ++part)
          sums[i][part] = _mm256_fmadd_ps(weight, values[part], sums[i][part]);
      }
    }
  }
  for (int i = 0; i < queries; ++i) {
    for (int part = 0; part < 2; ++part)
      _mm256_storeu_ps(partials + i * stride + d + part * 16, sums[i][part]);
  }
}

template <class Stored>
NIBBLE_AVX2 void add_values(int count, const float (*weights)[kv_split], const SplitView& split, int begin,
                            int end, float* partials) {
  if (begin >= end) return;
  const int stride = partial_floats(split.head_dim);
  for (int chunk = 0; chunk < split.head_dim; chunk += kv_chunk) {
    for (int d = chunk; d < chunk + 2 * lanes; d += lanes) {
      int i = 0;
      for (; i + 4 <= count; i += 4)
        add_dimensions<Stored, 4>(weights + i, split, d, begin, end, partials + i * stride);
      for (; i < count; ++i)
        add_dimensions<Stored, 1>(weights + i, split, d, begin, end, partials + i * stride);
    }
  }
}

template <class Stored>
NIBBLE_AVX2 void attend(const QueryTile& tile, const SplitView& split, float* partials) {
  const int head_dim = split.head_dim, stride = partial_floats(head_dim);
  alignas(32) float scores[max_tile_queries][kv_split];
  score_tile<Stored>(tile, split, scores);
  for (int i = 0; i < tile.count; ++i) {
    weigh(scores[i], tile.begin[i], tile.end[i], tile.scale, partials + i * stride, head_dim);
    for (int d = 0; d < head_dim; d += lanes)
      _mm256_storeu_ps(partials + i * stride + d, _mm256_setzero_ps());
  }
  // Positions that all queries see are added together; what lies before and after, query by query, so that
  // no query touches a value that it does not see.
  const int shared_begin = std::min(tile.begin[tile.count - 1], tile.end[0]), shared_end = tile.end[0];
  for (int i = 0; i < tile.count; ++i) {
    add_values<Stored>(1, scores + i, split, tile.begin[i], std::min(shared_begin, tile.end[i]),
                       partials + i * stride);
  }
  add_values<Stored>(tile.count, scores, split, shared_begin, shared_end, partials);
  for (int i = 0; i < tile.count; ++i) {
    add_values<Stored>(1, scores + i, split, std::max(shared_end, tile.begin[i]), tile.end[i],
                       partials + i * stride);
  }
}

}  // namespace

bool avx2_attention_supported() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  // clang 14 does not know F16C by name.
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

NIBBLE_AVX2 void avx2_attend_split(const QueryTile& tile, const SplitView& split, float* partials) {
  switch (split.dtype) {
    case DType::bf16: return attend<Bf16s>(tile, split, partials);
    case DType::f8_e4m3: return attend<E4m3s>(tile, split, partials);
    default: return attend<Floats>(tile, split, partials);
  }
}

}  // namespace nibble
