// The tensors a configuration asks for, and how a checkpoint's own compare.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/architecture.h"
#include "checkpoint/problems.h"
#include "checkpoint/weight_source.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace nibble {

// What a tensor of scales must not hold.
enum class ScaleKind : std::uint8_t {
  none,      // no scales
  e8m0,      // bytes of which 255 means NaN
  e4m3,      // NaN
  bf16,      // NaN, infinity
  multiple,  // of many values: NaN, infinity, zero, or less
};

struct ExpectedTensor {
  std::string name;
  std::string other_name;  // that it may have as well; empty where there is none
  DType dtype = DType::bf16;
  DType other_dtype = DType::bf16;  // that it may have as well; dtype again where there is none
  Shape shape;
  TensorUse use = TensorUse::whole;
  bool by_expert = false;  // its first axis counts experts
  bool one_value = false;  // of the shape [1] or []
  bool spread = false;     // or of that shape, which spread_scales() gives it then
  bool apart = false;      // of two axes: or with an axis of one behind each
  bool flat = false;       // of two axes, the second of one: or without that
  bool optional = false;   // read by others, not by nibble: may be absent, and of any shape
  ScaleKind scales = ScaleKind::none;

  std::int64_t bytes() const { return shape.count() * static_cast<std::int64_t>(dtype_bytes(dtype)); }
};

// The tensors that hold a weight in its format, codes first; `name` is the module's, or a vector's tensor.
using VisitTensor = std::function<void(ExpectedTensor)>;
void visit_stored(const Weight& weight, const std::string& name, const VisitTensor& visit);

// By either of its names; null where there is none.
const StoredTensor* find_tensor(const ExpectedTensor& expected, const WeightSource& source);

// The stored one, or what is wrong with it.
Result<ConstTensor> required_tensor(const ExpectedTensor& expected, const WeightSource& source);

// What a tensor is that the architecture's checkpoints have and nibble leaves alone; empty for others.
std::string_view left_alone(const ModelConfig& config, std::string_view tensor);

// In the order of the forward pass.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// Bytes of weights one token reads at batch 1: attention, norms, routers and lm_head once, its share of
// the experts, and one row of the embedding.
std::int64_t active_bytes_per_token(const ModelConfig& config);

// Lets the config say of each module what the files have: one that a scheme quantizes may have stayed in
// bf16, if it is not an expert's. So it is with experts that may lie in one tensor or each for itself.
void read_stored_formats(ModelConfig& config, const WeightSource& source);

// Scales of which files have one for all tiles of a matrix, as many as there are tiles from now on: so
// whoever reads tiles reads those. Tensors have been checked.
Status spread_scales(const ModelConfig& config, WeightSource& source);

// What is missing, extra, of another dtype or shape, or holds a scale that is no scale. Reads every scale.
void compare_tensors(const ModelConfig& config, const WeightSource& source, Problems& problems);

// The same for loading: the first problem. The threads read the scales together.
Status check_tensors(const ModelConfig& config, const WeightSource& source, ThreadPool& threads);

}  // namespace nibble
