// Weights of sixteen steps at once, decoded to bfloat16 in the pairs that VDPBF16PS wants. A lane is a step:
// of sixteen steps of one row, or the same step of sixteen rows.
#pragma once

#include "ops/linear/dot_kernels.h"
#include "ops/linear/simd512.h"

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

NIBBLE_512 inline __m128i part_at(const std::uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
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

// A format's decoder turns lanes' bytes into pairs, in two halves. Word w of `words` has each lane's bytes
// 4w .. 4w + 3, in an order of the format's own. A lane is one of sixteen rows, whose parts of 16 bytes
// come as transpose_parts wants them (take), or one of sixteen steps of a row, read in lines of 64 bytes
// (read). Then pairs(words, c, out) gives those of k = 8c .. 8c + 7 as pair_order has them.
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
  NIBBLE_512 void take(const __m512i (&rows)[4], __m512i* words) const {
    __m512i ordered[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) ordered[r] = _mm512_shuffle_epi8(rows[r], order);
    transpose_parts(ordered, words);
  }
  NIBBLE_512 void read(const __m512i (&lines)[4], __m512i* words) const {
    const __m512i a = _mm512_unpacklo_epi32(lines[0], lines[1]),
                  b = _mm512_unpackhi_epi32(lines[0], lines[1]);
    const __m512i c = _mm512_unpacklo_epi32(lines[2], lines[3]),
                  d = _mm512_unpackhi_epi32(lines[2], lines[3]);
    words[0] = _mm512_permutex2var_epi8(a, even_words, c);
    words[1] = _mm512_permutex2var_epi8(a, odd_words, c);
    words[2] = _mm512_permutex2var_epi8(b, even_words, d);
    words[3] = _mm512_permutex2var_epi8(b, odd_words, d);
  }
  NIBBLE_512 void pairs(const __m512i* words, int c, __m512i (&out)[4]) const {
    out[0] = _mm512_permutexvar_epi16(words[c], values);
    out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words[c], 4), values);
    out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words[c], 8), values);
    out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words[c], 12), values);
  }
};

struct Bf16Decoder {
  static constexpr int step_bytes = 64, word_count = 16, line_count = 16;
  static constexpr bool scaled = false;
  __m512i order;

  NIBBLE_512 Bf16Decoder() {
    order = _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 0, 1, 12, 13, 8, 9, 6, 7, 2, 3, 14, 15, 10, 11));
  }
  NIBBLE_512 void take(const __m512i (&rows)[4], __m512i* words) const {
    __m512i ordered[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) ordered[r] = _mm512_shuffle_epi8(rows[r], order);
    transpose_parts(ordered, words);
  }
  NIBBLE_512 void read(const __m512i (&lines)[16], __m512i* words) const {
    __m512i ordered[16];
#pragma GCC unroll 16
    for (int w = 0; w < 16; ++w) ordered[w] = _mm512_shuffle_epi8(lines[w], order);
    transpose_words(ordered);
#pragma GCC unroll 16
    for (int w = 0; w < 16; ++w) words[w] = ordered[w];
  }
  NIBBLE_512 void pairs(const __m512i* words, int c, __m512i (&out)[4]) const {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) out[j] = words[4 * c + j];
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
  __m512i low[2], high[2], even_bytes, odd_bytes, first_words, second_words;

  NIBBLE_512 Q8Decoder() {
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_loadu_si512(q8_magnitudes.low + 64 * i);
      high[i] = _mm512_loadu_si512(q8_magnitudes.high + 64 * i);
    }
    // Lower bytes are in the first register, upper ones in the second.
    const auto same = [](int lane) { return lane; };
    static constexpr int even[4] = {2, 64 + 2, 0, 64 + 0}, odd[4] = {3, 64 + 3, 1, 64 + 1};
    static constexpr int natural[4] = {0, 1, 2, 3};
    even_bytes = two_register_bytes(same, even);
    odd_bytes = two_register_bytes(same, odd);
    const auto first = [](int lane) { return 16 * (lane / 8) + 8 * (lane % 2) + lane / 2 % 4; };
    first_words = two_register_bytes(first, natural);
    second_words = two_register_bytes([&](int lane) { return first(lane) + 4; }, natural);
  }
  NIBBLE_512 void take(const __m512i (&rows)[4], __m512i* words) const { transpose_parts(rows, words); }
  // Line i has steps 2i and 2i + 1, eight words each.
  NIBBLE_512 void read(const __m512i (&lines)[8], __m512i* words) const {
    __m512i fours[2][4];  // part 2h + p of [q][w]: word 4p + w of step 8q + h and the three after next
#pragma GCC unroll 2
    for (int q = 0; q < 2; ++q) {
      const __m512i four[4] = {lines[4 * q], lines[4 * q + 1], lines[4 * q + 2], lines[4 * q + 3]};
      transpose_parts(four, fours[q]);
    }
#pragma GCC unroll 4
    for (int w = 0; w < 4; ++w) {
      words[w] = _mm512_permutex2var_epi8(fours[0][w], first_words, fours[1][w]);
      words[4 + w] = _mm512_permutex2var_epi8(fours[0][w], second_words, fours[1][w]);
    }
  }
  // A magnitude has seven bits, as many as the permutation looks at; its sign goes to the upper byte.
  NIBBLE_512 void two_pairs(__m512i codes, __m512i& even, __m512i& odd) const {
    const __m512i magnitudes = _mm512_abs_epi8(codes);
    const __m512i lower = _mm512_permutex2var_epi8(low[0], magnitudes, low[1]);
    const __m512i unsigned_upper = _mm512_permutex2var_epi8(high[0], magnitudes, high[1]);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i upper = _mm512_ternarylogic_epi64(unsigned_upper, codes, sign, 0xf8);  // a | (b & c)
    even = _mm512_permutex2var_epi8(lower, even_bytes, upper);
    odd = _mm512_permutex2var_epi8(lower, odd_bytes, upper);
  }
  NIBBLE_512 void pairs(const __m512i* words, int c, __m512i (&out)[4]) const {
    two_pairs(words[2 * c], out[0], out[2]);
    two_pairs(words[2 * c + 1], out[1], out[3]);
  }
};

