// A model as its config.json describes it, read strictly into plain numbers: a field that is missing,
// contradictory, absurd, or that would change the arithmetic in a way nibble does not compute is refused by
// name. Nothing is guessed.
//
// This is the one description of a model. Which tensors it has follows from it (architecture.h), and from
// those the checks of a checkpoint, what `inspect` prints, the plan's traits and memory, the binding of
// weights and the KV cache. A layer names its parts (LayerDescription); the numbers of a part, which are the
// same in all layers that have it, stand once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "checkpoint/quantization.h"
#include "tensor/dtype.h"

namespace nibble {

enum class Mixer : std::uint8_t {
  attention,    // keys and values by head, one for some heads of queries
  gated_delta,  // a state of the sequence instead (ops/gated_delta/gated_delta.h)
  latent,       // one vector a position for all heads (ops/latent_attention/latent_attention.h)
};

enum class FeedForward : std::uint8_t {
  experts,
  dense,  // one, of `dense_width`, that every token visits
};

struct LayerDescription {
  Mixer mixer = Mixer::attention;
  std::int64_t window = 0;  // keys a query sees, itself included; 0: all before it
  FeedForward feed_forward = FeedForward::experts;
  bool operator==(const LayerDescription&) const = default;
};

struct YarnScaling {
  double factor = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  std::int64_t original_max_position_embeddings = 0;
  bool truncate = true;         // whether the ramp's bounds are rounded to whole dimensions
  double attention_factor = 1;  // on cos and sin of q and k alike; 0.1 ln(factor) + 1 where not given
  double score_factor = 1;      // on all of a score, of latent attention alone
};

// How a router's logits become experts and their weights.
enum class RouterScore : std::uint8_t {
  softmax_of_chosen,  // the largest logits, a softmax over those alone
  softmax_of_all,     // a softmax over all experts, its largest
  sigmoid,            // of each, chosen with a bias that does not weigh, among the best groups
};

// h of an expert from its gate and up projections.
enum class ExpertActivation : std::uint8_t {
  silu,            // silu(gate) * up
  clamped_swiglu,  // gpt-oss: min(gate, limit) * sigmoid(1.702 gate) * (clamp(up) + 1)
};

// Mixer::gated_delta. Heads of keys serve as many neighbouring heads of values each.
struct DeltaNumbers {
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;  // a multiple of key_heads
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t taps = 0;  // of the short convolution
  // Projections lie by head of keys, [q, k, its v, its z] and [its b, its a]; else q, k and v of all heads in
  // one, and z, b and a apart.
  bool by_key_head = false;
};

// Mixer::latent.
struct LatentNumbers {
  std::int64_t query_rank = 0;   // of the vector that queries come from; 0: they come from the row itself
  std::int64_t rank = 0;         // of the vector that plain keys and values come from
  std::int64_t plain_dim = 0;    // of a head's key that is not rotated
  std::int64_t rotated_dim = 0;  // of the key that all heads share; even
  std::int64_t value_dim = 0;    // of a head
};

struct ModelConfig {
  std::string architecture;  // "GptOssForCausalLM"
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::vector<LayerDescription> layers;  // [num_hidden_layers]
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;  // the embedding is lm_head as well
  DType dtype = DType::bf16;         // what the model was made to compute with
  QuantizationScheme quantization;
  std::string trunk = "model.";     // what names of tensors begin with, those of lm_head apart
  std::string head;                 // what lm_head's begin with
  bool zero_centred_norms = false;  // a norm's weight w stands for 1 + w

  // Mixer::attention
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  // divides num_attention_heads
  std::int64_t head_dim = 0;             // even
  bool attention_bias = false;           // on q, k, v and o
  bool attention_sinks = false;          // a logit a head that takes weight and gives nothing
  bool query_key_norm = false;           // of each head, before it is rotated
  bool attention_output_gate = false;    // beside each head's queries, on what the head gives
  std::int64_t rotary_dim = 0;           // of head_dim, the first that are rotated; even
  std::int64_t sliding_window = 0;       // of the layers that have one; 0: no such layer
  double rope_theta = 0;
  std::optional<YarnScaling> yarn;  // absent: plain RoPE

  DeltaNumbers delta;
  // Heads of queries are head_dim = plain_dim + rotated_dim wide, and num_key_value_heads is 1.
  LatentNumbers latent;

  // FeedForward::experts
  std::int64_t num_local_experts = 0;
  std::int64_t num_experts_per_tok = 0;  // at most num_local_experts
  std::int64_t intermediate_size = 0;    // of one expert
  RouterScore router_score = RouterScore::softmax_of_chosen;
  bool router_renormalises = false;  // the chosen experts' weights are made to sum to 1
  // RouterScore::sigmoid
  std::int64_t router_groups = 1;      // of neighbouring experts; divides their number
  std::int64_t router_top_groups = 1;  // that are chosen from
  double router_scale = 1;             // on weights
  ExpertActivation activation = ExpertActivation::silu;
  double swiglu_limit = 0;          // clamped_swiglu alone
  bool stacked_experts = false;     // all of a layer in one tensor, gates before ups; the files decide
  std::int64_t shared_width = 0;    // of an expert that every token visits beside those; 0: none
  bool shared_expert_gate = false;  // a row whose sigmoid is the share it has

  std::int64_t dense_width = 0;   // FeedForward::dense
  std::int64_t draft_layers = 0;  // behind the others in the files, which draft tokens ahead; left alone

  // Ids that end an answer: config.json's and generation_config.json's together, ascending.
  std::vector<TokenId> eos_token_ids;
};

// Reads config.json and, where there is one, generation_config.json of a model's folder. What
// hf_quant_config.json says of formats is read where config.json says nothing of them.
Result<ModelConfig> read_model_config(const std::filesystem::path& folder);

// The same from the files' text; empty where there is no such file.
Result<ModelConfig> parse_model_config(std::string config, std::string generation_config = {},
                                       std::string hf_quant_config = {});

}  // namespace nibble
