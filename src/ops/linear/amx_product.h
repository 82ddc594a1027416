// Products on tiles, for any `Tiles` with the functions of AmxTiles: the tests have tiles in plain C++, so
// that packing and blocking are tested where there is no AMX.
//
// Weights are the first operand, 16 rows of 32 k, so that rows are decoded as they lie; inputs are packed as
// the second. Weights are scaled before they are multiplied, and the running total stays in the sums' tile: a
// power of two commutes with the step's sum within the bounds of dot_tile.h. A tile of rows with a block
// outside them, or without a value, goes another way (multiply_scaled_sums).
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/linear/block_groups512.h"

#define NIBBLE_AMX \
  __attribute__((  \
      target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma")))

namespace nibble::amx {

// k = 2j and 2j + 1 share a word.
NIBBLE_512 inline __m512i natural_order_words() {
  alignas(64) std::uint16_t order[32];
  for (int w = 0; w < 32; ++w) order[w] = static_cast<std::uint16_t>(2 * w + 1);
  return _mm512_load_si512(order);
}

// A step of a group of inputs, and of sixteen rows of weights: tiles as they are loaded.
struct alignas(64) InputTile {
  std::uint32_t pairs[16][input_group];
};
struct alignas(64) WeightTile {
  std::uint16_t rows[tile_rows][dot_step];
};
struct alignas(64) SumsTile {
  float rows[tile_rows][input_group];
};

constexpr int block_tiles = range_rows / tile_rows;
constexpr int long_panel = 32;     // steps of a block of rows that are decoded together: 64 KiB
constexpr int short_panel = 4;     // a cache line of MXFP4 codes a row; 8 KiB
constexpr int groups_at_once = 8;  // of inputs that share one decoding

// The scales of a block of rows for up to long_panel steps, as what decoding adds to exponents or multiplies
// by: words that are broadcast on their way from the cache.
struct alignas(64) BlockScales {
  std::uint32_t words[range_rows][long_panel];
};

// What a scale of MXFP4 adds to a bfloat16's exponent, in both halves of a word.
NIBBLE_512 inline __m512i scale_words(__m512i scales, const Mxfp4Decoder*) {
  const __m512i shifted = _mm512_slli_epi32(_mm512_sub_epi32(scales, _mm512_set1_epi32(127)), 7);
  return _mm512_mask_blend_epi16(0xaaaaaaaau, shifted, _mm512_slli_epi32(shifted, 16));
}
// The float that a scale of Q8 is. Beyond the bound there are only blocks of zeros, which must not meet an
// infinite offset on their way (decode_step).
NIBBLE_512 inline __m512i scale_words(__m512i scales, const Q8Decoder*) {
  return _mm512_slli_epi32(_mm512_min_epu32(scales, _mm512_set1_epi32(scale_byte_max)), 23);
}
NIBBLE_512 inline __m512i scale_words(__m512i scales, const Bf16Decoder*) { return scales; }

template <class Decoder>
NIBBLE_512 void read_scales(const StepRows& matrix, int row, int rows, int from, int steps,
                            BlockScales& scales) {
  if constexpr (!Decoder::scaled) return;
  for (int r = 0; r < rows; ++r) {
    const std::uint8_t* bytes = matrix.scales + (row + r) * matrix.row_steps + from;
    for (int step = 0; step < steps; step += 16) {
      const __mmask16 there = static_cast<__mmask16>((1u << std::min(16, steps - step)) - 1);
      const __m512i wide = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, bytes + step));
      _mm512_store_si512(scales.words[r] + step, scale_words(wide, static_cast<const Decoder*>(nullptr)));
    }
  }
}

// One step of one row as scaled bfloat16.
NIBBLE_512 inline __m512i decode_step(const std::uint8_t* codes, std::uint32_t scale, const Mxfp4Decoder*) {
  alignas(64) static constexpr std::uint16_t bf16_of_code[32] = {
      0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
      0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
      0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
  const __m512i values = _mm512_load_si512(bf16_of_code);
  // Both zeros become the positive one: no sum can tell.
  constexpr __mmask32 nonzero = 0xfefefefeu;
  const __m512i scaled = _mm512_maskz_add_epi16(nonzero, values, _mm512_set1_epi32(static_cast<int>(scale)));
  // byte * (1 + 2^12): the lower code in the low half, the upper one in the high half.
  const __m512i pairs = _mm512_madd_epi16(_mm512_cvtepu8_epi32(part_at(codes)), _mm512_set1_epi32(0x1001));
  return _mm512_permutexvar_epi16(pairs, scaled);
}

// Bytes become floats without a conversion: u = code + 128 in the lowest bits of 2^23 is 2^23 + u, and one
// fused multiply-add takes 2^23 + 128 off and scales what is left, exactly. Codes of even k and of odd k
// apart, their upper halves then make pairs.
NIBBLE_512 inline __m512i decode_step(const std::uint8_t* codes, std::uint32_t scale, const Q8Decoder*) {
  alignas(64) static constexpr std::array<std::uint32_t, 16> even_bytes = [] {
    std::array<std::uint32_t, 16> bytes{};
    for (std::uint32_t j = 0; j < 16; ++j) bytes[j] = 2 * j;
    return bytes;
  }();
  constexpr __mmask64 lowest_bytes = 0x1111111111111111ull;
  const __m512i even = _mm512_load_si512(even_bytes.data()),
                odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  const __m512i shifted = _mm512_castsi256_si512(
      _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), _mm256_set1_epi8(-128)));
  const __m512i two_to_23 = _mm512_set1_epi32(0x4b000000);
  const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(scale)));
  const __m512 offset = _mm512_mul_ps(factor, _mm512_set1_ps(-8388736.0f));
  const auto scaled = [&](__m512i bytes) NIBBLE_512 {
    const __m512i spread = _mm512_mask_permutexvar_epi8(two_to_23, lowest_bytes, bytes, shifted);
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(spread), factor, offset));
  };
  return _mm512_or_si512(_mm512_srli_epi32(scaled(even), 16), scaled(odd));
}

