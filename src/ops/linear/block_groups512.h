// Weights of sixteen steps at once, decoded to bfloat16 in pairs of k that continue a chain. A lane is a
// step: of sixteen steps of one row, or the same step of sixteen rows.
#pragma once

#include "ops/linear/chain_products512.h"
#include "ops/linear/dot_kernels.h"
#include "ops/linear/simd512.h"
#include "ops/linear/step_rows.h"
#include "ops/linear/tile_rows512.h"

namespace nibble {

// Within eight k, the pairs (low, high): (2, 0) and (6, 4) continue the even chain, (3, 1) and (7, 5) the odd
// one.
inline constexpr int pair_order[8] = {2, 0, 6, 4, 3, 1, 7, 5};

// For bf16_step.
NIBBLE_512 inline __m512i pair_order_words() {
  alignas(64) std::uint16_t order[32];
  for (int w = 0; w < 32; ++w)
    order[w] = static_cast<std::uint16_t>(2 * (8 * (w / 8) + pair_order[w % 8]) + 1);
  return _mm512_load_si512(order);
}

// Indices that bring bytes of two registers together, for _mm512_permutex2var_epi8: byte b of word w is byte
// bytes[b] of the 32 words' at(w).
template <class At>
NIBBLE_512 inline __m512i two_register_bytes(const At& at, const int (&bytes)[4]) {
  alignas(64) std::uint8_t indices[64];
  for (int w = 0; w < 16; ++w) {
    for (int b = 0; b < 4; ++b) indices[4 * w + b] = static_cast<std::uint8_t>(4 * at(w) + bytes[b]);
  }
  return _mm512_load_si512(indices);
}

// A format's decoder turns lanes' bytes into pairs, in two halves. Words 4p .. 4p + 3 have each lane's part
// p, that is, bytes 16p .. 16p + 15, in an order of the format's own. A lane is one of sixteen rows, whose
// parts come as transpose_parts wants them (take), or one of sixteen steps of a row, read in lines of 64
// bytes (read). Then pairs(words, c, parity, out) gives those of k = 8c .. 8c + 7 that continue one chain, as
// pair_order has them.
struct Mxfp4Decoder {
  static constexpr int step_bytes = mxfp4_block_bytes, word_count = 4, line_count = 4;
  static constexpr bool scaled = true;
  __m512i values, order, even_words, odd_words;

  NIBBLE_512 Mxfp4Decoder() {
    // Twice, as the permutation looks at five bits of a word and a code has four.
    alignas(64) static constexpr std::uint16_t bf16_of_code[32] = {
        0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
        0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
        0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
    values = _mm512_load_si512(bf16_of_code);
    // The codes of k = 2, 3, 6, 7 in a word's lower half and of k = 0, 1, 4, 5 in its upper one are pairs but
    // for a shift.
    static constexpr int bytes[4] = {1, 3, 0, 2};
    order = two_register_bytes([](int word) { return word % 4; }, bytes);
    const auto even = [](int lane) { return 16 * (lane / 8) + 4 * (lane % 4) + lane / 4 % 2; };
    even_words = two_register_bytes(even, bytes);
    odd_words = two_register_bytes([&](int lane) { return even(lane) + 2; }, bytes);
  }
  NIBBLE_512_INLINE void take(const __m512i (&rows)[4], __m512i* words) const {
    __m512i ordered[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) ordered[r] = _mm512_shuffle_epi8(rows[r], order);
    transpose_parts(ordered, words);
  }
  NIBBLE_512_INLINE void read(const __m512i (&lines)[4], __m512i* words) const {
    const __m512i a = _mm512_unpacklo_epi32(lines[0], lines[1]),
                  b = _mm512_unpackhi_epi32(lines[0], lines[1]);
    const __m512i c = _mm512_unpacklo_epi32(lines[2], lines[3]),
                  d = _mm512_unpackhi_epi32(lines[2], lines[3]);
    words[0] = _mm512_permutex2var_epi8(a, even_words, c);
    words[1] = _mm512_permutex2var_epi8(a, odd_words, c);
    words[2] = _mm512_permutex2var_epi8(b, even_words, d);
    words[3] = _mm512_permutex2var_epi8(b, odd_words, d);
  }
  NIBBLE_512_INLINE void pairs(const __m512i* words, int c, int parity, __m512i (&out)[2]) const {
    const __m512i first = parity == 0 ? words[c] : _mm512_srli_epi16(words[c], 4);
    const __m512i second = _mm512_srli_epi16(words[c], parity == 0 ? 8 : 12);
    out[0] = _mm512_permutexvar_epi16(first, values);
    out[1] = _mm512_permutexvar_epi16(second, values);
  }
};

struct Bf16Decoder {
  static constexpr int step_bytes = 64, word_count = 16, line_count = 16;
  static constexpr bool scaled = false;
  __m512i order;

