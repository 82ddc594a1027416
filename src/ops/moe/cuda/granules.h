// The layout of 4-bit matrices for tensor cores, one for few tokens and for many: granules of 16 rows. What
// differs between formats, how codes lie, scales and how they enter, is in a layout's type
// (mxfp4_granules.h, nvfp4_granules.h, int4_granules.h), which the kernels take as a parameter.
//
// The weights are the M operand of m16n8k16 (or four granules that of wgmma's m64), decoded to bfloat16 in
// registers. A lane's share of four k16 steps lies together, so that one 16-byte load feeds them:
//
//   granule   16 consecutive rows over the whole of K; granules follow one another, experts too
//   k64 block 32 lanes x 16 bytes of codes, then the scales of 16 rows, as many bytes as in a checkpoint. A
//             granule's blocks follow one another
//
// Rows: operand row g of the upper half (0..7) holds row 2g of the granule, operand row g + 8 row 2g + 1. A
// gate and its up projection (rows 2i and 2i + 1 of gpt-oss) meet in one lane. K: in a block of 64 lane t of
// each row's four holds elements 16t .. 16t + 15, and step s takes the four of them that begin at 4s: operand
// columns 2t, 2t + 1, 2t + 8, 2t + 9. So activations stay in plain order: a lane reads 32 consecutive bytes,
// and needs one scale a row. K is padded to 64 with codes of zero; what the activations hold there must be
// finite.
//
// Order of additions of every product on this layout, an op's contract: K is cut into chunks of whole k64
// blocks, their borders a function of K alone. Within a chunk the tensor core's chain over its k16 steps from
// zero; the chunks' sums are added in order of the index, and the layout's factor multiplies that once.
// Nothing else enters it.
//
// Two words of codes hold the values of eight bfloat16 pairs, the operand registers a0..a3 of two steps.
//
// E2M1 (E2m1Pairs). A rotation and one mask place a pair. Signs then stand at bit 15 of each half. Magnitudes
// stand at the exponent's low bits and the mantissa's first bit. So the mask, taken modulo 16, is {6, 7, 8,
// 15} and its rotations. Only three of those fit a half of a word side by side. What they leave free in two
// words, three rotations of their own each, makes up two more when the words are merged. That is sixteen
// instructions for eight registers, of which eight are masks. As a bfloat16 a pair reads as value x 2^-126.
// The multiplication by the scale corrects that, exactly.
//
// Integers (IntegerPairs). A rotation and one mask leave a code at the upper bits of the mantissa, code x
// 2^-130. One fma with scale x 2^127 and the scale itself makes an eighth of (code - 8) x scale, rounded
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cuda/host_device.h"

namespace nibble {

inline constexpr int granule_rows = 16;
inline constexpr int granule_k = 64;  // of K, in a block
inline constexpr int granule_k_chunks = 3;
inline constexpr int granule_code_bytes = 512;  // of a k64 block

// Numbers of a granule's even rows and of its odd ones: gates and up projections may differ.
struct alignas(8) PairFactors {
  float even, odd;
};

// A layout is a type with
//   Pairs                how codes lie: E2m1Pairs or IntegerPairs
//   Stored               a scale, in a checkpoint and in a block
//   scale_group          weights along K that share a scale: 16 or 32
//   multiplier(stored)   the bfloat16, in both halves, that a placed pair is multiplied by
//   SumFactor            what the sums are multiplied by, PairFactors of(expert)
//   ScalePacking         stored(scale) of a checkpoint's scale, change(scale) of the codes it belongs to
template <class Layout>
inline constexpr int granule_scales = granule_k / Layout::scale_group;  // of a row in a k64 block
template <class Layout>
inline constexpr int granule_scale_bytes = static_cast<int>(sizeof(typename Layout::Stored));
template <class Layout>
inline constexpr int granule_block_bytes =
    granule_code_bytes + granule_rows* granule_scales<Layout>* granule_scale_bytes<Layout>;

// Where a scale lies among those of its block, in bytes: row pair by row pair, the two rows' side by side.
template <class Layout>
NIBBLE_HOST_DEVICE constexpr int granule_scale_at(int row, int group) {
  constexpr int pair = 2 * granule_scales<Layout>;
  return (row / 2 * pair + group * 2 + row % 2) * granule_scale_bytes<Layout>;
}
// The first of a lane's two.
template <class Layout>
NIBBLE_HOST_DEVICE constexpr int granule_lane_scales(int lane) {
  constexpr int pair = 2 * granule_scales<Layout>, lanes = 4 / granule_scales<Layout>;  // of a scale
  return (lane / 4 * pair + lane % 4 / lanes * 2) * granule_scale_bytes<Layout>;
}

// Where things lie in one matrix [rows, cols].
template <class Layout>
struct GranuleShapeOf {
  int rows = 0;  // a multiple of 16
  int cols = 0;  // a multiple of Layout::scale_group