// Inputs [begin, end), in groups of input_group: for each step, sixteen words of two k as `order` pairs them,
// each of all the group's inputs. begin is a multiple of input_group; a short group is filled with zeros.
NIBBLE_512 inline void pack_input_groups(const DotInputs& inputs, int begin, int end, __m512i order) {
  const int steps = inputs.rows.cols / dot_step;
  for (int first = begin; first < end; first += input_group) {
    std::uint32_t* out = reinterpret_cast<std::uint32_t*>(inputs.prepared) +
                         static_cast<std::int64_t>(first / input_group) * steps * 16 * input_group;
    for (int step = 0; step < steps; ++step) {
      __m512i words[16];
      for (int i = 0; i < input_group; ++i) {
        words[i] = first + i < end ? bf16_step(inputs.rows[first + i] + step * dot_step, order)
                                   : _mm512_setzero_si512();
      }
      transpose_words(words);
      for (int j = 0; j < 16; ++j, out += input_group) _mm512_store_si512(out, words[j]);
    }
  }
}

// A matrix as rows of steps.
struct StepRows {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::int64_t row_steps = 0;
};
inline StepRows steps_of(const Bf16Matrix& matrix) {
  return {reinterpret_cast<const std::uint8_t*>(matrix.data), nullptr, matrix.cols / dot_step};
}
inline StepRows steps_of(const Q8Matrix& matrix) {
  return {reinterpret_cast<const std::uint8_t*>(matrix.codes), matrix.scales, matrix.cols / dot_step};
}
inline StepRows steps_of(const Mxfp4Checkpoint& matrix) {
  return {matrix.blocks, matrix.scales, matrix.cols / dot_step};
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

// One step of sixteen rows, a lane a row: pairs[4c + j] as the decoder gives them, the scales of its codes.
struct alignas(64) RowsStep {
  std::uint32_t pairs[16][tile_rows];
  float halves[tile_rows], scales[tile_rows];
  bool halved;
};

// `rows` of them exist; the others repeat the last one.
template <class Decoder>
NIBBLE_512 inline void decode_rows(const Decoder& decoder, const StepRows& matrix, int row, int rows,
                                   int step, RowsStep& out) {
  const auto at = [&](int r) {
    return matrix.codes + ((row + (r < rows ? r : rows - 1)) * matrix.row_steps + step) * Decoder::step_bytes;
  };
  __m512i words[Decoder::word_count];
#pragma GCC unroll 4
  for (int part = 0; part < Decoder::step_bytes; part += 16) {
    __m512i registers[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      registers[r] = _mm512_castsi128_si512(part_at(at(r) + part));
      registers[r] = _mm512_inserti32x4(registers[r], part_at(at(r + 4) + part), 1);
      registers[r] = _mm512_inserti32x4(registers[r], part_at(at(r + 8) + part), 2);
      registers[r] = _mm512_inserti32x4(registers[r], part_at(at(r + 12) + part), 3);
    }
    decoder.take(registers, words + part / 4);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    __m512i pairs[4];
    decoder.pairs(words, c, pairs);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) _mm512_store_si512(out.pairs[4 * c + j], pairs[j]);
  }
  if constexpr (Decoder::scaled) {
    alignas(16) std::uint8_t bytes[tile_rows];
    for (int r = 0; r < tile_rows; ++r)
      bytes[r] = matrix.scales[(row + (r < rows ? r : rows - 1)) * matrix.row_steps + step];
    const Scales512 scale = scales_of(part_at(bytes));
    out.halved = scale.halved;
    _mm512_store_ps(out.halves, scale.half);
    _mm512_store_ps(out.scales, scale.scale);
  }
}

}  // namespace nibble
