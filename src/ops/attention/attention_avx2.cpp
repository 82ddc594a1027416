#include <immintrin.h>

#include "ops/attention/attention_kernels.h"
#include "ops/linear/dot_tile.h"

// On each function, not on the file; see dot_tile_avx2.cpp.
#define NIBBLE_AVX2 __attribute__((target("avx2")))

namespace nibble {
namespace {

constexpr int lanes = 8;
static_assert(lanes == max_group_heads, "scores have one lane a head");

// Eight floats of a cached vector.
NIBBLE_AVX2 inline __m256 load_eight(const std::byte* from, std::int64_t element, DType dtype) {
  if (dtype == DType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(from) + element);
  const __m128i halves = _mm_loadu_si128(
      reinterpret_cast<const __m128i*>(reinterpret_cast<const std::uint16_t*>(from) + element));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// fixed_exp, operation for operation.
NIBBLE_AVX2 inline __m256 fixed_exp_eight(__m256 x) {
  const __m256 magic = _mm256_set1_ps(12582912.0f);
  const __m256 n = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), magic), magic);
  const __m256 r = _mm256_add_ps(_mm256_sub_ps(x, _mm256_mul_ps(n, _mm256_set1_ps(0.693359375f))),
                                 _mm256_mul_ps(n, _mm256_set1_ps(2.12194440e-4f)));
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  for (const float coefficient :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(coefficient));
  }
  const __m256 value =
      _mm256_add_ps(_mm256_add_ps(_mm256_mul_ps(p, _mm256_mul_ps(r, r)), r), _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_cvttps_epi32(n);
  const __m256i half =
      _mm256_srai_epi32(_mm256_add_epi32(exponent, _mm256_srli_epi32(exponent, 31)), 1);  // towards zero
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 second =
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23));
  __m256 result = _mm256_mul_ps(_mm256_mul_ps(value, first), second);
  result = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.33654f), _CMP_LT_OQ), result);
  result = _mm256_blendv_ps(result, _mm256_set1_ps(std::numeric_limits<float>::infinity()),
                            _mm256_cmp_ps(x, _mm256_set1_ps(88.72283f), _CMP_GT_OQ));
  return _mm256_blendv_ps(result, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

// q . k of all heads at once, one lane a head, in the order of dot_tile.h.
NIBBLE_AVX2 inline __m256 dot_heads(const float (*queries)[lanes], const float* key, int head_dim) {
  __m256 total = _mm256_setzero_ps();
  for (int step = 0; step < head_dim; step += dot_step) {
    __m256 even = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    for (int d = step; d < step + dot_step; d += 2) {
      even = _mm256_add_ps(even, _mm256_mul_ps(_mm256_load_ps(queries[d]), _mm256_broadcast_ss(key + d)));
      odd =
          _mm256_add_ps(odd, _mm256_mul_ps(_mm256_load_ps(queries[d + 1]), _mm256_broadcast_ss(key + d + 1)));
    }
    total = _mm256_add_ps(total, _mm256_add_ps(even, odd));
  }
  return total;
}

// sum[0 .. 8 * count) of one head += its weights times the values' dimensions from `dimension` on.
template <int count>
NIBBLE_AVX2 inline void add_values(const KvLayer& cache, std::span<const std::int32_t> pages, int kv_head,
                                   int dimension, int begin, int end, const float (*weights)[lanes], int head,
                                   float* sum) {
  __m256 sums[count];
  for (int i = 0; i < count; ++i) sums[i] = _mm256_loadu_ps(sum + dimension + i * lanes);
  for (int position = begin; position < end; ++position) {
    const std::int64_t at = kv_element(cache, pages, kv_head, position) + dimension;
    const __m256 weight = _mm256_broadcast_ss(&weights[position - begin][head]);
    for (int i = 0; i < count; ++i) {
      sums[i] = _mm256_add_ps(sums[i],
                              _mm256_mul_ps(weight, load_eight(cache.values, at + i * lanes, cache.dtype)));
    }
  }
  for (int i = 0; i < count; ++i) _mm256_storeu_ps(sum + dimension + i * lanes, sums[i]);
}

}  // namespace

NIBBLE_AVX2 void avx2_attend_split(const HeadGroup& group, const KvLayer& cache,
                                   std::span<const std::int32_t> pages, int begin, int end,
                                   HeadSoftmax* splits) {
  const int head_dim = cache.head_dim;
  alignas(32) float queries[max_head_dim][lanes] = {};  // lanes past the group's heads compute on zeros
  for (int head = 0; head < group.count; ++head) {
    for (int d = 0; d < head_dim; ++d) queries[d][head] = group.q[head * head_dim + d];
  }
  alignas(32) float scores[kv_split][lanes];
  alignas(32) float room[max_head_dim];
  __m256 maximum = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  for (int position = begin; position < end; ++position) {
    const std::int64_t at = kv_element(cache, pages, group.kv_head, position);
    const float* key = room;
    if (cache.dtype == DType::f32) {
      key = reinterpret_cast<const float*>(cache.keys) + at;
    } else {
      for (int d = 0; d < head_dim; d += lanes)
        _mm256_store_ps(room + d, load_eight(cache.keys, at + d, cache.dtype));
    }
    const __m256 score = _mm256_mul_ps(dot_heads(queries, key, head_dim), _mm256_set1_ps(group.scale));
    _mm256_store_ps(scores[position - begin], score);
    const __m256 takes =
        _mm256_or_ps(_mm256_cmp_ps(score, maximum, _CMP_GT_OQ), _mm256_cmp_ps(score, score, _CMP_UNORD_Q));
    maximum = _mm256_blendv_ps(maximum, score, takes);
  }
  __m256 weight_sum = _mm256_setzero_ps();
  for (int position = begin; position < end; ++position) {
    const __m256 weight = fixed_exp_eight(_mm256_sub_ps(_mm256_load_ps(scores[position - begin]), maximum));
    _mm256_store_ps(scores[position - begin], weight);
    weight_sum = _mm256_add_ps(weight_sum, weight);
  }
  alignas(32) float maxima[lanes], weights[lanes];
  _mm256_store_ps(maxima, maximum);
  _mm256_store_ps(weights, weight_sum);
  for (int head = 0; head < group.count; ++head) {
    splits[head].maximum = maxima[head];
    splits[head].weight = weights[head];
    int d = 0;
    for (; d + 8 * lanes <= head_dim; d += 8 * lanes)
      add_values<8>(cache, pages, group.kv_head, d, begin, end, scores, head, splits[head].sum);
    for (; d < head_dim; d += 4 * lanes)
      add_values<4>(cache, pages, group.kv_head, d, begin, end, scores, head, splits[head].sum);
  }
}

}  // namespace nibble
