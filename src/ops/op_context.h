// What every op is handed besides its arguments. Passed down from the runtime's worker, never global.
#pragma once

#include "base/thread_pool.h"
#include "base/time_table.h"
#include "ops/linear/dot_kernels.h"

namespace nibble {

struct AttentionKernels;  // ops/attention/attention_kernels.h
const AttentionKernels& best_attention_kernels();
struct RowKernels;  // ops/row/row_kernels.h
const RowKernels& best_row_kernels();
struct DeltaKernels;  // ops/gated_delta/delta_kernels.h
const DeltaKernels& best_delta_kernels();
struct LatentKernels;  // ops/latent_attention/latent_kernels.h
const LatentKernels& best_latent_kernels();

struct OpContext {
  ThreadPool& threads;  // owned by the worker, which outlives every op it runs
  const DotKernels& dots = best_dot_kernels();
  const AttentionKernels& attention = best_attention_kernels();
  const RowKernels& rows = best_row_kernels();
  const DeltaKernels& deltas = best_delta_kernels();
  const LatentKernels& latents = best_latent_kernels();
  // What enters a matrix product: float32 as it was computed, or rounded to bfloat16 once, by the op that
  // made it; a product itself rounds to eight bits, whole numbers or FP8.
  InputValues activations = InputValues::any_float;
  WeightLines weight_lines = WeightLines::each;
  TimeTable* times = nullptr;  // null: nobody asks where the time goes

  bool rounds_to_bf16() const { return activations != InputValues::any_float; }
  float activation(float value) const {
    return rounds_to_bf16() ? Bf16::from_float(value).to_float() : value;
  }
};

}  // namespace nibble