  NIBBLE_HOST_DEVICE constexpr int granules() const { return rows / granule_rows; }
  NIBBLE_HOST_DEVICE constexpr int blocks() const { return (cols + granule_k - 1) / granule_k; }
  NIBBLE_HOST_DEVICE constexpr int padded_cols() const { return blocks() * granule_k; }
  NIBBLE_HOST_DEVICE constexpr int chunk_begin(int chunk) const {  // its first k64 block
    return chunk * blocks() / granule_k_chunks;
  }
  NIBBLE_HOST_DEVICE constexpr int granule_bytes() const { return blocks() * granule_block_bytes<Layout>; }
  NIBBLE_HOST_DEVICE constexpr std::size_t bytes() const {
    return static_cast<std::size_t>(granules()) * static_cast<std::size_t>(granule_bytes());
  }
  constexpr bool legal() const { return rows % granule_rows == 0 && cols % Layout::scale_group == 0; }
};

// Byte offsets inside a granule.
struct GranulePlace {
  std::size_t codes = 0;   // of the block's codes; lane l's 16 bytes begin 16 l further on
  std::size_t scales = 0;  // of the block's scales
};
template <class Layout>
NIBBLE_HOST_DEVICE constexpr GranulePlace granule_place(int block) {
  const std::size_t begin = static_cast<std::size_t>(block) * granule_block_bytes<Layout>;
  return {begin, begin + granule_code_bytes};
}

// What packing does to codes, by their scale: two codes of a byte become (byte & keep) ^ flip.
struct CodeChange {
  std::uint8_t keep = 0xff, flip = 0;
};

// Where a pair lies: the word (2: the two merged) and the rotation to the left that places it.
struct PairPlace {
  int word, rotation;
};
inline constexpr std::uint32_t granule_pair_mask = 0x81c081c0u;   // signs and magnitudes
inline constexpr std::uint32_t granule_merge_mask = 0x0c180c18u;  // merged bits that come from word 0
struct WordPair {
  std::uint32_t word[2];
};

// The operand registers of two words before their scale, a step's four after the other's.
struct PlacedPairs {
  std::uint32_t pair[8];
};
NIBBLE_HOST_DEVICE constexpr std::uint32_t rotated_left(std::uint32_t word, int by) {
  return word << by | word >> ((32 - by) & 31);
}
// Bfloat16 pairs that are 2^-126 of their values. merged: bits of `first` where granule_merge_mask is set, of
// `second` elsewhere. Where nothing has to come around, a shift does what a rotation does.
NIBBLE_HOST_DEVICE constexpr PlacedPairs place_pairs(std::uint32_t first, std::uint32_t second,
                                                     std::uint32_t merged) {
  return {{first & granule_pair_mask, first << 6 & granule_pair_mask,
           rotated_left(first, 10) & granule_pair_mask, second << 4 & granule_pair_mask,
           rotated_left(second, 14) & granule_pair_mask, rotated_left(second, 8) & granule_pair_mask,
           merged << 2 & granule_pair_mask, rotated_left(merged, 12) & granule_pair_mask}};
}
NIBBLE_HOST_DEVICE constexpr PlacedPairs place_pairs(std::uint32_t first, std::uint32_t second) {
  return place_pairs(first, second, (first & granule_merge_mask) | (second & ~granule_merge_mask));
}

// How codes lie in words, each a type:
//   zeros           eight codes of zero
//   integers        whether codes are integers: the scale is then subtracted from pair x multiplier
//   are_zeros(e)    whether eight codes of a checkpoint are all zero, of either sign
//   words(codes)    two codes of each of the eight pairs in their words; codes[i][j]: value j of pair i
//   placed(..)      the registers of two words
struct E2m1Pairs {
  static constexpr std::uint32_t zeros = 0;
  static constexpr bool integers = false;