NIBBLE_512 inline __m512i decode_step(const std::uint8_t* codes, std::uint32_t, const Bf16Decoder*) {
  return _mm512_loadu_si512(codes);
}

// Steps [from, from + steps) of a block's rows [row, row + rows), of which there may be fewer than
// range_rows.
struct Piece {
  int row, rows, from, steps;
};

// Tile t, step s of a piece at panel[t * steps + s]. Rows past the matrix's end are zeros.
template <class Decoder>
NIBBLE_512 inline void decode_piece(const StepRows& matrix, const Piece& piece, const BlockScales& scales,
                                    WeightTile* panel) {
  constexpr std::int64_t stride = sizeof(WeightTile) / sizeof(std::uint16_t);
  const auto [row, rows, from, steps] = piece;
  const std::int64_t row_bytes = matrix.row_steps * Decoder::step_bytes;
  const std::uint8_t* codes = matrix.codes + row * row_bytes + from * Decoder::step_bytes;
  for (int r = 0; r < range_rows; ++r, codes += row_bytes) {
    const std::uint32_t* scale = scales.words[r] + from % long_panel;
    std::uint16_t* out = panel[r / tile_rows * steps].rows[r % tile_rows];
    if (r < rows) {
      // The block after this one has the same share of its lines fetched.
      for (int line = 0; line < steps * Decoder::step_bytes; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(codes + range_rows * row_bytes + line), _MM_HINT_T1);
#pragma GCC unroll 4
      for (int step = 0; step < steps; ++step) {
        _mm512_store_si512(out + step * stride,
                           decode_step(codes + step * Decoder::step_bytes, Decoder::scaled ? scale[step] : 0,
                                       static_cast<const Decoder*>(nullptr)));
      }
    } else {
      for (int step = 0; step < steps; ++step)
        _mm512_store_si512(out + step * stride, _mm512_setzero_si512());
    }
  }
}

