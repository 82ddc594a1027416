#pragma once

#include "formats/bf16.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {nibble::Bf16::from_float(value).bits}; }
