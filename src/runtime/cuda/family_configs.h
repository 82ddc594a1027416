// For tests: configs of small models of several families, which ranks can divide.
#pragma once

#include <string>

namespace nibble {

inline constexpr const char* mxfp4_experts =
    R"("quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float",
      "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false}, "input_activations": null}},
      "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*", "re:.*linear_attn.*", "re:.*shared_expert.*",
      "re:.*layers.0.mlp.(gate|up|down)_proj.*"]},)";
inline constexpr const char* in_bf16 = "";

// A layer with the rule and one of attention, with fewer heads of keys than four ranks.
inline std::string qwen(const std::string& architecture, const std::string& feed_forward) {
  return R"({"architectures": [")" + architecture + R"("], "model_type": "qwen3_next", "hidden_act": "silu",
      "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
      "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "eos_token_id": 2, "vocab_size": 448,
      "hidden_size": 128, "num_hidden_layers": 2, "head_dim": 256, "num_attention_heads": 4,
      "num_key_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
      "linear_num_key_heads": 4, "linear_num_value_heads": 8, "tie_word_embeddings": false, )" +
         feed_forward + "}";
}
inline std::string with_experts(const char* quantization) {
  return std::string(quantization) + R"("num_experts": 8, "num_experts_per_tok": 3,
      "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64)";
}

// A dense layer and one with experts, of eight heads or as many as are given.
inline std::string deepseek(const char* quantization, int heads = 8) {
  return R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu",
      "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "rope_scaling": null,
      "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "eos_token_id": 2, "vocab_size": 448,
      "hidden_size": 128, "intermediate_size": 320, "moe_intermediate_size": 64, "num_hidden_layers": 2,
      "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
      "topk_group": 2, "n_shared_experts": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
      "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32, "q_lora_rank": 48,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "tie_word_embeddings": false, )" +
         std::string(quantization) + R"("num_attention_heads": )" + std::to_string(heads) +
         ", \"num_key_value_heads\": " + std::to_string(heads) + "}";
}

}  // namespace nibble
