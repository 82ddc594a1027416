// Products of a warpgroup: four consecutive warps, the first at a multiple of four.
#pragma once

#include <cstdint>

#include "ops/ptx/async_copy.cuh"

// A sum's registers as operands of an instruction, and their names in its text.
#define NIBBLE_SUMS_4(s, i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define NIBBLE_SUMS_8(s, i) NIBBLE_SUMS_4(s, i), NIBBLE_SUMS_4(s, i + 4)
#define NIBBLE_SUMS_12(s, i) NIBBLE_SUMS_8(s, i), NIBBLE_SUMS_4(s, i + 8)
#define NIBBLE_SUMS_16(s, i) NIBBLE_SUMS_8(s, i), NIBBLE_SUMS_8(s, i + 8)
#define NIBBLE_SUMS_32(s, i) NIBBLE_SUMS_16(s, i), NIBBLE_SUMS_16(s, i + 16)
#define NIBBLE_SUMS_48(s, i) NIBBLE_SUMS_32(s, i), NIBBLE_SUMS_16(s, i + 32)
#define NIBBLE_SUMS_56(s, i) NIBBLE_SUMS_48(s, i), NIBBLE_SUMS_8(s, i + 48)
#define NIBBLE_SUMS_64(s, i) NIBBLE_SUMS_32(s, i), NIBBLE_SUMS_32(s, i + 32)
#define NIBBLE_SUMS_72(s, i) NIBBLE_SUMS_64(s, i), NIBBLE_SUMS_8(s, i + 64)
#define NIBBLE_SUMS_80(s, i) NIBBLE_SUMS_64(s, i), NIBBLE_SUMS_16(s, i + 64)
#define NIBBLE_SUMS_88(s, i) NIBBLE_SUMS_80(s, i), NIBBLE_SUMS_8(s, i + 80)
#define NIBBLE_NAMES_4 "%0,%1,%2,%3"
#define NIBBLE_NAMES_8 NIBBLE_NAMES_4 ",%4,%5,%6,%7"
#define NIBBLE_NAMES_12 NIBBLE_NAMES_8 ",%8,%9,%10,%11"
#define NIBBLE_NAMES_16 NIBBLE_NAMES_12 ",%12,%13,%14,%15"
#define NIBBLE_NAMES_32 NIBBLE_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NIBBLE_NAMES_48 NIBBLE_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NIBBLE_NAMES_56 NIBBLE_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define NIBBLE_NAMES_64 NIBBLE_NAMES_56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define NIBBLE_NAMES_72 NIBBLE_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define NIBBLE_NAMES_80 NIBBLE_NAMES_72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define NIBBLE_NAMES_88 NIBBLE_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87"

