// The norm of four neighbouring columns, a thread's, as codes: made, written, and sent by a row's owner to
// all. Whole warps call everything here, with nothing where `column` is past the row's end; a block of FP4 is
// four lanes'. Codes travel where the row's bfloat16 values would (comm/cuda/peer_group.h).
#pragma once

#include "comm/cuda/peer_slots.cuh"
#include "ops/all_reduce_norm/cuda/all_reduce_norm_cuda.h"
#include "ops/cuda/nvfp4_block.cuh"
#include "ops/linear/cuda/rounded_rows.h"

namespace nibble {

inline constexpr unsigned whole_warp = 0xffffffffu;

// Bits of the largest magnitude among values in bfloat16, two a word.
__device__ __forceinline__ unsigned largest_of(const uint2& words) {
  return max(max(words.x & 0x7fffu, words.x >> 16 & 0x7fffu),
             max(words.y & 0x7fffu, words.y >> 16 & 0x7fffu));
}
__device__ __forceinline__ float low_value(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_value(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

struct E4m3Four {
  std::uint32_t codes;
  float scale;  // of the row
};
struct Nvfp4Four {
  std::uint32_t codes;  // in the low half
  std::uint32_t scale;  // of the block
};

template <class Rows>
struct CodesOf;
template <>
struct CodesOf<E4m3Rows> {
  using Four = E4m3Four;
};
template <>
struct CodesOf<Nvfp4Rows> {
  using Four = Nvfp4Four;
};

// What a row is divided by before it becomes E4M3, as round_rows_cuda has it: 2^e, and 2^-e; NaN and 1 where
// a value is none. From the bits of the row's largest magnitude as a bfloat16.
struct RoundedScale {
  float scale, factor;
};
__device__ __forceinline__ RoundedScale rounded_scale(unsigned largest) {
  constexpr unsigned infinity = 0x7f80;
  if (largest >= infinity) return {__uint_as_float(0x7fc00000u), 1.0f};
  const int exponent = rounded_exponent(static_cast<int>(largest));
  return {__uint_as_float(static_cast<unsigned>(127 + exponent) << 23),
          __uint_as_float(static_cast<unsigned>(127 - exponent) << 23)};
}

// `largest`: of the whole row.
__device__ __forceinline__ E4m3Four e4m3_four(const uint2& words, unsigned largest) {
  const RoundedScale by = rounded_scale(largest);
  const auto pair = [&](std::uint32_t word) {
    return static_cast<std::uint32_t>(
        ptx::e4m3x2_of(__fmul_rn(low_value(word), by.factor), __fmul_rn(high_value(word), by.factor)));
  };
  return {pair(words.x) | pair(words.y) << 16, by.scale};
}

__device__ __forceinline__ Nvfp4Four nvfp4_four(const uint2& words, float global_scale) {
  unsigned largest = largest_of(words);
  largest = max(largest, __shfl_xor_sync(whole_warp, largest, 1));
  largest = max(largest, __shfl_xor_sync(whole_warp, largest, 2));
  const Nvfp4Scale by = nvfp4_scale(largest, global_scale);
  if (by.code == nvfp4_scale_none) return {0, by.code};
  const auto pair = [&](std::uint32_t word) {
    return e2m1_of(__fmul_rn(low_value(word), by.factor)) | e2m1_of(__fmul_rn(high_value(word), by.factor))
                                                                << 4;
  };
  return {pair(words.x) | pair(words.y) << 8, by.code};
}

// What a row's FP4 is scaled by; to be fetched before the row's sums of squares are there.
__device__ __forceinline__ float global_scale_of(const Bf16Rows&, int) { return 0; }
__device__ __forceinline__ float global_scale_of(const E4m3Rows&, int) { return 0; }
__device__ __forceinline__ float global_scale_of(const Nvfp4Rows& out, int row) {
  return __ldcg(out.global_scales + (out.global_count == 1 ? 0 : row));
}

struct RowPlace {
  int row, column, hidden;

  __device__ __forceinline__ bool inside() const { return column < hidden; }
  __device__ __forceinline__ std::size_t element() const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(hidden) +
           static_cast<std::size_t>(column);
  }
};

__device__ __forceinline__ void put_four(const E4m3Rows& out, const RowPlace& at, const E4m3Four& four) {
  if (!at.inside()) return;
  *reinterpret_cast<std::uint32_t*>(out.codes + at.element()) = four.codes;
  if (at.column == 0) out.scales[at.row] = four.scale;
}
__device__ __forceinline__ void put_four(const Nvfp4Rows& out, const RowPlace& at, const Nvfp4Four& four) {
  if (!at.inside()) return;
  *reinterpret_cast<std::uint16_t*>(out.codes + at.element() / 2) = static_cast<std::uint16_t>(four.codes);
  if (at.column % 16 == 0) out.scales[at.element() / 16] = static_cast<std::uint8_t>(four.scale);
}

// Words of a row's codes in a window. None of them is ever the armed one.
__device__ __forceinline__ std::uint32_t* code_slot(const PeerGroup& group, int holder, int row, int word) {
  return reinterpret_cast<std::uint32_t*>(row_slot(group, holder, row, 0)) + word;
}
// FP8: a word each four columns, of which no code is a NaN with a sign. Behind them the scale.
__device__ __forceinline__ int e4m3_word(int column) { return column / 4; }
__device__ __forceinline__ int e4m3_scale_word(int hidden) { return hidden / 4; }
// FP4: a block's eight bytes of codes and its scale in three words of three bytes each, of its first three
// lanes. Any four bytes of codes may be what an armed word is; no three are.
__device__ __forceinline__ int nvfp4_word(int column) { return column / 16 * 3 + column % 16 / 4; }
__device__ __forceinline__ bool has_nvfp4_word(const RowPlace& at) {
  return at.inside() && at.column % 16 != 12;
}

template <int members>
__device__ __forceinline__ void give_word(const PeerGroup& group, int row, int word, std::uint32_t value) {
#pragma unroll
  for (int i = 1; i < members; ++i)
    ptx::store_peer(code_slot(group, (group.member + i) % members, row, word), value);
}

template <int members>
__device__ __forceinline__ void give_codes(const PeerGroup& group, const RowPlace& at, const E4m3Four& four) {
  if (at.inside()) give_word<members>(group, at.row, e4m3_word(at.column), four.codes);
  if (at.column == 0)
    give_word<members>(group, at.row, e4m3_scale_word(at.hidden), __float_as_uint(four.scale));
}
template <int members>
__device__ __forceinline__ void give_codes(const PeerGroup& group, const RowPlace& at,
                                           const Nvfp4Four& four) {
  const int lane = static_cast<int>(threadIdx.x) % 32, in_block = lane % 4;
  const auto next = static_cast<std::uint32_t>(
      __shfl_sync(whole_warp, static_cast<int>(four.codes), lane / 4 * 4 + (in_block + 1) % 4));
  const std::uint32_t word = in_block == 0   ? four.codes | (next & 0xffu) << 16
                             : in_block == 1 ? four.codes >> 8 | next << 8
                                             : next | four.scale << 16;
  if (has_nvfp4_word(at)) give_word<members>(group, at.row, nvfp4_word(at.column), word);
}

// Words of a row from its owner; the window is armed again.
template <int count>
__device__ __forceinline__ void take_words(std::uint32_t step, int owner, int row,
                                           std::uint32_t* const (&slots)[count],
                                           std::uint32_t (&words)[count], PeerWait& wait) {
  await(
      words, armed_row, [&](int i) { return slots[i]; }, [&](int) { return owner; }, wait, step, row);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (slots[i] != nullptr) ptx::store_peer(slots[i], armed_row);
  }
}
// Several fours of one row, of which the first may be the row's first.
template <int count>
__device__ __forceinline__ void take_fours(const PeerGroup& group, std::uint32_t step, int owner,
                                           const RowPlace (&at)[count], E4m3Four (&fours)[count],
                                           PeerWait& wait) {
  std::uint32_t* slots[count + 1];
  std::uint32_t words[count + 1];
  const int row = at[0].row;
#pragma unroll
  for (int i = 0; i < count; ++i)
    slots[i] = at[i].inside() ? code_slot(group, group.member, row, e4m3_word(at[i].column)) : nullptr;
  slots[count] =
      at[0].column == 0 ? code_slot(group, group.member, row, e4m3_scale_word(at[0].hidden)) : nullptr;
  take_words(step, owner, row, slots, words, wait);
#pragma unroll
  for (int i = 0; i < count; ++i) fours[i] = {words[i], __uint_as_float(words[count])};
}
template <int count>
__device__ __forceinline__ void take_fours(const PeerGroup& group, std::uint32_t step, int owner,
                                           const RowPlace (&at)[count], Nvfp4Four (&fours)[count],
                                           PeerWait& wait) {
  std::uint32_t* slots[count];
  std::uint32_t words[count];
  const int row = at[0].row, lane = static_cast<int>(threadIdx.x) % 32, in_block = lane % 4;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    slots[i] =
        has_nvfp4_word(at[i]) ? code_slot(group, group.member, row, nvfp4_word(at[i].column)) : nullptr;
  }
  take_words(step, owner, row, slots, words, wait);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const auto of_lane = [&](int from) {
      return static_cast<std::uint32_t>(
          __shfl_sync(whole_warp, static_cast<int>(words[i]), lane / 4 * 4 + from));
    };
    const std::uint32_t before = of_lane((in_block + 3) % 4), last = of_lane(2);
    const std::uint32_t codes = in_block == 0   ? words[i]
                                : in_block == 1 ? before >> 16 | words[i] << 8
                                : in_block == 2 ? before >> 8
                                                : before;
    fours[i] = {codes & 0xffffu, last >> 16 & 0xffu};
  }
}

}  // namespace nibble
