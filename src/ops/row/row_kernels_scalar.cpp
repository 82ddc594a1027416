#include <cmath>

#include "base/check.h"
#include "ops/fixed_math.h"
#include "ops/row/clamped_swiglu.h"
#include "ops/row/row_kernels.h"
#include "ops/row/row_kernels_avx2.h"
#include "ops/row/row_kernels_avx512.h"

namespace nibble {
namespace {

constexpr int lane_count = 16;

template <class Sum>
Sum tree_sum(Sum (&lanes)[lane_count]) {
  for (int width = lane_count / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

float add_and_square(float* x, const float* delta, int n) {
  float lanes[lane_count] = {};
  for (int i = 0; i < n; ++i) {
    if (delta != nullptr) x[i] += delta[i];
    lanes[i % lane_count] += x[i] * x[i];
  }
  return tree_sum(lanes);
}

void scale(const float* x, float factor, const Bf16* weight, bool narrow, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    const float value = x[i] * factor * weight[i].to_float();
    out[i] = narrow ? Bf16::from_float(value).to_float() : value;
  }
}

void rotate(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

RowScan scan(const float* x, int n) {
  RowScan found{.largest = x[0]};
  for (int i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) found.finite = false;
    if (x[i] > found.largest) found.largest = x[i];
  }
  return found;
}

double exp_sum(const float* x, float largest, int n) {
  double lanes[lane_count] = {};
  for (int i = 0; i < n; ++i) lanes[i % lane_count] += fixed_exp(x[i] - largest);
  return tree_sum(lanes);
}

void weigh(const float* x, float largest, float temperature, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = fixed_exp((x[i] - largest) / temperature);
}

void swiglu(const float* totals, const Bf16* bias, float limit, bool narrow, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = clamped_swiglu(totals + 2 * i, bias + 2 * i, limit, narrow);
}

void gate_rows(const float* gate, const float* up, const GatedUnit& unit, bool narrow, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    const float value = gated(gate[i], up[i], unit);
    out[i] = narrow ? Bf16::from_float(value).to_float() : value;
  }
}

float dot(const float* a, const float* b, int n) {
  float lanes[lane_count] = {};
  for (int i = 0; i < n; ++i) lanes[i % lane_count] = std::fma(a[i], b[i], lanes[i % lane_count]);
  return tree_sum(lanes);
}

void add_scaled(float* sum, float factor, const float* x, int n) {
  for (int i = 0; i < n; ++i) sum[i] = std::fma(factor, x[i], sum[i]);
}

bool always_supported() { return true; }

// A tile of rows has eight pairs of projections, as many as AVX2 has lanes.
constexpr RowKernels kernels[] = {
    {"avx512", avx512_rows::supported, avx512_rows::add_and_square, avx512_rows::scale, avx512_rows::rotate,
     avx512_rows::scan, avx512_rows::exp_sum, avx512_rows::weigh, avx2_rows::swiglu, avx2_rows::gate,
     avx512_rows::dot, avx512_rows::add_scaled},
    {"avx2", avx2_rows::supported, avx2_rows::add_and_square, avx2_rows::scale, avx2_rows::rotate,
     avx2_rows::scan, avx2_rows::exp_sum, avx2_rows::weigh, avx2_rows::swiglu, avx2_rows::gate,
     avx2_rows::dot, avx2_rows::add_scaled},
    {"scalar", always_supported, add_and_square, scale, rotate, scan, exp_sum, weigh, swiglu, gate_rows, dot,
     add_scaled},
};

}  // namespace

std::span<const RowKernels> row_kernels() { return kernels; }

const RowKernels& best_row_kernels() {
  for (const RowKernels& each : kernels) {
    if (each.supported()) return each;
  }
  NIBBLE_CHECK(false, "the scalar kernels run anywhere");
  return kernels[0];
}

}  // namespace nibble
