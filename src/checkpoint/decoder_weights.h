// What the lists of weights of decoders share: the names that most checkpoints have for embedding, attention
// and head.
#pragma once

#include <string>

#include "checkpoint/architecture.h"

namespace nibble {

// Of a feed-forward with a gate.
struct MlpRoles {
  WeightRole gate, up, down;
};

// One layer's prefix, and a shorthand for each kind of weight.
class LayerWeights {
 public:
  LayerWeights(const ModelConfig& config, std::int64_t layer, const VisitWeight& visit);

  // A vector of so many values, a tensor "<layer>.<name>".
  void vector(WeightRole role, WeightPart part, const std::string& name, std::int64_t size);
  // The same where files have it in bf16 or in f32.
  void wide_vector(WeightRole role, WeightPart part, const std::string& name, std::int64_t size);
  // A matrix that may be quantized, a module "<layer>.<name>"; a router's may not, nor may those of few rows
  // beside it.
  void matrix(WeightRole role, WeightPart part, const std::string& name, std::int64_t rows, std::int64_t cols,
              SplitAxis split);
  // q, k and v with their biases, norms and sinks, and the output, as the config has them: the tensors
  // "self_attn.*".
  void attention();
  // gate, up and down of a feed-forward that every token visits: the modules "<layer>.<prefix>gate_proj" and
  // so on.
  void mlp(const MlpRoles& roles, WeightPart part, const std::string& prefix, std::int64_t width);
  // gate, up and down of each expert for itself: the modules "mlp.experts.<number>.*_proj".
  void experts();
  // All experts' matrices [rows, cols] in one tensor "<layer>.<name>", in bf16.
  void stacked_experts(WeightRole role, const std::string& name, std::int64_t rows, std::int64_t cols,
                       SplitAxis split);
  // Of a convolution, one a channel.
  void filters(WeightRole role, const std::string& name, std::int64_t channels, std::int64_t taps);

  const std::string& prefix() const { return prefix_; }

 private:
  // Each expert's matrix for itself; "{}" stands in `name` for its number.
  void expert_matrix(WeightRole role, const std::string& name, std::int64_t rows, std::int64_t cols,
                     SplitAxis split);

  const ModelConfig& config_;
  std::int64_t layer_;
  const VisitWeight& visit_;
  std::string prefix_;
};

void visit_embedding(const ModelConfig& config, const VisitWeight& visit);
// The last norm and lm_head, where it is not the embedding.
void visit_head(const ModelConfig& config, const VisitWeight& visit);

}  // namespace nibble
