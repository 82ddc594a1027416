// Dense weights in fewer bits than the checkpoint's bfloat16, made while a model is loaded: projections of
// attention and of the gated delta rule, dense layers, shared experts and lm_head.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/architecture.h"
#include "checkpoint/weight_source.h"
#include "ops/linear/weight_matrix.h"
#include "plan/model_traits.h"
#include "tensor/buffer.h"

namespace nibble {

enum class DenseFormat : std::uint8_t { bf16, q8, mxfp4 };

// What stays as the checkpoint has it, and why. Without a reason it is converted; a name that is empty is
// that of what is counted together with it.
StoredMatrices stays_as_stored(const Weight& weight);

// Called with the values that are converted and those there are in all.
using ConversionProgress = std::function<void(double done, double total)>;

// Replaces each matrix, bfloat16 from `source`, by its form in q8 or mxfp4, all threads on one matrix at a
// time, and gives the mapped pages of the original back. Returns the memory that the new ones lie in.
Result<Buffer> convert_dense(std::span<WeightMatrix* const> matrices, DenseFormat format,
                             const WeightSource& source, ThreadPool& threads,
                             const ConversionProgress& progress);

}  // namespace nibble