// Whether weights may be scaled before they are summed: each scale in bounds, or its block nothing but zeros.
template <class Decoder>
NIBBLE_512 bool scales_commute(const StepRows& matrix, int row, int rows) {
  if constexpr (!Decoder::scaled) return true;
  const std::int64_t first = row * matrix.row_steps, end = (row + rows) * matrix.row_steps;
  const __m512i lowest = _mm512_set1_epi8(static_cast<char>(scale_byte_min));
  const __m512i width = _mm512_set1_epi8(static_cast<char>(scale_byte_max - scale_byte_min));
  for (std::int64_t at = first; at < end; at += 64) {
    const __mmask64 there = end - at >= 64 ? ~0ull : (1ull << (end - at)) - 1;
    const __m512i above = _mm512_sub_epi8(_mm512_maskz_loadu_epi8(there, matrix.scales + at), lowest);
    for (__mmask64 odd = _mm512_mask_cmpgt_epu8_mask(there, above, width); odd != 0; odd &= odd - 1) {
      const std::int64_t block = at + __builtin_ctzll(odd);
      if (matrix.scales[block] == E8m0::nan_bits) return false;
      const std::uint8_t magnitude = Decoder::step_bytes == mxfp4_block_bytes ? 0x77 : 0xff;
      for (int i = 0; i < Decoder::step_bytes; ++i) {
        if ((matrix.codes[block * Decoder::step_bytes + i] & magnitude) != 0) return false;
      }
    }
  }
  return true;
}

// A tile of rows as the contract says it, sums scaled after they are complete: slower, for any scales.
template <class Decoder>
NIBBLE_512 void multiply_scaled_sums(const StepRows& matrix, int row, int rows, int count,
                                     const InputTile* inputs, const TotalsSink& store) {
  const int steps = static_cast<int>(matrix.row_steps);
  Decoder decoder;
  alignas(64) TileTotals totals[input_group];
  TileSteps<Decoder> tile(matrix, row, rows);
  for (int first = 0; first < count; first += input_group, inputs += steps) {
    std::memset(totals, 0, sizeof totals);
    for (int step = 0; step < steps; ++step) {
      RowsStep<PairProducts> weights;
      tile.read(step);
      decode_rows(decoder, tile, step, weights);
      for (int i = 0; i < std::min(input_group, count - first); ++i) {
        __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int c = 0; c < 4; ++c) {
          std::uint16_t x[8];
          for (int j = 0; j < 4; ++j) std::memcpy(x + 2 * j, &inputs[step].pairs[4 * c + j][i], 4);
          for (int j = 0; j < 4; ++j) {
            const std::uint32_t pair =
                x[pair_order[2 * j]] | static_cast<std::uint32_t>(x[pair_order[2 * j + 1]]) << 16;
            sums[j / 2] = _mm512_dpbf16_ps(sums[j / 2], (__m512bh)_mm512_load_si512(weights.pairs[4 * c + j]),
                                           (__m512bh)_mm512_set1_epi32(static_cast<int>(pair)));
          }
        }
        add_to_totals<Decoder::scaled, 1>({sums[0]}, {sums[1]}, weights.scales, weights.plain, totals + i);
      }
    }
    for (int i = 0; i < std::min(input_group, count - first); ++i) store(row, first + i, totals[i]);
  }
}

// Where the tiles of weights of a block are: tile t, step s at first[t] + s * step_bytes, its rows stride
// apart.
struct BlockTiles {
  const std::byte* first[block_tiles];
  std::int64_t step_bytes, stride;
};

