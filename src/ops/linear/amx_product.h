// Products on tiles, for any `Tiles` with the functions of AmxTiles: the tests have tiles in plain C++, so
// that packing, blocking and decoding are tested where there is no AMX.
//
// Weights are the first operand, 16 rows of 32 k, so that rows are decoded as they lie; inputs are packed as
// the second. A block of 32 rows meets up to 48 inputs at a time, its sums in tiles over all of K, and while
// a step's products go on, the rows of a step to come are decoded: a processor does both at once, so decoding
// anew for each 48 inputs takes less than sums or decoded rows that come and go through the caches.
//
// Weights are scaled before they are multiplied, and the running total stays in the sums' tile: a power of
// two commutes with the step's sum within the bounds of dot_tile.h. A tile of rows with a block outside them,
// or without a value, goes another way (multiply_scaled_sums).
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ops/linear/amx_decoding.h"
#include "ops/linear/block_groups512.h"

#define NIBBLE_AMX       \
  __attribute__((target( \
      "amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx512vnni,avx2,fma")))
#define NIBBLE_AMX_INLINE [[gnu::always_inline]] NIBBLE_AMX inline

namespace nibble::amx {

// k = 2j and 2j + 1 share a word.
NIBBLE_512 inline __m512i natural_order_words() {
  alignas(64) std::uint16_t order[32];
  for (int w = 0; w < 32; ++w) order[w] = static_cast<std::uint16_t>(2 * w + 1);
  return _mm512_load_si512(order);
}

// Prepared inputs: of each group, step by step, sixteen pairs of k of each of `columns` inputs. Fewer inputs
// than a group make tiles as narrow as they are, which take less room on their way from thread to thread.
struct PackedInputs {
  std::uint32_t* pairs;  // [groups, row_steps, 16, columns]
  std::int64_t row_steps;
  int columns;

  PackedInputs(const DotInputs& inputs, std::int64_t steps)
      : pairs(reinterpret_cast<std::uint32_t*>(inputs.prepared)),
        row_steps(steps),
        columns(std::min(inputs.rows.count, input_group)) {}
  std::int64_t step_pairs() const { return std::int64_t{16} * columns; }
  std::int64_t stride() const { return std::int64_t{4} * columns; }
  std::uint32_t* group(int index) const { return pairs + index * row_steps * step_pairs(); }
};

// Sixteen rows of weights of a step, and their sums with a group: tiles as they are loaded.
struct alignas(64) WeightTile {
  std::uint16_t rows[tile_rows][dot_step];
};
struct alignas(64) SumsTile {
  float rows[tile_rows][input_group];
};

constexpr int block_tiles = range_rows / tile_rows;

// A step of a block of rows as tiles, and where such are, their rows so many bytes apart.
struct StepTiles {
  WeightTile tiles[block_tiles];
};
struct StepWeights {
  const void* tiles[block_tiles];
  std::int64_t stride;

  StepWeights(const void* first, const void* second, std::int64_t apart)
      : tiles{first, second}, stride(apart) {}
  explicit StepWeights(const StepTiles& decoded)
      : StepWeights(&decoded.tiles[0], &decoded.tiles[1], sizeof decoded.tiles[0].rows[0]) {}
};
// Steps are decoded so far ahead of their products that what was stored is in the cache by then.
constexpr int steps_ahead = 2, decoded_steps = 4;

// A block of rows [row, row + rows), all of range_rows if whole.
template <class Decoder, bool whole>
class BlockRows {
 public:
  NIBBLE_512_INLINE BlockRows(const StepRows& matrix, int row, int rows)
      : row_bytes_(matrix.row_steps * Decoder::step_bytes),
        row_steps_(matrix.row_steps),
        codes_(matrix.codes + row * row_bytes_),
        rows_(rows) {
    if constexpr (Decoder::scaled) scales_ = matrix.scales + row * row_steps_;
  }

  // Rows [first, first + count) of a step into their places. Rows past the matrix's end leave them as they
  // are.
  template <int first, int count>
  NIBBLE_512_INLINE void decode(std::int64_t step, StepTiles& out) const {
    const std::uint8_t* codes = codes_ + first * row_bytes_ + step * Decoder::step_bytes;
    const std::uint8_t* scale = nullptr;
    if constexpr (Decoder::scaled) scale = scales_ + first * row_steps_ + step;
#pragma GCC unroll 32
    for (int r = first; r < first + count; ++r) {
      if (!whole && r >= rows_) return;
      _mm512_store_si512(out.tiles[r / tile_rows].rows[r % tile_rows],
                         decode_step(codes, scale, static_cast<const Decoder*>(nullptr)));
      codes += row_bytes_;
      if constexpr (Decoder::scaled) scale += row_steps_;
    }
  }