  NIBBLE_512 Bf16Decoder() {
    order = _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 0, 1, 12, 13, 8, 9, 6, 7, 2, 3, 14, 15, 10, 11));
  }
  NIBBLE_512_INLINE void take(const __m512i (&rows)[4], __m512i* words) const {
    __m512i ordered[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) ordered[r] = _mm512_shuffle_epi8(rows[r], order);
    transpose_parts(ordered, words);
  }
  NIBBLE_512_INLINE void read(const __m512i (&lines)[16], __m512i* words) const {
    __m512i ordered[16];
#pragma GCC unroll 16
    for (int w = 0; w < 16; ++w) ordered[w] = _mm512_shuffle_epi8(lines[w], order);
    transpose_words(ordered);
#pragma GCC unroll 16
    for (int w = 0; w < 16; ++w) words[w] = ordered[w];
  }
  NIBBLE_512_INLINE void pairs(const __m512i* words, int c, int parity, __m512i (&out)[2]) const {
    for (int j = 0; j < 2; ++j) out[j] = words[4 * c + 2 * parity + j];
  }
};

// The bfloat16 of 0 .. 127, its bytes apart.
struct Q8Magnitudes {
  std::uint8_t low[128], high[128];
};
inline constexpr Q8Magnitudes q8_magnitudes = [] {
  Q8Magnitudes table{};
  for (int i = 0; i < 128; ++i) {
    const std::uint16_t bits = Bf16::from_float(static_cast<float>(i)).bits;
    table.low[i] = static_cast<std::uint8_t>(bits);
    table.high[i] = static_cast<std::uint8_t>(bits >> 8);
  }
  return table;
}();

struct Q8Decoder {
  static constexpr int step_bytes = q8_block, word_count = 8, line_count = 8;
  static constexpr bool scaled = true;
  __m512i low[2], high[2], order, even_bytes, odd_bytes;

  // Word 2c + parity has the bytes of its first pairs in the lower halves of its parts, of its second ones in
  // the upper halves, four lanes a part.
  NIBBLE_512 Q8Decoder() {
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_loadu_si512(q8_magnitudes.low + 64 * i);
      high[i] = _mm512_loadu_si512(q8_magnitudes.high + 64 * i);
    }
    order = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 0, 6, 4, 3, 1, 7, 5, 10, 8, 14, 12, 11, 9, 15, 13));
    // For read: lane s has eight bytes in a row, at 16 * (s % 4) + 8 * (s / 8) of register s % 8 / 4.
    alignas(64) std::uint8_t bytes[2][64];
    for (int i = 0; i < 128; ++i) {
      const int s = i / 8, parity = i / 4 % 2, word = i / 2 % 2, byte = i % 2;
      bytes[parity][16 * (s / 4) + 8 * word + 2 * (s % 4) + byte] = static_cast<std::uint8_t>(
          64 * (s % 8 / 4) + 16 * (s % 4) + 8 * (s / 8) + pair_order[4 * parity + 2 * word + byte]);
    }
    even_bytes = _mm512_load_si512(bytes[0]);
    odd_bytes = _mm512_load_si512(bytes[1]);
  }
  NIBBLE_512_INLINE void take(const __m512i (&rows)[4], __m512i* words) const {
    __m512i r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) r[i] = _mm512_shuffle_epi8(rows[i], order);
    const __m512i a = _mm512_unpacklo_epi16(r[0], r[1]), b = _mm512_unpackhi_epi16(r[0], r[1]);
    const __m512i c = _mm512_unpacklo_epi16(r[2], r[3]), d = _mm512_unpackhi_epi16(r[2], r[3]);
    words[0] = _mm512_unpacklo_epi32(a, c);
    words[1] = _mm512_unpackhi_epi32(a, c);
    words[2] = _mm512_unpacklo_epi32(b, d);
    words[3] = _mm512_unpackhi_epi32(b, d);
  }
  // Line i has steps 2i and 2i + 1, eight bytes of each c.
  NIBBLE_512_INLINE void read(const __m512i (&lines)[8], __m512i* words) const {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m512i eights[4];  // of c = h and c = h + 2
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        eights[i] = h == 0 ? _mm512_unpacklo_epi64(lines[i], lines[4 + i])
                           : _mm512_unpackhi_epi64(lines[i], lines[4 + i]);
      const __m512i a = _mm512_shuffle_i32x4(eights[0], eights[1], 0x88),
                    b = _mm512_shuffle_i32x4(eights[2], eights[3], 0x88);
      const __m512i c = _mm512_shuffle_i32x4(eights[0], eights[1], 0xdd),
                    d = _mm512_shuffle_i32x4(eights[2], eights[3], 0xdd);
      words[2 * h] = _mm512_permutex2var_epi8(a, even_bytes, b);
      words[2 * h + 1] = _mm512_permutex2var_epi8(a, odd_bytes, b);
      words[4 + 2 * h] = _mm512_permutex2var_epi8(c, even_bytes, d);
      words[5 + 2 * h] = _mm512_permutex2var_epi8(c, odd_bytes, d);
    }
  }
  // A magnitude has seven bits, as many as the permutation looks at; its sign goes to the upper byte.
  NIBBLE_512_INLINE void pairs(const __m512i* words, int c, int parity, __m512i (&out)[2]) const {
    const __m512i codes = words[2 * c + parity], magnitudes = _mm512_abs_epi8(codes);
    const __m512i lower = _mm512_permutex2var_epi8(low[0], magnitudes, low[1]);
    const __m512i unsigned_upper = _mm512_permutex2var_epi8(high[0], magnitudes, high[1]);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i upper = _mm512_ternarylogic_epi64(unsigned_upper, codes, sign, 0xf8);  // a | (b & c)
    out[0] = _mm512_unpacklo_epi8(lower, upper);
    out[1] = _mm512_unpackhi_epi8(lower, upper);
  }
};