// Tiles 0 .. 3 are sums [tile of rows][group of inputs], 4 and 5 weights, 6 and 7 inputs.
template <class Tiles, int groups>
NIBBLE_AMX inline void add_products(const BlockTiles& weights, const InputTile* const (&inputs)[groups],
                                    int steps) {
  for (int step = 0; step < steps; ++step) {
    Tiles::template load<4>(weights.first[0] + step * weights.step_bytes, weights.stride);
    Tiles::template load<6>(inputs[0] + step, 64);
    Tiles::template multiply<0, 4, 6>();
    Tiles::template load<5>(weights.first[1] + step * weights.step_bytes, weights.stride);
    Tiles::template multiply<2, 5, 6>();
    if constexpr (groups == 2) {
      Tiles::template load<7>(inputs[1] + step, 64);
      Tiles::template multiply<1, 4, 7>();
      Tiles::template multiply<3, 5, 7>();
    }
  }
}
template <class Tiles, int groups>
NIBBLE_AMX inline void zero_sums() {
  Tiles::template zero<0>();
  Tiles::template zero<2>();
  if constexpr (groups == 2) {
    Tiles::template zero<1>();
    Tiles::template zero<3>();
  }
}
template <class Tiles, int groups>
NIBBLE_AMX inline void load_sums(const SumsTile* const (&sums)[block_tiles]) {
  Tiles::template load<0>(sums[0], 64);
  Tiles::template load<2>(sums[1], 64);
  if constexpr (groups == 2) {
    Tiles::template load<1>(sums[0] + 1, 64);
    Tiles::template load<3>(sums[1] + 1, 64);
  }
}
template <class Tiles, int groups>
NIBBLE_AMX inline void store_sums(SumsTile* const (&sums)[block_tiles]) {
  Tiles::template store<0>(sums[0], 64);
  Tiles::template store<2>(sums[1], 64);
  if constexpr (groups == 2) {
    Tiles::template store<1>(sums[0] + 1, 64);
    Tiles::template store<3>(sums[1] + 1, 64);
  }
}

// Where a block's rows are decoded to, and their scales.
struct Workspace {
  WeightTile panel[block_tiles * long_panel];
  BlockScales scales;
};

// bfloat16 is loaded from where it lies, but for a block with rows past the matrix's end; the rest is
// decoded.
template <class Decoder>
NIBBLE_512 BlockTiles tiles_of(const StepRows& matrix, const Piece& piece, const BlockScales& scales,
                               WeightTile* panel) {
  if (!Decoder::scaled && piece.rows == range_rows) {
    const std::int64_t stride = matrix.row_steps * Decoder::step_bytes;
    const std::byte* at = reinterpret_cast<const std::byte*>(matrix.codes) + piece.row * stride +
                          piece.from * Decoder::step_bytes;
    return {{at, at + tile_rows * stride}, Decoder::step_bytes, stride};
  }
  decode_piece<Decoder>(matrix, piece, scales, panel);
  return {
      {reinterpret_cast<const std::byte*>(panel), reinterpret_cast<const std::byte*>(panel + piece.steps)},
      sizeof(WeightTile),
      64};
}

// A block of rows by one or two groups of inputs: the sums stay in their tiles and each short piece of the
// rows is decoded on the way, so that memory, decoding and products overlap.
template <class Tiles, class Decoder, int groups>
NIBBLE_AMX void multiply_narrow(const StepRows& matrix, int row, int rows, const InputTile* inputs,
                                Workspace& work, SumsTile* const (&sums)[block_tiles]) {
  static_assert(long_panel % short_panel == 0);
  const int steps = static_cast<int>(matrix.row_steps);
  zero_sums<Tiles, groups>();
  for (int from = 0; from < steps; from += short_panel) {
    const Piece piece{row, rows, from, std::min(short_panel, steps - from)};
    if (from % long_panel == 0)
      read_scales<Decoder>(matrix, row, rows, from, std::min(long_panel, steps - from), work.scales);
    // In turns, so that writing a piece need not wait for the products of the one before.
    WeightTile* panel = work.panel + from / short_panel % 2 * block_tiles * short_panel;
    const BlockTiles weights = tiles_of<Decoder>(matrix, piece, work.scales, panel);
    const InputTile* x[groups];
    for (int g = 0; g < groups; ++g) x[g] = inputs + static_cast<std::int64_t>(g) * steps + from;
    add_products<Tiles, groups>(weights, x, piece.steps);
  }
  store_sums<Tiles, groups>(sums);
}