  // The next block's lines, and its scales, at the pace of this one's. bfloat16's rows are long enough for a
  // processor to see them coming.
  NIBBLE_512_INLINE void ask_for_next(std::int64_t step) const {
    if constexpr (!Decoder::scaled) return;
    ask_for_lines(step, range_rows * row_bytes_);
    _mm_prefetch(reinterpret_cast<const char*>(scales_ + (row_steps_ + step) * range_rows), _MM_HINT_T1);
  }
  // The lines of a block that nobody has asked for.
  NIBBLE_512_INLINE void ask_ahead(std::int64_t step) const {
    if constexpr (Decoder::scaled) ask_for_lines(step, 512);
  }
  // Where a step's tiles are whose weights need no decoding.
  StepWeights as_stored(std::int64_t step) const {
    const std::uint8_t* at = codes_ + step * Decoder::step_bytes;
    return {at, at + tile_rows * row_bytes_, row_bytes_};
  }

 private:
  // Of each row the line so many bytes behind the one with this step, some rows for each step of a line.
  NIBBLE_512_INLINE void ask_for_lines(std::int64_t step, std::int64_t further) const {
    constexpr int steps_a_line = 64 / Decoder::step_bytes, rows_a_step = range_rows / steps_a_line;
    const std::int64_t row = step % steps_a_line * rows_a_step, line = step / steps_a_line * 64;
    const std::uint8_t* codes = codes_ + row * row_bytes_ + line + further;
#pragma GCC unroll 16
    for (int r = 0; r < rows_a_step; ++r)
      _mm_prefetch(reinterpret_cast<const char*>(codes + r * row_bytes_), _MM_HINT_T1);
  }