namespace nibble::ptx {

// An operand of wgmma in shared memory, 16 k of it, in core matrices of 8 rows (of a) or columns (of b) x 16
// bytes. The two of eight rows (k 0..7, then 8..15) lie 128 bytes apart, the next eight rows group_bytes
// further on. No swizzle.
template <int group_bytes>
__device__ __forceinline__ std::uint64_t wgmma_operand(const void* shared) {
  constexpr std::uint64_t along_k = 128;
  return (shared_address(shared) & 0x3ffffu) >> 4 | (along_k >> 4) << 16 |
         (std::uint64_t{group_bytes} >> 4) << 32;
}

// The same for one column of b that lies in memory as it is: the other seven, for which it is read, begin 16
// bytes further on each and run on as far behind it.
__device__ __forceinline__ std::uint64_t wgmma_row_operand(const void* shared) {
  constexpr std::uint64_t along_k = 16;
  return (shared_address(shared) & 0x3ffffu) >> 4 | (along_k >> 4) << 16;
}

// The operand that lies `bytes` (a multiple of 16) further on. Added to the whole word that is one
// instruction; to the half that holds the address, three.
__device__ __forceinline__ std::uint64_t wgmma_operand_at(std::uint64_t operand, unsigned bytes) {
  return operand + bytes / 16;
}

// Registers that the next product reads or adds to hold what was written to them.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of products.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Returns when all groups but the last one are done with what they read; no sum may be touched yet.
__device__ __forceinline__ void wgmma_wait_but_last() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

// wgmma_wait returns when all groups are done, and with them what they add to these sums: nothing that reads
// the sums may come before.
#define NIBBLE_WGMMA_WAIT(count)                                                                  \
  __device__ __forceinline__ void wgmma_wait(float(&sums)[count]) {                               \
    asm volatile("wgmma.wait_group.sync.aligned 0;" : NIBBLE_SUMS_##count(sums, 0) : : "memory"); \
  }
NIBBLE_WGMMA_WAIT(4)
NIBBLE_WGMMA_WAIT(8)
NIBBLE_WGMMA_WAIT(12)
NIBBLE_WGMMA_WAIT(16)
NIBBLE_WGMMA_WAIT(32)
NIBBLE_WGMMA_WAIT(64)
NIBBLE_WGMMA_WAIT(80)
#undef NIBBLE_WGMMA_WAIT

// wgmma_bf16: sums[64 x n] = a[64 x 16] b[16 x n], plus what sums held if `add`, on bfloat16; n is twice the
// number of sums a thread has. Under way when it returns. Warp w has rows 16w .. 16w + 15, of every 8 columns
// four sums as mma_m16n8k16_bf16 leaves them.
#define NIBBLE_WGMMA(count, columns, a_name, b_name, add_name)                                      \
  __device__ __forceinline__ void wgmma_bf16(float(&sums)[count], std::uint64_t a, std::uint64_t b, \
                                             bool add) {                                            \
    asm volatile(                                                                                   \
        "{\n"                                                                                       \
        ".reg .pred add;\n"                                                                         \
        "setp.ne.b32 add, " add_name                                                                \
        ", 0;\n"                                                                                    \
        "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" NIBBLE_NAMES_##count      \
        "}, " a_name ", " b_name                                                                    \
        ", add, 1, 1, 0, 0;\n"                                                                      \
        "}"                                                                                         \
        : NIBBLE_SUMS_##count(sums, 0)                                                              \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                              \
  }
NIBBLE_WGMMA(4, "8", "%4", "%5", "%6")
NIBBLE_WGMMA(8, "16", "%8", "%9", "%10")
NIBBLE_WGMMA(12, "24", "%12", "%13", "%14")
NIBBLE_WGMMA(16, "32", "%16", "%17", "%18")
NIBBLE_WGMMA(32, "64", "%32", "%33", "%34")
NIBBLE_WGMMA(48, "96", "%48", "%49", "%50")
NIBBLE_WGMMA(56, "112", "%56", "%57", "%58")
NIBBLE_WGMMA(64, "128", "%64", "%65", "%66")
NIBBLE_WGMMA(72, "144", "%72", "%73", "%74")
NIBBLE_WGMMA(80, "160", "%80", "%81", "%82")
NIBBLE_WGMMA(88, "176", "%88", "%89", "%90")
#undef NIBBLE_WGMMA

}  // namespace nibble::ptx

#undef NIBBLE_SUMS_4
#undef NIBBLE_SUMS_8
#undef NIBBLE_SUMS_12
#undef NIBBLE_SUMS_16
#undef NIBBLE_SUMS_32
#undef NIBBLE_SUMS_64
#undef NIBBLE_SUMS_80
#undef NIBBLE_SUMS_88
#undef NIBBLE_NAMES_4
#undef NIBBLE_NAMES_8
#undef NIBBLE_NAMES_12
#undef NIBBLE_NAMES_16
#undef NIBBLE_NAMES_32
#undef NIBBLE_NAMES_64
#undef NIBBLE_NAMES_80
#undef NIBBLE_NAMES_88
