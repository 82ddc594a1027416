// Products of a warpgroup in FP8 (E4M3): the first operand comes from registers, the second is a tile in
// shared memory whose rows of 128 codes lie as warpgroup_swizzled.cuh says.
//
// The tensor core adds up such products with fewer bits than a float32 has, so a sum that is to be one may
// not be long.
#pragma once

#include <cstdint>

#include "ops/ptx/warpgroup_swizzled.cuh"

#define NIBBLE_EIGHT_SUMS(s, i)                                                               \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), \
      "+f"(s[i + 6]), "+f"(s[i + 7])
#define NIBBLE_SUMS_8(s) NIBBLE_EIGHT_SUMS(s, 0)
#define NIBBLE_SUMS_16(s) NIBBLE_EIGHT_SUMS(s, 0), NIBBLE_EIGHT_SUMS(s, 8)
#define NIBBLE_SUMS_32(s) NIBBLE_SUMS_16(s), NIBBLE_EIGHT_SUMS(s, 16), NIBBLE_EIGHT_SUMS(s, 24)
#define NIBBLE_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NIBBLE_NAMES_16 NIBBLE_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NIBBLE_NAMES_32 NIBBLE_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"

namespace nibble::ptx {

// wgmma_e4m3: sums[64 x n] = a[64 x 32] b[32 x n], plus what sums held if `add`; n is twice the number of
// sums a thread has. Lane 4g + t of warp w has, of a's rows 16w + g and 16w + g + 8, the codes 4t .. 4t + 3,
// then of both those at 16 + 4t ..; of every 8 columns four sums as mma_m16n8k16_bf16 leaves them. Under way
// when it returns: neither a's registers nor the sums may change before a wait.
#define NIBBLE_WGMMA(count, columns, a0_name, a1_name, a2_name, a3_name, b_name, add_name)      \
  __device__ __forceinline__ void wgmma_e4m3(float(&sums)[count], const std::uint32_t(&a)[4],   \
                                             const TileRows& b, bool add) {                     \
    asm volatile(                                                                               \
        "{\n"                                                                                   \
        ".reg .pred add;\n"                                                                     \
        "setp.ne.b32 add, " add_name                                                            \
        ", 0;\n"                                                                                \
        "wgmma.mma_async.sync.aligned.m64n" columns "k32.f32.e4m3.e4m3 {" NIBBLE_NAMES_##count  \
        "}, {" a0_name "," a1_name "," a2_name "," a3_name "}, " b_name                         \
        ", add, 1, 1;\n"                                                                        \
        "}"                                                                                     \
        : NIBBLE_SUMS_##count(sums)                                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.word), "r"(static_cast<int>(add))); \
  }
NIBBLE_WGMMA(8, "16", "%8", "%9", "%10", "%11", "%12", "%13")
NIBBLE_WGMMA(16, "32", "%16", "%17", "%18", "%19", "%20", "%21")
NIBBLE_WGMMA(32, "64", "%32", "%33", "%34", "%35", "%36", "%37")
#undef NIBBLE_WGMMA

}  // namespace nibble::ptx

#undef NIBBLE_EIGHT_SUMS
#undef NIBBLE_SUMS_8
#undef NIBBLE_SUMS_16
#undef NIBBLE_SUMS_32
#undef NIBBLE_NAMES_8
#undef NIBBLE_NAMES_16
#undef NIBBLE_NAMES_32
