#include "ops/row/row_kernels_avx2.h"

#include <immintrin.h>

#include <cmath>
#include <limits>

#include "ops/fixed_math.h"
#include "ops/fixed_math_avx2.h"
#include "ops/row/clamped_swiglu.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_AVX2 __attribute__((target("avx2,fma")))

namespace nibble::avx2_rows {
namespace {

constexpr int lanes = 8, lane_count = 16;

NIBBLE_AVX2 inline __m256 round_to_bf16(__m256 value) {
  const __m256i wide = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(wide, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(wide, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(wide, _mm256_set1_epi32(0x00400000));
  const __m256i chosen =
      _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
  return _mm256_castsi256_ps(_mm256_and_si256(chosen, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Four values of each half, as a shuffle of two registers leaves them: 0 1 4 5 2 3 6 7.
NIBBLE_AVX2 inline __m256 in_order(__m256 mixed) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}

// The fixed tree over lanes 0..7 and 8..15.
NIBBLE_AVX2 inline float tree_sum(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

NIBBLE_AVX2 float add_and_square(float* x, const float* delta, int n) {
  __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};  // lanes 0..7 and 8..15
  int i = 0;
  for (; i + lane_count <= n; i += lane_count) {
    for (int half = 0; half < 2; ++half) {
      const int at = i + half * lanes;
      __m256 value = _mm256_loadu_ps(x + at);
      if (delta != nullptr) {
        value = _mm256_add_ps(value, _mm256_loadu_ps(delta + at));
        _mm256_storeu_ps(x + at, value);
      }
      sums[half] = _mm256_add_ps(sums[half], _mm256_mul_ps(value, value));
    }
  }
  alignas(32) float all[lane_count];
  _mm256_store_ps(all, sums[0]);
  _mm256_store_ps(all + lanes, sums[1]);
  for (int lane = 0; i + lane < n; ++lane) {
    if (delta != nullptr) x[i + lane] += delta[i + lane];
    all[lane] += x[i + lane] * x[i + lane];
  }
  return tree_sum(_mm256_load_ps(all), _mm256_load_ps(all + lanes));
}

NIBBLE_AVX2 void scale(const float* x, float factor, const Bf16* weight, bool narrow, int n, float* out) {
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weight + i));
    const __m256 weights = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    const __m256 value =
        _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(factor)), weights);
    _mm256_storeu_ps(out + i, narrow ? round_to_bf16(value) : value);
  }
  for (; i < n; ++i) {
    const float value = x[i] * factor * weight[i].to_float();
    out[i] = narrow ? Bf16::from_float(value).to_float() : value;
  }
}

NIBBLE_AVX2 void rotate(float* x, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + lanes <= half; i += lanes) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
    const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
    _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
    _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

NIBBLE_AVX2 RowScan scan(const float* x, int n) {
  __m256 largest = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  // A finite number times 0 is 0; of the others comes a NaN, which stays.
  __m256 trace = _mm256_setzero_ps();
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    const __m256 value = _mm256_loadu_ps(x + i);
    largest = _mm256_max_ps(value, largest);
    trace = _mm256_add_ps(trace, _mm256_mul_ps(value, _mm256_setzero_ps()));
  }
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  RowScan found{.largest = _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1))),
                .finite = _mm256_movemask_ps(_mm256_cmp_ps(trace, trace, _CMP_UNORD_Q)) == 0};
  for (; i < n; ++i) {
    if (!std::isfinite(x[i])) found.finite = false;
    if (x[i] > found.largest) found.largest = x[i];
  }
  return found;
}

