// Tensor-core products and the arithmetic that feeds them.
#pragma once

#include <cstdint>

namespace nibble::ptx {

// sums[16 x 8] += a[16 x 16] b[16 x 8] on bfloat16 pairs. Lane (g = lane / 4, t = lane % 4) holds
//   a: rows g, g + 8, g, g + 8, columns 2t, 2t + 1 (twice) and 2t + 8, 2t + 9 (twice)
//   b: rows 2t, 2t + 1 and 2t + 8, 2t + 9 of column g
//   sums: row g, columns 2t, 2t + 1, then row g + 8
// The bits of a sum are those of wgmma over the same sixteen columns.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&sums)[4], std::uint32_t a0, std::uint32_t a1,
                                                  std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                                  std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The bits of `a` where the mask is set, of `b` elsewhere, in one instruction.
__device__ __forceinline__ std::uint32_t choose_bits(std::uint32_t a, std::uint32_t b, std::uint32_t mask) {
  std::uint32_t chosen;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(chosen) : "r"(mask), "r"(a), "r"(b));
  return chosen;
}

// Two bfloat16 products, each rounded once; subnormals are kept.
__device__ __forceinline__ std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Two products less c, each rounded once; subnormals are kept.
__device__ __forceinline__ std::uint32_t multiply_subtract_bf16x2(std::uint32_t a, std::uint32_t b,
                                                                  std::uint32_t c) {
  std::uint32_t difference;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(difference) : "r"(a), "r"(b), "r"(c ^ 0x80008000u));
  return difference;
}

// Both rounded to bfloat16, to nearest even.
__device__ __forceinline__ std::uint32_t pack_bf16x2(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Two e4m3, the first in the low byte, as bfloat16, which holds them exactly; what is no number stays none.
__device__ __forceinline__ std::uint32_t bf16x2_of_e4m3x2(std::uint16_t codes) {
  std::uint32_t pair;
  asm("{\n"
      ".reg .b32 halves;\n"
      ".reg .b16 low, high;\n"
      ".reg .f32 first, second;\n"
      "cvt.rn.f16x2.e4m3x2 halves, %1;\n"
      "mov.b32 {low, high}, halves;\n"
      "cvt.f32.f16 first, low;\n"
      "cvt.f32.f16 second, high;\n"
      "cvt.rn.bf16x2.f32 %0, second, first;\n"
      "}"
      : "=r"(pair)
      : "h"(codes));
  return pair;
}

// The code of the nearest e4m3, ties to even, at most 448; of what is no number, one that is none.
__device__ __forceinline__ std::uint8_t e4m3_of(float value) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(value));
  return static_cast<std::uint8_t>(codes);
}

// The same of two, the first in the low byte.
__device__ __forceinline__ std::uint16_t e4m3x2_of(float low, float high) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

// The first and the third byte, each with its sign for two bytes.
__device__ __forceinline__ std::uint32_t sign_extended_low_bytes(std::uint32_t word) {
  std::uint32_t halves;
  asm("prmt.b32 %0, %1, 0, 0xa280;" : "=r"(halves) : "r"(word));
  return halves;
}

// 2^x within 2 units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

}  // namespace nibble::ptx
