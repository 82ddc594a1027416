// How a chain of products is continued by two k, in lanes: by one VDPBF16PS or by two fused multiply-adds,
// with the same bits. A processor of AMD (Zen 4, Zen 5) starts a VDPBF16PS as often as a multiply-add, so
// pairs are twice as fast. One of Intel (Sapphire and Emerald Rapids) starts one every second cycle and four
// multiply-adds meanwhile.
#pragma once

#include <cstdint>

#include "ops/linear/simd512.h"

namespace nibble {

// Both take pairs as the decoders give them (block_groups512.h): the chain's next k in a word's upper half,
// the one behind it in the lower half.
//   Values, Stored    pairs of weights or inputs in lanes, in registers and in memory
//   add               a chain continued by a pair
//   plain_inputs      at most: bfloat16 weights by so few go by dot_tile_avx512.h, which decodes nothing
// PairProducts alone want AVX-512 BF16: a compiler makes VDPBF16PS of nothing but its name.
struct PairProducts {
  using Values = __m512bh;
  using Stored = std::uint32_t[16];
  static constexpr int plain_inputs = 0;

  NIBBLE_512 static Values of(__m512i pairs) { return (__m512bh)pairs; }
  NIBBLE_512 static void store(Stored& to, __m512i pairs) { _mm512_store_si512(to, pairs); }
  NIBBLE_512 static Values load(const Stored& from) { return (__m512bh)_mm512_load_si512(from); }
  // One lane's in all lanes.
  NIBBLE_512 static Values spread(const Stored& from, int lane) {
    return (__m512bh)_mm512_set1_epi32(static_cast<int>(from[lane]));
  }
  NIBBLE_512 static __m512 add(__m512 chain, const Values& weights, const Values& inputs) {
    return _mm512_dpbf16_ps(chain, weights, inputs);
  }
};

struct SingleProducts {
  struct Values {
    __m512 first, second;
  };
  using Stored = float[2][16];
  static constexpr int plain_inputs = 5;

  NIBBLE_512 static Values of(__m512i pairs) {
    const __m512i upper_halves = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm512_castsi512_ps(_mm512_and_si512(pairs, upper_halves)),
            _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
  }
  NIBBLE_512 static void store(Stored& to, __m512i pairs) {
    const Values values = of(pairs);
    _mm512_store_ps(to[0], values.first);
    _mm512_store_ps(to[1], values.second);
  }
  NIBBLE_512 static Values load(const Stored& from) {
    return {_mm512_load_ps(from[0]), _mm512_load_ps(from[1])};
  }
  NIBBLE_512 static Values spread(const Stored& from, int lane) {
    return {_mm512_set1_ps(from[0][lane]), _mm512_set1_ps(from[1][lane])};
  }
  NIBBLE_512 static __m512 add(__m512 chain, const Values& weights, const Values& inputs) {
    return _mm512_fmadd_ps(weights.second, inputs.second,
                           _mm512_fmadd_ps(weights.first, inputs.first, chain));
  }
};

}  // namespace nibble
