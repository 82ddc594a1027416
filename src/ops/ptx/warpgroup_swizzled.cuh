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

// What an instruction takes as an operand.
__device__ __forceinline__ std::uint64_t operand_word(std::uint64_t word) { return word; }
template <class Tile>
__device__ __forceinline__ std::uint64_t operand_word(const Tile& tile) {
  return tile.word;
}

#define NIBBLE_TILE_SUMS_8(s, i)                                                              \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), \
      "+f"(s[i + 6]), "+f"(s[i + 7])
#define NIBBLE_TILE_SUMS_16 NIBBLE_TILE_SUMS_8(sums, 0), NIBBLE_TILE_SUMS_8(sums, 8)
#define NIBBLE_TILE_SUMS_32 NIBBLE_TILE_SUMS_16, NIBBLE_TILE_SUMS_8(sums, 16), NIBBLE_TILE_SUMS_8(sums, 24)
#define NIBBLE_TILE_SUMS_64                                                        \
  NIBBLE_TILE_SUMS_32, NIBBLE_TILE_SUMS_8(sums, 32), NIBBLE_TILE_SUMS_8(sums, 40), \
      NIBBLE_TILE_SUMS_8(sums, 48), NIBBLE_TILE_SUMS_8(sums, 56)
#define NIBBLE_TILE_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NIBBLE_TILE_NAMES_32 \
  NIBBLE_TILE_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NIBBLE_TILE_NAMES_64                                                              \
  NIBBLE_TILE_NAMES_32                                                                    \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
  "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// The same of other columns and operands. operands: their names, behind those of the sums; turned: "1" for
// each of a and b that has its 16 k as rows of a tile.
#define NIBBLE_TILE_WGMMA(count, columns, A, B, add_name, operands, turned)                           \
  __device__ __forceinline__ void wgmma_bf16(float(&sums)[count], const A& a, const B& b, bool add) { \
    asm volatile(                                                                                     \
        "{\n"                                                                                         \
        ".reg .pred add;\n"                                                                           \
        "setp.ne.b32 add, " add_name                                                                  \
        ", 0;\n"                                                                                      \
        "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" NIBBLE_TILE_NAMES_##count   \
        "}, " operands ", add, 1, 1, " turned                                                         \
        ";\n"                                                                                         \
        "}"                                                                                           \
        : NIBBLE_TILE_SUMS_##count                                                                    \
        : "l"(operand_word(a)), "l"(operand_word(b)), "r"(static_cast<int>(add)));                    \
  }
NIBBLE_TILE_WGMMA(64, "128", TileRows, TileColumns, "%66", "%64, %65", "0, 1")
NIBBLE_TILE_WGMMA(32, "64", TileRows, TileColumns, "%34", "%32, %33", "0, 1")
NIBBLE_TILE_WGMMA(16, "32", TileRows, TileColumns, "%18", "%16, %17", "0, 1")  // a tile's first 32 columns
// Rows of a are a tile's columns, and b lies in core matrices (wgmma_operand).
NIBBLE_TILE_WGMMA(16, "32", TileColumns, std::uint64_t, "%18", "%16, %17", "1, 0")

#undef NIBBLE_TILE_WGMMA
#undef NIBBLE_TILE_SUMS_8
#undef NIBBLE_TILE_SUMS_16
#undef NIBBLE_TILE_SUMS_32
#undef NIBBLE_TILE_SUMS_64
#undef NIBBLE_TILE_NAMES_16
#undef NIBBLE_TILE_NAMES_32
#undef NIBBLE_TILE_NAMES_64

}  // namespace nibble::ptx