  NIBBLE_HOST_DEVICE static constexpr bool are_zeros(std::uint32_t eight) {
    return (eight & 0x77777777u) == 0;
  }

  NIBBLE_HOST_DEVICE static constexpr WordPair words(const std::uint8_t (&codes)[8][2]) {
    constexpr PairPlace places[8] = {{0, 0}, {0, 6}, {0, 10}, {1, 4}, {1, 14}, {1, 8}, {2, 2}, {2, 12}};
    WordPair words{};
    for (int pair = 0; pair < 8; ++pair) {
      for (int value = 0; value < 2; ++value) {
        for (int bit = 0; bit < 4; ++bit) {
          const int placed = 16 * value + (bit < 3 ? 6 + bit : 15);
          const std::uint32_t at = 1u << ((placed - places[pair].rotation) & 31);
          const int word = places[pair].word < 2 ? places[pair].word : (granule_merge_mask & at) != 0 ? 0 : 1;
          if ((codes[pair][value] >> bit & 1) != 0) words.word[word] |= at;
        }
      }
    }
    return words;
  }
  NIBBLE_HOST_DEVICE static constexpr PlacedPairs placed(std::uint32_t first, std::uint32_t second) {
    return place_pairs(first, second);
  }
};
struct IntegerPairs {
  static constexpr std::uint32_t zeros = 0x88888888u;
  static constexpr bool integers = true;
  static constexpr std::uint32_t code_mask = 0x00780078u;

  NIBBLE_HOST_DEVICE static constexpr bool are_zeros(std::uint32_t eight) { return eight == zeros; }

  NIBBLE_HOST_DEVICE static constexpr WordPair words(const std::uint8_t (&codes)[8][2]) {
    WordPair words{};
    for (int pair = 0; pair < 8; ++pair) {
      for (int value = 0; value < 2; ++value) {
        const std::uint32_t code = std::uint32_t{codes[pair][value]} << (16 * value + 3);
        words.word[pair / 4] |= rotated_left(code, pair % 4 * 4);
      }
    }
    return words;
  }
  NIBBLE_HOST_DEVICE static constexpr PlacedPairs placed(std::uint32_t first, std::uint32_t second) {
    PlacedPairs placed{};
    for (int word = 0; word < 2; ++word) {
      const std::uint32_t codes = word == 0 ? first : second;
      placed.pair[4 * word] = codes & code_mask;
      placed.pair[4 * word + 1] = codes >> 4 & code_mask;
      placed.pair[4 * word + 2] = codes >> 8 & code_mask;
      placed.pair[4 * word + 3] = rotated_left(codes, 20) & code_mask;
    }
    return placed;
  }
};

// What a lane of a granule's k64 block holds: codes for its 16 elements of row 2g and of row 2g + 1.
struct LaneCodes {
  std::uint32_t word[4];  // two for the block's first two steps, two for the others
};
template <class Pairs>
NIBBLE_HOST_DEVICE constexpr LaneCodes pack_lane(const std::uint8_t (&even)[8],
                                                 const std::uint8_t (&odd)[8]) {
  LaneCodes lane{};
  for (int half = 0; half < 2; ++half) {
    std::uint8_t codes[8][2] = {};
    for (int pair = 0; pair < 8; ++pair) {
      // Operand registers a0 and a2 of a step hold row g, a1 and a3 row g + 8.
      const std::uint8_t byte = (pair % 2 == 0 ? even : odd)[4 * half + pair / 2];
      codes[pair][0] = static_cast<std::uint8_t>(byte & 15);
      codes[pair][1] = static_cast<std::uint8_t>(byte >> 4);
    }
    const WordPair words = Pairs::words(codes);
    lane.word[2 * half] = words.word[0];
    lane.word[2 * half + 1] = words.word[1];
  }
  return lane;
}

}  // namespace nibble