// A step of a group of inputs, as the decoders pair k.
template <class Products>
struct alignas(64) GroupStep {
  typename Products::Stored pairs[16];
};

// Inputs [begin, end), in groups of input_group: for each step, sixteen words of two k as `order` pairs them,
// each of all the group's inputs. begin is a multiple of input_group; a short group is filled with zeros.
template <class Products>
NIBBLE_512 inline void pack_input_groups(const DotInputs& inputs, int begin, int end, __m512i order) {
  const int steps = inputs.rows.cols / dot_step;
  for (int first = begin; first < end; first += input_group) {
    GroupStep<Products>* out = reinterpret_cast<GroupStep<Products>*>(inputs.prepared) +
                               static_cast<std::int64_t>(first / input_group) * steps;
    for (int step = 0; step < steps; ++step) {
      __m512i words[16];
      for (int i = 0; i < input_group; ++i) {
        words[i] = first + i < end ? bf16_step(inputs.rows[first + i] + step * dot_step, order)
                                   : _mm512_setzero_si512();
      }
      transpose_words(words);
      for (int j = 0; j < 16; ++j) Products::store(out[step].pairs[j], words[j]);
    }
  }
}

template <class Matrix>
struct DecoderOf;
template <>
struct DecoderOf<Bf16Matrix> {
  using Type = Bf16Decoder;
};
template <>
struct DecoderOf<Q8Matrix> {
  using Type = Q8Decoder;
};
template <>
struct DecoderOf<Mxfp4Checkpoint> {
  using Type = Mxfp4Decoder;
};

// One step of sixteen rows, a lane a row: pairs[4c + j] as the decoder gives them, and the scales of its
// codes.
template <class Products>
struct alignas(64) RowsStep {
  typename Products::Stored pairs[16];
  std::uint8_t scales[tile_rows];
  bool plain;  // none of them is 0 or 255
};

// A step's parts, as TileSteps has them, to words.
template <class Decoder>
NIBBLE_512_INLINE void take_parts(const Decoder& decoder, const std::uint8_t (*parts)[4][64],
                                  __m512i (&words)[Decoder::word_count]) {
#pragma GCC unroll 4
  for (int part = 0; part < Decoder::step_bytes / 16; ++part) {
    __m512i rows[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) rows[r] = _mm512_load_si512(parts[part][r]);
    decoder.take(rows, words + 4 * part);
  }
}

template <class Products, class Decoder>
NIBBLE_512 inline void decode_rows(const Decoder& decoder, const TileSteps<Decoder>& tile, int step,
                                   RowsStep<Products>& out) {
  __m512i words[Decoder::word_count];
  take_parts(decoder, tile.parts(step), words);
#pragma GCC unroll 8
  for (int half = 0; half < 8; ++half) {
    __m512i pairs[2];
    decoder.pairs(words, half / 2, half % 2, pairs);
    for (int j = 0; j < 2; ++j) Products::store(out.pairs[2 * half + j], pairs[j]);
  }
  out.plain = tile.plain();
  if constexpr (Decoder::scaled)
    _mm_store_si128(reinterpret_cast<__m128i*>(out.scales), part_at(tile.scales(step)));
}

// Adds a step's chains, a lane a row, times its scales to the totals of each input. What takes care is apart,
// so that nothing waits in memory for its calls.
template <bool scaled, int count>
NIBBLE_512_INLINE void add_to_totals(const __m512 (&even)[count], const __m512 (&odd)[count],
                                     const std::uint8_t* scales, bool plain, TileTotals* totals) {
  if (scaled && !plain) {
    for (int i = 0; i < count; ++i) {
      const __m512 sum = scaled_with_care(_mm512_add_ps(even[i], odd[i]), part_at(scales));
      _mm512_store_ps(totals[i], _mm512_add_ps(_mm512_load_ps(totals[i]), sum));
    }
    return;
  }
  const __m512 factors = scaled ? plain_factors(part_at(scales)) : _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int i = 0; i < count; ++i) {
    __m512 sum = _mm512_add_ps(even[i], odd[i]);
    if constexpr (scaled) sum = _mm512_mul_ps(sum, factors);
    _mm512_store_ps(totals[i], _mm512_add_ps(_mm512_load_ps(totals[i]), sum));
  }
}

}  // namespace nibble
