// What is done to one row element by element, or summed over it: the vector work of norms, rotary embedding,
// the activation of experts and sampling. Sums run in sixteen lanes, lane l taking the elements l, l + 16,
// ... in order; lanes are then added as a fixed tree (l with l + 8, then 4, 2, 1). So bits depend on the
// width alone, not on the instruction set.
#pragma once

#include <span>
#include <string_view>

#include "formats/bf16.h"
#include "ops/row/gated_unit.h"

namespace nibble {

struct RowScan {
  float largest = 0;
  bool finite = true;  // false: a NaN or Inf is among them, and `largest` means nothing
};

struct RowKernels {
  std::string_view name;
  bool (*supported)();  // by this machine

  // x += delta (null: nothing is added); the sum of the squares of what x then is.
  float (*add_and_square)(float* x, const float* delta, int n);
  // out = x * scale * weight; `narrow` rounds each to bfloat16.
  void (*scale)(const float* x, float scale, const Bf16* weight, bool narrow, int n, float* out);
  // (x[i], x[half + i]) turned by (cos[i], sin[i]).
  void (*rotate)(float* x, const float* cos, const float* sin, int half);
  RowScan (*scan)(const float* x, int n);
  // Sum of e^(x - largest), each term by fixed_exp, added in double precision.
  double (*exp_sum)(const float* x, float largest, int n);
  // out = e^((x - largest) / temperature) by fixed_exp.
  void (*weigh)(const float* x, float largest, float temperature, int n, float* out);
  // out[i] = clamped_swiglu of gate i and up projection i, which alternate in `totals` and `bias`; `narrow`
  // rounds each to bfloat16.
  void (*swiglu)(const float* totals, const Bf16* bias, float limit, bool narrow, int n, float* out);
  // out[i] = gated(gate[i], up[i], unit), which may lie where the gates do; `narrow` as above.
  void (*gate)(const float* gate, const float* up, const GatedUnit& unit, bool narrow, int n, float* out);
  // Sum of a[i] b[i]: fused multiply-adds from 0 in each lane.
  float (*dot)(const float* a, const float* b, int n);
  // sum[i] += factor * x[i], fused.
  void (*add_scaled)(float* sum, float factor, const float* x, int n);
};

// In order of preference; the last one runs anywhere. All give the same bits.
std::span<const RowKernels> row_kernels();
// The first that this machine supports.
const RowKernels& best_row_kernels();

}  // namespace nibble
