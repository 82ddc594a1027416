// Products of a warpgroup whose first operand comes from registers, and the shares of registers that
// warpgroups hold.
#pragma once

#include <cstdint>

// A sum's registers as operands of an instruction, and their names in its text, by how many fours there are.
#define NIBBLE_SUMS_1(s) "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
#define NIBBLE_SUMS_2(s) NIBBLE_SUMS_1(s), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7])
#define NIBBLE_SUMS_3(s) NIBBLE_SUMS_2(s), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11])
#define NIBBLE_SUMS_4(s) NIBBLE_SUMS_3(s), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15])
#define NIBBLE_SUMS_5(s) NIBBLE_SUMS_4(s), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19])
#define NIBBLE_SUMS_6(s) NIBBLE_SUMS_5(s), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23])
#define NIBBLE_SUMS_7(s) NIBBLE_SUMS_6(s), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27])
#define NIBBLE_SUMS_8(s) NIBBLE_SUMS_7(s), "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
#define NIBBLE_SUMS_9(s) NIBBLE_SUMS_8(s), "+f"(s[32]), "+f"(s[33]), "+f"(s[34]), "+f"(s[35])
#define NIBBLE_SUMS_10(s) NIBBLE_SUMS_9(s), "+f"(s[36]), "+f"(s[37]), "+f"(s[38]), "+f"(s[39])
#define NIBBLE_SUMS_11(s) NIBBLE_SUMS_10(s), "+f"(s[40]), "+f"(s[41]), "+f"(s[42]), "+f"(s[43])
#define NIBBLE_SUMS_12(s) NIBBLE_SUMS_11(s), "+f"(s[44]), "+f"(s[45]), "+f"(s[46]), "+f"(s[47])
#define NIBBLE_SUMS_13(s) NIBBLE_SUMS_12(s), "+f"(s[48]), "+f"(s[49]), "+f"(s[50]), "+f"(s[51])
#define NIBBLE_SUMS_14(s) NIBBLE_SUMS_13(s), "+f"(s[52]), "+f"(s[53]), "+f"(s[54]), "+f"(s[55])
#define NIBBLE_SUMS_15(s) NIBBLE_SUMS_14(s), "+f"(s[56]), "+f"(s[57]), "+f"(s[58]), "+f"(s[59])
#define NIBBLE_SUMS_16(s) NIBBLE_SUMS_15(s), "+f"(s[60]), "+f"(s[61]), "+f"(s[62]), "+f"(s[63])
#define NIBBLE_SUMS_17(s) NIBBLE_SUMS_16(s), "+f"(s[64]), "+f"(s[65]), "+f"(s[66]), "+f"(s[67])
#define NIBBLE_SUMS_18(s) NIBBLE_SUMS_17(s), "+f"(s[68]), "+f"(s[69]), "+f"(s[70]), "+f"(s[71])
#define NIBBLE_SUMS_19(s) NIBBLE_SUMS_18(s), "+f"(s[72]), "+f"(s[73]), "+f"(s[74]), "+f"(s[75])
#define NIBBLE_SUMS_20(s) NIBBLE_SUMS_19(s), "+f"(s[76]), "+f"(s[77]), "+f"(s[78]), "+f"(s[79])
#define NIBBLE_SUMS_21(s) NIBBLE_SUMS_20(s), "+f"(s[80]), "+f"(s[81]), "+f"(s[82]), "+f"(s[83])
#define NIBBLE_SUMS_22(s) NIBBLE_SUMS_21(s), "+f"(s[84]), "+f"(s[85]), "+f"(s[86]), "+f"(s[87])
#define NIBBLE_NAMES_1 "%0,%1,%2,%3"
#define NIBBLE_NAMES_2 NIBBLE_NAMES_1 ",%4,%5,%6,%7"
#define NIBBLE_NAMES_3 NIBBLE_NAMES_2 ",%8,%9,%10,%11"
#define NIBBLE_NAMES_4 NIBBLE_NAMES_3 ",%12,%13,%14,%15"
#define NIBBLE_NAMES_5 NIBBLE_NAMES_4 ",%16,%17,%18,%19"
#define NIBBLE_NAMES_6 NIBBLE_NAMES_5 ",%20,%21,%22,%23"
#define NIBBLE_NAMES_7 NIBBLE_NAMES_6 ",%24,%25,%26,%27"
#define NIBBLE_NAMES_8 NIBBLE_NAMES_7 ",%28,%29,%30,%31"
#define NIBBLE_NAMES_9 NIBBLE_NAMES_8 ",%32,%33,%34,%35"
#define NIBBLE_NAMES_10 NIBBLE_NAMES_9 ",%36,%37,%38,%39"
#define NIBBLE_NAMES_11 NIBBLE_NAMES_10 ",%40,%41,%42,%43"
#define NIBBLE_NAMES_12 NIBBLE_NAMES_11 ",%44,%45,%46,%47"
#define NIBBLE_NAMES_13 NIBBLE_NAMES_12 ",%48,%49,%50,%51"
#define NIBBLE_NAMES_14 NIBBLE_NAMES_13 ",%52,%53,%54,%55"
#define NIBBLE_NAMES_15 NIBBLE_NAMES_14 ",%56,%57,%58,%59"
#define NIBBLE_NAMES_16 NIBBLE_NAMES_15 ",%60,%61,%62,%63"
#define NIBBLE_NAMES_17 NIBBLE_NAMES_16 ",%64,%65,%66,%67"
#define NIBBLE_NAMES_18 NIBBLE_NAMES_17 ",%68,%69,%70,%71"
#define NIBBLE_NAMES_19 NIBBLE_NAMES_18 ",%72,%73,%74,%75"
#define NIBBLE_NAMES_20 NIBBLE_NAMES_19 ",%76,%77,%78,%79"
#define NIBBLE_NAMES_21 NIBBLE_NAMES_20 ",%80,%81,%82,%83"
#define NIBBLE_NAMES_22 NIBBLE_NAMES_21 ",%84,%85,%86,%87"

