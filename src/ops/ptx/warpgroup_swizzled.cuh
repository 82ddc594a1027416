// Products of a warpgroup on tiles in shared memory whose rows are 64 bfloat16, 128 bytes, one after the
// other: of row r, piece i of sixteen bytes lies at piece i ^ (r % 8). A tile begins at a multiple of 1,024
// bytes. What lies so serves as rows of one product and as columns of another.
#pragma once

#include <cstdint>

#include "ops/ptx/warpgroup.cuh"

namespace nibble::ptx {

inline constexpr int swizzled_row_bytes = 128, swizzled_eight_bytes = 8 * swizzled_row_bytes;
inline constexpr std::uint64_t swizzled_operand =
    std::uint64_t{1} << 62 | std::uint64_t{swizzled_eight_bytes / 16} << 32;

// From a register: many an operand in a loop is a sum with one, and the compiler would hold them all.
__device__ __forceinline__ std::uint64_t held_operand(std::uint64_t word) {
  asm volatile("" : "+l"(word));
  return word;
}

// Rows of a, or columns of b, are rows of a tile; the 16 k are sixteen neighbours in it.
struct TileRows {
  std::uint64_t word;

  __device__ __forceinline__ explicit TileRows(const void* tile)
      : word(held_operand(swizzled_operand | (shared_address(tile) & 0x3ffffu) >> 4)) {}
  // The k that begin at so many bytes of a row (a multiple of 32), of the rows that begin at so many bytes of
  // the tile (a multiple of 1,024): their sum.
  __device__ __forceinline__ TileRows at(unsigned bytes) const {
    TileRows moved = *this;
    moved.word = wgmma_operand_at(word, bytes);
    return moved;
  }
};

// The 16 k of b are sixteen rows of a tile, and its columns the tile's, 64 of it and 64 of the tile that
// begins tile_bytes further on; or those of a, with its 64 rows the tile's columns.
struct TileColumns {
  std::uint64_t word;

  __device__ __forceinline__ TileColumns(const void* tile, unsigned tile_bytes)
      : word(held_operand(swizzled_operand | std::uint64_t{tile_bytes / 16} << 16 |
                          (shared_address(tile) & 0x3ffffu) >> 4)) {}
  // The rows that begin so many bytes further on, a multiple of 2,048.
  __device__ __forceinline__ TileColumns at(unsigned bytes) const {
    TileColumns moved = *this;
    moved.word = wgmma_operand_at(word, bytes);
    return moved;
  }
};

// As wgmma_bf16 (warpgroup.cuh), of 64 columns.
__device__ __forceinline__ void wgmma_bf16(float (&sums)[32], const TileRows& a, const TileRows& b,
                                           bool add) {
  wgmma_bf16(sums, a.word, b.word, add);
}

#define NIBBLE_EIGHT_SUMS(s, i)                                                               \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), \
      "+f"(s[i + 6]), "+f"(s[i + 7])

// The same of 128 columns.
__device__ __forceinline__ void wgmma_bf16(float (&sums)[64], const TileRows& a, const TileColumns& b,
                                           bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, %64, %65, add, 1, 1, 0, 1;\n"
      "}"
      : NIBBLE_EIGHT_SUMS(sums, 0), NIBBLE_EIGHT_SUMS(sums, 8), NIBBLE_EIGHT_SUMS(sums, 16),
        NIBBLE_EIGHT_SUMS(sums, 24), NIBBLE_EIGHT_SUMS(sums, 32), NIBBLE_EIGHT_SUMS(sums, 40),
        NIBBLE_EIGHT_SUMS(sums, 48), NIBBLE_EIGHT_SUMS(sums, 56)
      : "l"(a.word), "l"(b.word), "r"(static_cast<int>(add)));
}

// Of 64 columns, and of a tile's first 32.
__device__ __forceinline__ void wgmma_bf16(float (&sums)[32], const TileRows& a, const TileColumns& b,
                                           bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, add, 1, 1, 0, 1;\n"
      "}"
      : NIBBLE_EIGHT_SUMS(sums, 0), NIBBLE_EIGHT_SUMS(sums, 8), NIBBLE_EIGHT_SUMS(sums, 16),
        NIBBLE_EIGHT_SUMS(sums, 24)
      : "l"(a.word), "l"(b.word), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_bf16(float (&sums)[16], const TileRows& a, const TileColumns& b,
                                           bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
      "}, %16, %17, add, 1, 1, 0, 1;\n"
      "}"
      : NIBBLE_EIGHT_SUMS(sums, 0), NIBBLE_EIGHT_SUMS(sums, 8)
      : "l"(a.word), "l"(b.word), "r"(static_cast<int>(add)));
}

// Rows of a are a tile's columns, and b lies in core matrices (wgmma_operand).
__device__ __forceinline__ void wgmma_bf16(float (&sums)[16], const TileColumns& a, std::uint64_t b,
                                           bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
      "}, %16, %17, add, 1, 1, 1, 0;\n"
      "}"
      : NIBBLE_EIGHT_SUMS(sums, 0), NIBBLE_EIGHT_SUMS(sums, 8)
      : "l"(a.word), "l"(b), "r"(static_cast<int>(add)));
}
#undef NIBBLE_EIGHT_SUMS

}  // namespace nibble::ptx