// A block of rows by more groups: a long piece of the rows is decoded once for all of them.
template <class Tiles, class Decoder>
NIBBLE_AMX void multiply_wide(const StepRows& matrix, int row, int rows, int groups, const InputTile* inputs,
                              Workspace& work, SumsTile (&sums)[block_tiles][groups_at_once]) {
  const int steps = static_cast<int>(matrix.row_steps);
  for (int from = 0; from < steps; from += long_panel) {
    const Piece piece{row, rows, from, std::min(long_panel, steps - from)};
    read_scales<Decoder>(matrix, row, rows, from, piece.steps, work.scales);
    const BlockTiles weights = tiles_of<Decoder>(matrix, piece, work.scales, work.panel);
    const auto group_at = [&](int g) { return inputs + static_cast<std::int64_t>(g) * steps + from; };
    int g = 0;
    for (; g + 2 <= groups; g += 2) {
      from == 0 ? zero_sums<Tiles, 2>() : load_sums<Tiles, 2>({&sums[0][g], &sums[1][g]});
      add_products<Tiles, 2>(weights, {group_at(g), group_at(g + 1)}, piece.steps);
      store_sums<Tiles, 2>({&sums[0][g], &sums[1][g]});
    }
    if (g < groups) {
      from == 0 ? zero_sums<Tiles, 1>() : load_sums<Tiles, 1>({&sums[0][g], &sums[1][g]});
      add_products<Tiles, 1>(weights, {group_at(g)}, piece.steps);
      store_sums<Tiles, 1>({&sums[0][g], &sums[1][g]});
    }
  }
}

// Sums are [row][input]; the sink takes a tile's rows of one input at a time.
NIBBLE_512 inline void store_tile(SumsTile& sums, int row, int first_input, int count,
                                  const TotalsSink& store) {
  __m512i rows[16];
  for (int r = 0; r < 16; ++r) rows[r] = _mm512_load_si512(sums.rows[r]);
  transpose_words(rows);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(sums.rows[i], rows[i]);
  for (int i = 0; i < count; ++i) store(row, first_input + i, sums.rows[i]);
}

template <class Tiles, class Decoder>
NIBBLE_AMX void multiply_rows_by_tiles(const StepRows& matrix, int begin, int end, int count,
                                       const InputTile* packed, const TotalsSink& store) {
  const int steps = static_cast<int>(matrix.row_steps), groups = (count + input_group - 1) / input_group;
  Workspace work;
  SumsTile sums[block_tiles][groups_at_once];
  for (int row = begin; row < end; row += range_rows) {
    const int rows = std::min(range_rows, end - row);
    if (!scales_commute<Decoder>(matrix, row, rows)) {
      for (int tile = 0; tile < rows; tile += tile_rows)
        multiply_scaled_sums<Decoder>(matrix, row + tile, std::min(tile_rows, rows - tile), count, packed,
                                      store);
      continue;
    }
    for (int first = 0; first < groups; first += groups_at_once) {
      const int together = std::min(groups_at_once, groups - first);
      const InputTile* inputs = packed + static_cast<std::int64_t>(first) * steps;
      if (together == 1) {
        multiply_narrow<Tiles, Decoder, 1>(matrix, row, rows, inputs, work, {sums[0], sums[1]});
      } else if (together == 2) {
        multiply_narrow<Tiles, Decoder, 2>(matrix, row, rows, inputs, work, {sums[0], sums[1]});
      } else {
        multiply_wide<Tiles, Decoder>(matrix, row, rows, together, inputs, work, sums);
      }
      for (int tile = 0; tile < rows; tile += tile_rows) {
        for (int g = 0; g < together; ++g) {
          const int input = (first + g) * input_group;
          store_tile(sums[tile / tile_rows][g], row + tile, input, std::min(input_group, count - input),
                     store);
        }
      }
    }
  }
}

template <class Tiles>
void multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
              const TotalsSink& store) {
  Tiles::begin();
  std::visit(
      [&](const auto& each) {
        using Decoder = typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type;
        multiply_rows_by_tiles<Tiles, Decoder>(steps_of(each, inputs.lines), begin, end, inputs.rows.count,
                                               reinterpret_cast<const InputTile*>(inputs.prepared), store);
      },
      matrix);
  Tiles::end();
}

NIBBLE_512 inline void prepare(const DenseMatrix&, const DotInputs& inputs, int begin, int end) {
  pack_input_groups<PairProducts>(inputs, begin, end, natural_order_words());
}

}  // namespace nibble::amx
