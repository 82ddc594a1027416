// A block of NVFP4 encoded by several threads, as formats/nvfp4.h has it. There is no instruction for E2M1
// before SM100.
#pragma once

#include <cfloat>
#include <cstdint>

#include "ops/ptx/tensor_core.cuh"

namespace nibble {

inline constexpr std::uint32_t nvfp4_scale_none = 0x7f;  // NaN; all codes are then 0

struct Nvfp4Scale {
  std::uint32_t code;
  float factor;  // of values, before they become E2M1
};

// From the bits of the block's largest magnitude as a bfloat16.
__device__ __forceinline__ Nvfp4Scale nvfp4_scale(unsigned largest, float global_scale) {
  constexpr unsigned infinity = 0x7f80;
  if (largest >= infinity) return {nvfp4_scale_none, 0};
  const std::uint32_t code = ptx::e4m3_of(__fmul_rn(global_scale, __uint_as_float(largest << 16)) / 6.0f);
  if (code == 0) return {0, 0};
  const float scale = __uint_as_float(ptx::bf16x2_of_e4m3x2(static_cast<std::uint16_t>(code)) << 16);
  return {code, fminf(global_scale / scale, FLT_MAX)};  // infinite it would turn zeros into NaN
}

// To the nearest, ties to even, at most 6.
__device__ __forceinline__ std::uint32_t e2m1_of(float value) {
  const float magnitude = fabsf(value);
  const std::uint32_t above = (magnitude > 0.25f ? 1u : 0u) + (magnitude >= 0.75f ? 1u : 0u) +
                              (magnitude > 1.25f ? 1u : 0u) + (magnitude >= 1.75f ? 1u : 0u) +
                              (magnitude > 2.5f ? 1u : 0u) + (magnitude >= 3.5f ? 1u : 0u) +
                              (magnitude > 5.0f ? 1u : 0u);
  return above | (__float_as_uint(value) >> 28 & 8u);
}

}  // namespace nibble
