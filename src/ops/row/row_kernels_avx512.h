// row_kernels.h in AVX-512; fewer than a register's elements at the end of a row are masked.
#pragma once

#include "ops/row/row_kernels.h"

namespace nibble::avx512_rows {

bool supported();
float add_and_square(float* x, const float* delta, int n);
void scale(const float* x, float factor, const Bf16* weight, bool narrow, int n, float* out);
void rotate(float* x, const float* cos, const float* sin, int half);
RowScan scan(const float* x, int n);
double exp_sum(const float* x, float largest, int n);
void weigh(const float* x, float largest, float temperature, int n, float* out);
float dot(const float* a, const float* b, int n);
void add_scaled(float* sum, float factor, const float* x, int n);

}  // namespace nibble::avx512_rows
