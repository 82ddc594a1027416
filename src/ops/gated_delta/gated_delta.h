// The mixer of Qwen3-Next and Qwen3.5: a short causal convolution, the gated delta rule, and a norm by head
// with a gate.
//
// Every head of values has a state S [key_dim, value_dim], zero before position 0. At each position
//
//   q, k = x * (1 / sqrt(sum x^2 + 1e-6)) of the head of keys; q further by 1 / sqrt(key_dim)
//   beta = sigmoid(b);  g = -rate * softplus(a + bias)
//   S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q
//
// delta_recurrence.h computes it as it stands. Here S is brought forward once a chunk of 64 positions, whose
// borders are multiples of 64. With G_p the sum of g over the chunk up to p, and S that of the chunk's first
// border,
//
//   u_p = beta_p ((v_p - e^G_p (S^T k_p)) - e^(G_p - G_j) (k_j . k_p) u_j - ...)   j ascending below p
//   o_p = (e^G_p (S^T q_p) + e^(G_p - G_j) (k_j . q_p) u_j + ...)                  j ascending up to p
//   S'  = e^G_63 S + (e^(G_63 - G_j) k_j) u_j^T + ...                              j ascending over the chunk
//
// Order of additions: S^T x over the keys' dimensions, ascending; x . y and the sums of squares as
// ops/row/row_kernels.h adds (sixteen lanes and a tree); G in double precision, ascending; the rest as it is
// written, each step rounded to float32. Nothing depends on where a step begins or ends, on the batch or on
// threads: a prompt in one piece, in pieces, and token by token gives the same bits.
#pragma once

#include <span>

#include "formats/bf16.h"
#include "ops/gated_delta/delta_state.h"
#include "ops/op_context.h"

namespace nibble {

// Projections that lie by head of keys (Qwen3-Next), as the ops below want them.
struct SplitByKeyHeadArgs {
  DeltaShape shape;
  int rows = 0;
  const float* qkv_z = nullptr;      // [rows, key_heads, q and k of one, then v and z of those it serves]
  const float* b_a = nullptr;        // [rows, key_heads, b and a of those it serves]
  float* qkv = nullptr;              // [rows, channels]
  float* z = nullptr;                // [rows, value_heads, value_dim]
  float *b = nullptr, *a = nullptr;  // [rows, value_heads]
};
void split_by_key_head(OpContext& context, const SplitByKeyHeadArgs& args);

// out[c] = silu(w[0][c] x_(p - taps + 1)[c] + ... + w[taps - 1][c] x_p[c]), taps in this order; positions
// below 0 are left out.
struct ShortConvolutionArgs {
  const float* x = nullptr;       // [rows, channels]
  const float* weight = nullptr;  // [taps, channels]
  std::span<const StateRows> sequences;
  DeltaLayer layer;      // whose inputs are read and replaced
  float* out = nullptr;  // [rows, channels]; not x
};
void short_convolution(OpContext& context, const ShortConvolutionArgs& args);

// What the heads of values forget by, in float32.
struct DeltaGates {
  const float* rate = nullptr;  // [value_heads]: e^A_log
  const float* bias = nullptr;  // [value_heads]: dt_bias
};

struct GatedDeltaArgs {
  float* qkv = nullptr;      // [rows, channels]: q of all heads, k of all heads, v; q and k are normalised
  const float* b = nullptr;  // [rows, value_heads]
  const float* a = nullptr;  // [rows, value_heads]
  DeltaGates gates;
  std::span<const StateRows> sequences;
  DeltaLayer layer;      // whose states are read and brought forward
  float* out = nullptr;  // [rows, value_heads, value_dim]
};
void gated_delta(OpContext& context, const GatedDeltaArgs& args);

// x = x * (1 / sqrt(mean(x^2) + eps)) * weight * silu(z), each head by itself, in place, and rounded as the
// input of a product (op_context.h).
struct GatedHeadNormArgs {
  float* x = nullptr;             // [rows, heads, head_dim], updated
  const float* z = nullptr;       // [rows, heads, head_dim]
  const float* weight = nullptr;  // [head_dim]
  int rows = 0;
  int heads = 0;
  int head_dim = 0;
  float eps = 0;
};
void gated_head_norm(OpContext& context, const GatedHeadNormArgs& args);

}  // namespace nibble
