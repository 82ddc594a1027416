// The tensors a configuration asks for, and how a checkpoint's own compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/model_config.h"
#include "checkpoint/problems.h"
#include "checkpoint/weight_source.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace nibble {

// How much of a tensor one token reads.
enum class TensorUse : std::uint8_t {
  whole,    // attention, norms, router, lm_head
  one_row,  // the embedding
  experts,  // num_experts_per_tok of num_local_experts
};

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::bf16;
  Shape shape;
  TensorUse use = TensorUse::whole;
  bool by_expert = false;    // its first axis counts experts
  bool e8m0_scales = false;  // bytes of which 255 means NaN

  std::int64_t bytes() const { return shape.count() * static_cast<std::int64_t>(dtype_bytes(dtype)); }
};

// In the order of the forward pass.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// Bytes of weights one token reads at batch 1: attention, norms, routers and lm_head once, its share of
// the experts, and one row of the embedding.
std::int64_t active_bytes_per_token(const ModelConfig& config);

// What is missing, extra, of another dtype or shape, or holds a scale that is NaN. Reads every scale.
void compare_tensors(const ModelConfig& config, const WeightSource& source, Problems& problems);

// The same for loading: the first problem. The threads read the scales together.
Status check_tensors(const ModelConfig& config, const WeightSource& source, ThreadPool& threads);

}  // namespace nibble
