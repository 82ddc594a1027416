// A tile of rows whose steps come with a lane a row: where the rows are, their codes and their scales.
#pragma once

#include <algorithm>

#include "ops/linear/simd512.h"
#include "ops/linear/step_rows.h"

namespace nibble {

// Where the rows of a tile begin, counted in steps. `rows` of them exist, the others repeat the last one.
struct TileRows {
  std::int64_t first_steps[tile_rows];

  TileRows(const StepRows& matrix, int row, int rows) {
    for (int r = 0; r < tile_rows; ++r) first_steps[r] = (row + (r < rows ? r : rows - 1)) * matrix.row_steps;
  }
};

// The scales of a tile's rows, sixteen steps at a time.
struct alignas(64) TileStepScales {
  std::uint8_t bytes[16][tile_rows];
  bool plain = true;  // none is 0 or 255; there are none without scales
  bool moderate = false;
};
// Scales of 2^-60 to 2^60: a sum between 2^-60 and 2^60 times such a one is exact.
inline constexpr std::uint8_t least_moderate_scale = 127 - 60, moderate_scales = 2 * 60;

NIBBLE_512 inline void read_tile_scales(const StepRows& matrix, const TileRows& tile, int step, int steps,
                                        TileStepScales& out) {
  const auto at = [&](int r) { return matrix.scales + tile.first_steps[r] + step; };
  __m512i rows[4];
  __mmask64 extremes = 0, far = 0;
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    rows[r] = _mm512_castsi128_si512(read_scales(at(r), steps));
    rows[r] = _mm512_inserti32x4(rows[r], read_scales(at(r + 4), steps), 1);
    rows[r] = _mm512_inserti32x4(rows[r], read_scales(at(r + 8), steps), 2);
    rows[r] = _mm512_inserti32x4(rows[r], read_scales(at(r + 12), steps), 3);
    // 0 and 255 become the largest.
    const __m512i shifted = _mm512_sub_epi8(rows[r], _mm512_set1_epi8(1));
    extremes |= _mm512_cmpge_epu8_mask(shifted, _mm512_set1_epi8(static_cast<char>(254)));
    far |= _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(rows[r], _mm512_set1_epi8(least_moderate_scale)),
                                  _mm512_set1_epi8(moderate_scales));
  }
  out.plain = extremes == 0;
  out.moderate = far == 0;
  const __m512i a = _mm512_unpacklo_epi8(rows[0], rows[1]), b = _mm512_unpackhi_epi8(rows[0], rows[1]);
  const __m512i c = _mm512_unpacklo_epi8(rows[2], rows[3]), d = _mm512_unpackhi_epi8(rows[2], rows[3]);
  const __m512i fours[4] = {_mm512_unpacklo_epi16(a, c), _mm512_unpackhi_epi16(a, c),
                            _mm512_unpacklo_epi16(b, d), _mm512_unpackhi_epi16(b, d)};
  // Word s of part p has step s of rows 4p .. 4p + 3.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) _mm512_store_si512(out.bytes[4 * i], _mm512_permutexvar_epi32(order, fours[i]));
}

// Steps that are read of a row before the next row's: rows may lie a power of two apart, so that all of a
// tile's want the same few places of the first-level cache, and a line that two steps share would be gone
// when the second one comes.
inline constexpr int steps_at_once = 4;

// Some steps of each row of a tile: parts[p][r] has part p (16 bytes) of rows r, r + 4, r + 8 and r + 12.
template <int step_bytes>
struct alignas(64) TileParts {
  static constexpr int lines = steps_at_once * step_bytes / 64;
  std::uint8_t parts[4 * lines][4][64];
};

// From byte `at` of the rows on; bytes past `left` are zeros.
template <int step_bytes>
NIBBLE_512_INLINE void read_tile_parts(const StepRows& matrix, const TileRows& tile, int at, int left,
                                       TileParts<step_bytes>& out) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int line = 0; line < TileParts<step_bytes>::lines; ++line) {
      const int words = std::clamp(left / 4 - 16 * line, 0, 16);
      const __mmask16 there = static_cast<__mmask16>((1u << words) - 1);
      __m512i rows[4], parts[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        rows[i] = _mm512_maskz_loadu_epi32(
            there, matrix.codes + tile.first_steps[r + 4 * i] * step_bytes + at + 64 * line);
      }
      gather_parts(rows, parts);
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) _mm512_store_si512(out.parts[4 * line + p][r], parts[p]);
    }
  }
}

// A tile's steps, one after the other.
template <class Decoder>
class TileSteps {
 public:
  TileSteps(const StepRows& matrix, int row, int rows) : matrix_(matrix), rows_(matrix, row, rows) {}

  // For one step after the other, from the first on or again from there.
  NIBBLE_512 void read(int step) {
    const int left = static_cast<int>(matrix_.row_steps) - step;
    if (Decoder::scaled && step % 16 == 0)
      read_tile_scales(matrix_, rows_, step, std::min(16, left), scales_);
    if (step % steps_at_once == 0)
      read_tile_parts(matrix_, rows_, step * Decoder::step_bytes, left * Decoder::step_bytes, parts_);
  }
  // Of the step that was read last: its codes in parts, as decoders take them, and its rows' scales.
  const std::uint8_t (*parts(int step) const)[4][64] {
    return parts_.parts + step % steps_at_once * (Decoder::step_bytes / 16);
  }
  const std::uint8_t* scales(int step) const { return scales_.bytes[step % 16]; }
  bool plain() const { return scales_.plain; }

 private:
  StepRows matrix_;
  TileRows rows_;
  TileStepScales scales_;
  TileParts<Decoder::step_bytes> parts_;
};

}  // namespace nibble