namespace nibble::ptx {

// Returns when at most `pending` groups of products are not done with what they read; no sum may be touched
// yet.
template <int pending>
__device__ __forceinline__ void wgmma_wait_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// The same when these sums are of a group that is done: what reads them afterwards stays behind it.
template <int pending, int count>
__device__ __forceinline__ void wgmma_wait_but(float (&sums)[count]) {
  wgmma_wait_but<pending>();
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// What these hold is computed before a wait that follows, not after it, where the compiler likes it.
template <int count>
__device__ __forceinline__ void computed_before(float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Returns when all groups are done; what reads these sums afterwards stays behind it.
template <int count>
__device__ __forceinline__ void wgmma_wait_all(float (&sums)[count]) {
  wgmma_wait_but<0>();
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// wgmma_bf16: sums[64 x n] = a[64 x 16] b[16 x n], plus what sums held if `add`, on bfloat16; n is twice the
// number of sums a thread has. a as mma_m16n8k16_bf16 takes it, warp w with rows 16w .. 16w + 15; of every 8
// columns four sums as that leaves them. Under way when it returns: neither a's registers nor the sums may
// change before a wait.
#define NIBBLE_WGMMA(fours, columns, a0_name, a1_name, a2_name, a3_name, b_name, add_name)        \
  __device__ __forceinline__ void wgmma_bf16(float(&sums)[4 * fours], const std::uint32_t(&a)[4], \
                                             std::uint64_t b, bool add) {                         \
    asm volatile(                                                                                 \
        "{\n"                                                                                     \
        ".reg .pred add;\n"                                                                       \
        "setp.ne.b32 add, " add_name                                                              \
        ", 0;\n"                                                                                  \
        "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" NIBBLE_NAMES_##fours    \
        "}, {" a0_name "," a1_name "," a2_name "," a3_name "}, " b_name                           \
        ", add, 1, 1, 0;\n"                                                                       \
        "}"                                                                                       \
        : NIBBLE_SUMS_##fours(sums)                                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));        \
  }
NIBBLE_WGMMA(1, "8", "%4", "%5", "%6", "%7", "%8", "%9")
NIBBLE_WGMMA(2, "16", "%8", "%9", "%10", "%11", "%12", "%13")
NIBBLE_WGMMA(3, "24", "%12", "%13", "%14", "%15", "%16", "%17")
NIBBLE_WGMMA(4, "32", "%16", "%17", "%18", "%19", "%20", "%21")
NIBBLE_WGMMA(5, "40", "%20", "%21", "%22", "%23", "%24", "%25")
NIBBLE_WGMMA(6, "48", "%24", "%25", "%26", "%27", "%28", "%29")
NIBBLE_WGMMA(7, "56", "%28", "%29", "%30", "%31", "%32", "%33")
NIBBLE_WGMMA(8, "64", "%32", "%33", "%34", "%35", "%36", "%37")
NIBBLE_WGMMA(9, "72", "%36", "%37", "%38", "%39", "%40", "%41")
NIBBLE_WGMMA(10, "80", "%40", "%41", "%42", "%43", "%44", "%45")
NIBBLE_WGMMA(11, "88", "%44", "%45", "%46", "%47", "%48", "%49")
NIBBLE_WGMMA(12, "96", "%48", "%49", "%50", "%51", "%52", "%53")
NIBBLE_WGMMA(13, "104", "%52", "%53", "%54", "%55", "%56", "%57")
NIBBLE_WGMMA(14, "112", "%56", "%57", "%58", "%59", "%60", "%61")
NIBBLE_WGMMA(15, "120", "%60", "%61", "%62", "%63", "%64", "%65")
NIBBLE_WGMMA(16, "128", "%64", "%65", "%66", "%67", "%68", "%69")
NIBBLE_WGMMA(17, "136", "%68", "%69", "%70", "%71", "%72", "%73")
NIBBLE_WGMMA(18, "144", "%72", "%73", "%74", "%75", "%76", "%77")
NIBBLE_WGMMA(19, "152", "%76", "%77", "%78", "%79", "%80", "%81")
NIBBLE_WGMMA(20, "160", "%80", "%81", "%82", "%83", "%84", "%85")
NIBBLE_WGMMA(21, "168", "%84", "%85", "%86", "%87", "%88", "%89")
NIBBLE_WGMMA(22, "176", "%88", "%89", "%90", "%91", "%92", "%93")
#undef NIBBLE_WGMMA

// By all threads of a warpgroup: registers that it leaves to others, and registers it waits for others to
// leave. Takes effect in branches that whole warpgroups take.
template <int registers>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace nibble::ptx

#undef NIBBLE_SUMS_1
#undef NIBBLE_SUMS_2
#undef NIBBLE_SUMS_3
#undef NIBBLE_SUMS_4
#undef NIBBLE_SUMS_5
#undef NIBBLE_SUMS_6
#undef NIBBLE_SUMS_7
#undef NIBBLE_SUMS_8
#undef NIBBLE_SUMS_9
#undef NIBBLE_SUMS_10
#undef NIBBLE_SUMS_11
#undef NIBBLE_SUMS_12
#undef NIBBLE_SUMS_13
#undef NIBBLE_SUMS_14
#undef NIBBLE_SUMS_15
#undef NIBBLE_SUMS_16
#undef NIBBLE_SUMS_17
#undef NIBBLE_SUMS_18
#undef NIBBLE_SUMS_19
#undef NIBBLE_SUMS_20
#undef NIBBLE_SUMS_21
#undef NIBBLE_SUMS_22
#undef NIBBLE_NAMES_1
#undef NIBBLE_NAMES_2
#undef NIBBLE_NAMES_3
#undef NIBBLE_NAMES_4
#undef NIBBLE_NAMES_5
#undef NIBBLE_NAMES_6
#undef NIBBLE_NAMES_7
#undef NIBBLE_NAMES_8
#undef NIBBLE_NAMES_9
#undef NIBBLE_NAMES_10
#undef NIBBLE_NAMES_11
#undef NIBBLE_NAMES_12
#undef NIBBLE_NAMES_13
#undef NIBBLE_NAMES_14
#undef NIBBLE_NAMES_15
#undef NIBBLE_NAMES_16
#undef NIBBLE_NAMES_17
#undef NIBBLE_NAMES_18
#undef NIBBLE_NAMES_19
#undef NIBBLE_NAMES_20
#undef NIBBLE_NAMES_21
#undef NIBBLE_NAMES_22