  std::int64_t row_bytes_, row_steps_;
  const std::uint8_t* codes_;
  const std::uint8_t* scales_ = nullptr;
  int rows_;
};

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
                                     const PackedInputs& inputs, const TotalsSink& store) {
  const int steps = static_cast<int>(matrix.row_steps);
  Decoder decoder;
  alignas(64) TileTotals totals[input_group];
  TileSteps<Decoder> tile(matrix, row, rows);
  for (int first = 0; first < count; first += input_group) {
    const std::uint32_t* group = inputs.group(first / input_group);
    std::memset(totals, 0, sizeof totals);
    for (int step = 0; step < steps; ++step) {
      RowsStep<PairProducts> weights;
      tile.read(step);
      decode_rows(decoder, tile, step, weights);
      for (int i = 0; i < std::min(input_group, count - first); ++i) {
        __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int c = 0; c < 4; ++c) {
          std::uint16_t x[8];
          for (int j = 0; j < 4; ++j)
            std::memcpy(x + 2 * j, group + step * inputs.step_pairs() + (4 * c + j) * inputs.columns + i, 4);
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

// Groups of inputs that a block of rows meets at once.
constexpr int most_groups = 3;

// Which of the eight tiles is what: sums [tile of rows][group], then weights and inputs. Three groups leave
// one tile for weights and one for inputs, which then come once for each tile of rows.
template <int groups>
struct TileNumbers {
  static constexpr bool inputs_stay = groups < most_groups;
  static constexpr int sums(int tile, int group) { return tile * groups + group; }
  static constexpr int weights(int tile) { return inputs_stay ? 4 + tile : 6; }
  static constexpr int inputs(int group) { return inputs_stay ? 6 + group : 7; }
};

// Bytes a row of each tile: one group may have fewer columns than sixteen.
constexpr std::array<std::uint16_t, 8> tile_row_bytes(int columns) {
  std::array<std::uint16_t, 8> bytes;
  bytes.fill(static_cast<std::uint16_t>(4 * columns));
  for (int tile = 0; tile < block_tiles; ++tile)
    bytes[static_cast<std::size_t>(TileNumbers<1>::weights(tile))] = 64;
  return bytes;
}

// run(tile, i) for each tile of rows and i < groups, as constants.
template <int groups, class Run>
NIBBLE_AMX_INLINE void for_each_sum(const Run& run) {
  [&]<int... index>(std::integer_sequence<int, index...>) __attribute__((always_inline)) NIBBLE_AMX {
    (run.template operator()<index / groups, index % groups>(), ...);
  }
  (std::make_integer_sequence<int, block_tiles * groups>());
}

// Where the tiles of a step's inputs are, their rows so many bytes apart.
template <int count>
struct StepInputs {
  const std::uint32_t* groups[count];
  std::int64_t stride;
};

// A step's products; between<part>() runs behind each. The second tile of rows takes groups the other way
// around, as the last one's inputs are there.
template <class Tiles, int groups, class Between>
NIBBLE_AMX_INLINE void multiply_step(const StepWeights& weights, const StepInputs<groups>& inputs,
                                     const Between& between) {
  using Numbers = TileNumbers<groups>;
  for_each_sum<groups>([&]<int tile, int i>() __attribute__((always_inline)) NIBBLE_AMX {
    constexpr int group = tile == 0 ? i : groups - 1 - i;
    if constexpr (i == 0) Tiles::template load<Numbers::weights(tile)>(weights.tiles[tile], weights.stride);
    if constexpr (tile == 0 || (i > 0 && !Numbers::inputs_stay))
      Tiles::template load<Numbers::inputs(group)>(inputs.groups[group], inputs.stride);
    Tiles::template multiply<Numbers::sums(tile, group), Numbers::weights(tile), Numbers::inputs(group)>();
    between.template part<tile * groups + i>();
  });
}

using BlockSums = SumsTile[block_tiles][most_groups];
template <class Tiles, int groups>
NIBBLE_AMX_INLINE void zero_sums() {
  for_each_sum<groups>([]<int tile, int group>() __attribute__((always_inline))
                       NIBBLE_AMX { Tiles::template zero<TileNumbers<groups>::sums(tile, group)>(); });
}
template <class Tiles, int groups>
NIBBLE_AMX_INLINE void store_sums(BlockSums& sums) {
  for_each_sum<groups>([&]<int tile, int group>() __attribute__((always_inline)) NIBBLE_AMX {
    Tiles::template store<TileNumbers<groups>::sums(tile, group)>(&sums[tile][group], 64);
  });
}

// What goes on between a step's products.
struct Nothing {
  template <int>
  NIBBLE_512_INLINE void part() const {}
};
template <class Rows, int parts>
struct Decoding {
  const Rows& rows;
  std::int64_t step;
  StepTiles& out;
  template <int part_index>
  NIBBLE_512_INLINE void part() const {
    constexpr int first = range_rows * part_index / parts, end = range_rows * (part_index + 1) / parts;
    rows.template decode<first, end - first>(step, out);
  }
};

// Which lines of weights are asked for.
struct Asking {
  bool ahead, next;
};

// A block of rows by up to most_groups groups of inputs.
template <class Tiles, class Decoder, int groups, bool whole>
NIBBLE_AMX void multiply_block(const StepRows& matrix, int row, int rows, const PackedInputs& inputs,
                               int first_group, Asking asking, BlockSums& sums) {
  using Rows = BlockRows<Decoder, whole>;
  const std::int64_t steps = matrix.row_steps;
  const Rows block(matrix, row, rows);
  const auto inputs_at = [&](std::int64_t step) {
    StepInputs<groups> x{.stride = inputs.stride()};
    for (int g = 0; g < groups; ++g) x.groups[g] = inputs.group(first_group + g) + step * inputs.step_pairs();
    return x;
  };
  zero_sums<Tiles, groups>();
  if constexpr (whole && !Decoder::scaled) {
    for (std::int64_t step = 0; step < steps; ++step)
      multiply_step<Tiles, groups>(block.as_stored(step), inputs_at(step), Nothing());
  } else {
    StepTiles decoded[decoded_steps];
    if constexpr (!whole) std::memset(decoded, 0, sizeof decoded);
    for (std::int64_t step = 0; step < std::min<std::int64_t>(steps, steps_ahead); ++step)
      block.template decode<0, range_rows>(step, decoded[step]);
    std::int64_t step = 0;
    for (; step < steps - steps_ahead; ++step) {
      const std::int64_t later = step + steps_ahead;
      multiply_step<Tiles, groups>(
          StepWeights(decoded[step % decoded_steps]), inputs_at(step),
          Decoding<Rows, block_tiles * groups>{block, later, decoded[later % decoded_steps]});
      if (asking.ahead) block.ask_ahead(step);
      if (asking.next) block.ask_for_next(step);
    }
    for (; step < steps; ++step)
      multiply_step<Tiles, groups>(StepWeights(decoded[step % decoded_steps]), inputs_at(step), Nothing());
  }
  store_sums<Tiles, groups>(sums);
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

template <class Tiles, class Decoder, bool whole>
NIBBLE_AMX void multiply_by_all(const StepRows& matrix, int row, int rows, bool cold, int count,
                                const PackedInputs& inputs, const TotalsSink& store) {
  BlockSums sums;
  for (int first = 0, together; first < count; first += together * input_group) {
    const int left = (count - first + input_group - 1) / input_group;
    // Twice two take less than three and one.
    together = left == 4 ? 2 : std::min(left, most_groups);
    with_count<1, most_groups>(together, [&](auto groups) {
      multiply_block<Tiles, Decoder, groups, whole>(matrix, row, rows, inputs, first / input_group,
                                                    {cold && first == 0, first == 0}, sums);
    });
    for (int tile = 0; tile < rows; tile += tile_rows) {
      for (int g = 0; g < together; ++g) {
        const int input = first + g * input_group;
        store_tile(sums[tile / tile_rows][g], row + tile, input, std::min(input_group, count - input), store);
      }
    }
  }
}

template <class Tiles, class Decoder>
NIBBLE_AMX void multiply_rows_by_tiles(const StepRows& matrix, int begin, int end, int count,
                                       const PackedInputs& inputs, const TotalsSink& store) {
  for (int row = begin; row < end; row += range_rows) {
    const int rows = std::min(range_rows, end - row);
    if (!scales_commute<Decoder>(matrix, row, rows)) {
      for (int tile = 0; tile < rows; tile += tile_rows)
        multiply_scaled_sums<Decoder>(matrix, row + tile, std::min(tile_rows, rows - tile), count, inputs,
                                      store);
    } else if (rows == range_rows) {
      multiply_by_all<Tiles, Decoder, true>(matrix, row, rows, row == begin, count, inputs, store);
    } else {
      multiply_by_all<Tiles, Decoder, false>(matrix, row, rows, row == begin, count, inputs, store);
    }
  }
}

template <class Tiles>
void multiply(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
              const TotalsSink& store) {
  std::visit(
      [&](const auto& each) {
        using Decoder = typename DecoderOf<std::remove_cvref_t<decltype(each)>>::Type;
        const StepRows rows = steps_of(each, inputs.lines);
        const PackedInputs packed(inputs, rows.row_steps);
        Tiles::begin(tile_row_bytes(packed.columns));
        multiply_rows_by_tiles<Tiles, Decoder>(rows, begin, end, inputs.rows.count, packed, store);
        Tiles::end();
      },
      matrix);
}

// Fewer inputs than a group.
NIBBLE_512 inline void pack_narrow(const InputRows& rows, const PackedInputs& packed) {
  const __m512i order = natural_order_words();
  const __mmask16 columns = static_cast<__mmask16>((1u << packed.columns) - 1);
  for (std::int64_t step = 0; step < packed.row_steps; ++step) {
    std::uint32_t* out = packed.pairs + step * packed.step_pairs();
    __m512i words[16];
    for (int i = 0; i < 16; ++i)
      words[i] = i < packed.columns ? bf16_step(rows[i] + step * dot_step, order) : _mm512_setzero_si512();
    if (packed.columns == 1) {
      _mm512_storeu_si512(out, words[0]);
      continue;
    }
    transpose_words(words);
    for (int j = 0; j < 16; ++j) _mm512_mask_storeu_epi32(out + j * packed.columns, columns, words[j]);
  }
}

NIBBLE_512 inline void prepare(const DenseMatrix&, const DotInputs& inputs, int begin, int end) {
  const PackedInputs packed(inputs, inputs.rows.cols / dot_step);
  packed.columns < input_group ? pack_narrow(inputs.rows, packed)
                               : pack_input_groups<PairProducts>(inputs, begin, end, natural_order_words());
}

}  // namespace nibble::amx
