// The weights of a model, in the order of its forward pass: what each is, its name and shape, the formats it
// may come in, how much of it a token reads, and along which axis ranks may split it. One list an
// architecture, from which whoever deals with weights derives what it needs.
//
// To add an architecture: a file with its config reader and its list of weights (see qwen3_moe.cpp), and its
// line in architecture.cpp. docs/internals/a_model.md goes through it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"
#include "tensor/shape.h"

namespace nibble {

// Where a weight goes.
enum class WeightRole : std::uint8_t {
  embedding,
  mixer_norm,
  query,
  key,
  value,
  query_bias,
  key_bias,
  value_bias,
  query_norm,
  key_norm,
  sinks,
  query_down,  // to latent.query_rank
  query_down_norm,
  latent_down,  // to the latent, and behind it the rotated key
  latent_norm,
  latent_heads,  // from the latent: each head's plain keys, then its values
  attention_output,
  attention_output_bias,
  feed_forward_norm,
  router,
  router_bias,
  router_correction,  // added to what experts are chosen by
  delta_qkv_z,        // by head of keys: [q, k, its v, its z]
  delta_b_a,          // by head of keys: [its b, its a]
  delta_qkv,          // q of all heads, k of all heads, v
  delta_z,            // the gate of the output
  delta_b,            // how much of an update is taken
  delta_a,            // how much is forgotten
  delta_convolution,  // [channels, 1, taps]
  delta_bias,         // on a
  delta_log_rate,     // the logarithm of what is forgotten by
  delta_norm,
  delta_output,
  dense_gate,
  dense_up,
  dense_down,
  shared_gate,
  shared_up,
  shared_down,
  shared_share,      // [1, hidden]
  expert_gate_up,    // rows alternate: gate, up
  expert_gates_ups,  // rows of gates before those of ups
  expert_gate,
  expert_up,
  expert_down,
  expert_gate_up_bias,
  expert_down_bias,
  final_norm,
  lm_head,
};

// What is counted together in a plan.
enum class WeightPart : std::uint8_t {
  attention,
  linear_attention,
  dense_layers,
  router,
  shared_expert,
  experts,
  norms,
  embedding,
  lm_head
};

// How much of a tensor one token reads.
enum class TensorUse : std::uint8_t {
  whole,    // attention, norms, router, lm_head
  one_row,  // the embedding
  experts,  // num_experts_per_tok of num_local_experts
};

// Of a matrix's rows or columns, or of a tensor's experts. Ranks hold equal parts, or all of it.
enum class SplitAxis : std::uint8_t { none, rows, columns };

struct Weight {
  WeightRole role = WeightRole::embedding;
  WeightPart part = WeightPart::attention;
  std::int64_t layer = -1;  // -1: of none
  // A vector's tensor. A matrix's module, with the tensors that its format says. One that each expert has for
  // itself has "{}" where the expert's number stands.
  std::string name;
  Shape shape;  // of values, of one expert where each has its own: [size] or [.., rows, cols]
  TensorFormat format = TensorFormat::bf16;
  Fp8Scales fp8_scales = Fp8Scales::inverse;  // of fp8_block
  TensorUse use = TensorUse::whole;
  SplitAxis split = SplitAxis::none;
  bool by_expert = false;        // its first axis counts experts
  std::int64_t own_experts = 0;  // that each have this matrix for themselves; 0: it is one

  bool is_matrix() const { return shape.rank() >= 2 && !is_list; }
  bool is_list = false;     // of vectors: one an expert, [experts, size], or a channel
  bool is_bare = false;     // a matrix whose tensor has the module's name and nothing behind it
  bool may_be_f32 = false;  // a vector
  // Of a matrix that an expert has for itself.
  std::string name_of(std::int64_t expert) const;
};

using VisitWeight = std::function<void(const Weight&)>;

struct Architecture {
  std::string_view name;  // as in config.json's "architectures"
  // config.json's fields. The eos ids and the name are filled in by the caller; `quantization` is what the
  // files say of formats, without a method where they say nothing.
  Result<ModelConfig> (*parse)(const ConfigFields& fields, QuantizationScheme quantization);
  void (*visit_weights)(const ModelConfig& config, const VisitWeight& visit);
  std::string_view only_method;  // the one quant_method that it comes with; empty: several
  // What a tensor is that such checkpoints have and nibble leaves alone ("vision"); empty for others. Null:
  // there are none.
  std::string_view (*left_alone)(const ModelConfig& config, std::string_view tensor) = nullptr;
};

std::span<const Architecture> architectures();
// Null where there is none of that name.
const Architecture* find_architecture(std::string_view name);
// "GptOssForCausalLM, ...", for messages.
std::string architecture_names();

// Visits instead of returning a list, so that a small file with a configuration of a thousand layers costs no
// memory before it is refused. config.architecture is one of the list.
void visit_weights(const ModelConfig& config, const VisitWeight& visit);

// What a layer keeps of a sequence.
struct LayerCache {
  std::int64_t values = 0;  // of one position: keys and values; 0: a state of the whole sequence instead
  std::int64_t window = 0;  // positions that are kept; 0: all
};
LayerCache layer_cache(const ModelConfig& config, std::int64_t layer);

}  // namespace nibble
