// row_kernels.h in AVX2; fewer than a register's elements at the end of a row are done one by one.
#pragma once

#include "ops/row/row_kernels.h"

namespace nibble::avx2_rows {

bool supported();
float add_and_square(float* x, const float* delta, int n);
void scale(const float* x, float factor, const Bf16* weight, bool narrow, int n, float* out);
void rotate(float* x, const float* cos, const float* sin, int half);
RowScan scan(const float* x, int n);
double exp_sum(const float* x, float largest, int n);
void weigh(const float* x, float largest, float temperature, int n, float* out);
void swiglu(const float* totals, const Bf16* bias, float limit, bool narrow, int n, float* out);
void gate(const float* gates, const float* ups, const GatedUnit& unit, bool narrow, int n, float* out);
float dot(const float* a, const float* b, int n);
void add_scaled(float* sum, float factor, const float* x, int n);

}  // namespace nibble::avx2_rows