NIBBLE_AVX2 double exp_sum(const float* x, float largest, int n) {
  __m256d sums[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  int i = 0;
  for (; i + lane_count <= n; i += lane_count) {
    for (int half = 0; half < 2; ++half) {
      const __m256 weight =
          fixed_exp_eight(_mm256_sub_ps(_mm256_loadu_ps(x + i + half * lanes), _mm256_set1_ps(largest)));
      sums[2 * half] = _mm256_add_pd(sums[2 * half], _mm256_cvtps_pd(_mm256_castps256_ps128(weight)));
      sums[2 * half + 1] =
          _mm256_add_pd(sums[2 * half + 1], _mm256_cvtps_pd(_mm256_extractf128_ps(weight, 1)));
    }
  }
  alignas(32) double all[lane_count];
  for (int quarter = 0; quarter < 4; ++quarter) _mm256_store_pd(all + 4 * quarter, sums[quarter]);
  for (int lane = 0; i + lane < n; ++lane) all[lane] += fixed_exp(x[i + lane] - largest);
  const __m256d low = _mm256_add_pd(_mm256_load_pd(all), _mm256_load_pd(all + 8));
  const __m256d high = _mm256_add_pd(_mm256_load_pd(all + 4), _mm256_load_pd(all + 12));
  const __m256d four = _mm256_add_pd(low, high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

NIBBLE_AVX2 void weigh(const float* x, float largest, float temperature, int n, float* out) {
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    const __m256 below = _mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(largest));
    _mm256_storeu_ps(out + i, fixed_exp_eight(_mm256_div_ps(below, _mm256_set1_ps(temperature))));
  }
  for (; i < n; ++i) out[i] = fixed_exp((x[i] - largest) / temperature);
}

namespace {

// Eight at once. Of a NaN and a limit the second operand of a minimum or maximum comes out, which is the NaN.
NIBBLE_AVX2 inline __m256 gated_eight(__m256 gate, __m256 up, const GatedUnit& unit, bool narrow) {
  const __m256 most = _mm256_set1_ps(unit.limit), least = _mm256_set1_ps(-unit.limit),
               one = _mm256_set1_ps(1.0f);
  gate = _mm256_min_ps(most, gate);
  up = _mm256_min_ps(most, _mm256_max_ps(least, up));
  const __m256 x = _mm256_mul_ps(_mm256_set1_ps(unit.alpha), gate);
  const __m256 falling = fixed_exp_eight(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
  const __m256 sigmoid = _mm256_div_ps(one, _mm256_add_ps(one, falling));
  const __m256 value =
      _mm256_mul_ps(_mm256_mul_ps(gate, sigmoid), _mm256_add_ps(up, _mm256_set1_ps(unit.offset)));
  return narrow ? round_to_bf16(value) : value;
}

}  // namespace

NIBBLE_AVX2 void swiglu(const float* totals, const Bf16* bias, float limit, bool narrow, int n, float* out) {
  const GatedUnit unit = gpt_oss_unit(limit);
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    // A pair's biases are the halves of a word.
    const __m256i biases = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bias + 2 * i));
    const __m256 low = _mm256_loadu_ps(totals + 2 * i), high = _mm256_loadu_ps(totals + 2 * i + lanes);
    const __m256 gates = _mm256_add_ps(in_order(_mm256_shuffle_ps(low, high, 0x88)),
                                       _mm256_castsi256_ps(_mm256_slli_epi32(biases, 16)));
    const __m256 ups = _mm256_add_ps(
        in_order(_mm256_shuffle_ps(low, high, 0xdd)),
        _mm256_castsi256_ps(_mm256_and_si256(biases, _mm256_set1_epi32(static_cast<int>(0xffff0000u)))));
    _mm256_storeu_ps(out + i, gated_eight(gates, ups, unit, narrow));
  }
  for (; i < n; ++i) out[i] = clamped_swiglu(totals + 2 * i, bias + 2 * i, limit, narrow);
}

NIBBLE_AVX2 void gate(const float* gates, const float* ups, const GatedUnit& unit, bool narrow, int n,
                      float* out) {
  int i = 0;
  for (; i + lanes <= n; i += lanes)
    _mm256_storeu_ps(out + i,
                     gated_eight(_mm256_loadu_ps(gates + i), _mm256_loadu_ps(ups + i), unit, narrow));
  for (; i < n; ++i) {
    const float value = gated(gates[i], ups[i], unit);
    out[i] = narrow ? Bf16::from_float(value).to_float() : value;
  }
}

NIBBLE_AVX2 float dot(const float* a, const float* b, int n) {
  __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};  // lanes 0..7 and 8..15
  int i = 0;
  for (; i + lane_count <= n; i += lane_count) {
    for (int half = 0; half < 2; ++half) {
      const int at = i + half * lanes;
      sums[half] = _mm256_fmadd_ps(_mm256_loadu_ps(a + at), _mm256_loadu_ps(b + at), sums[half]);
    }
  }
  if (i == n) return tree_sum(sums[0], sums[1]);
  alignas(32) float all[lane_count];
  _mm256_store_ps(all, sums[0]);
  _mm256_store_ps(all + lanes, sums[1]);
  for (int lane = 0; i + lane < n; ++lane) all[lane] = std::fma(a[i + lane], b[i + lane], all[lane]);
  return tree_sum(_mm256_load_ps(all), _mm256_load_ps(all + lanes));
}

NIBBLE_AVX2 void add_scaled(float* sum, float factor, const float* x, int n) {
  const __m256 factors = _mm256_set1_ps(factor);
  int i = 0;
  for (; i + lanes <= n; i += lanes)
    _mm256_storeu_ps(sum + i, _mm256_fmadd_ps(factors, _mm256_loadu_ps(x + i), _mm256_loadu_ps(sum + i)));
  for (; i < n; ++i) sum[i] = std::fma(factor, x[i], sum[i]);
}

}  // namespace nibble::avx2_rows
