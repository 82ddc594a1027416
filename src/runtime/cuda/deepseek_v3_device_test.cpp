// DeepSeek-V3's family on a GPU, or on its emulation: beside the CPU's worker on the same checkpoint, and its
// bits alone, in batches, in chunks and in graphs.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/cuda/random_weights.h"
#include "models/model_traits.h"
#include "runtime/cuda/gpu_worker_test_util.h"
#include "runtime/cuda/random_checkpoint.h"

namespace nibble {
namespace {

using DeepseekV3OnTheGpu = OnTheGpu;

constexpr const char* mxfp4_experts =
    R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float",
      "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false}, "input_activations": null}},
      "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*layers.0.mlp.*"]})";
constexpr const char* int4_experts =
    R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int",
      "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false}, "input_activations": null}},
      "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*layers.0.mlp.*"]})";
constexpr const char* nvfp4 = R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
      "exclude_modules": ["lm_head", "model.layers.*.mlp.gate"]})";
constexpr const char* all_in_bf16 = "null";

std::string config_json(const char* quantization, int heads = 4, const char* query_rank = "48") {
  return R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu",
      "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "rope_scaling": null,
      "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "eos_token_id": 2, "vocab_size": 448,
      "hidden_size": 128, "intermediate_size": 96, "moe_intermediate_size": 64, "num_hidden_layers": 2,
      "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
      "n_shared_experts": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "kv_lora_rank": 32,
      "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32, "tie_word_embeddings": false,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "q_lora_rank": )" +
         std::string(query_rank) + ", \"num_attention_heads\": " + std::to_string(heads) +
         ", \"num_key_value_heads\": " + std::to_string(heads) +
         ", \"quantization_config\": " + quantization + "}";
}

// bf16 and FP8 have checkpoints of their own (parity_device_test.cpp). In a model of random weights experts
// and their groups are chosen by sums that lie close together, and the two forwards choose differently here
// and there.
TEST_F(DeepseekV3OnTheGpu, AgreesWithTheCpu) {
  const RandomCheckpoint in_nvfp4(config_json(nvfp4), 1), in_mxfp4(config_json(mxfp4_experts, 2, "null"), 2),
      in_int4(config_json(int4_experts, 2), 4);
  expect_the_cpus_answer(in_nvfp4.folder(), DType::bf16, {1.5, 0.04});
  expect_the_cpus_answer(in_mxfp4.folder(), DType::f8_e4m3, {1.5, 0.06});
  expect_the_cpus_answer(in_int4.folder(), DType::bf16, {1.5, 0.04});
}

TEST_F(DeepseekV3OnTheGpu, ASequencesBitsDependNeitherOnChunksNorOnCompanyNorOnGraphs) {
  const RandomCheckpoint checkpoint(config_json(all_in_bf16, 34), 3);
  expect_the_same_bits_in_chunks_in_company_and_in_graphs(checkpoint.folder(), DType::bf16);
}

#ifndef NIBBLE_GPU_EMULATION  // there the expert layer's own tests ask that
TEST_F(DeepseekV3OnTheGpu, NorDoTheyWithExpertsInInt4) {
  const RandomCheckpoint checkpoint(config_json(int4_experts), 5);
  expect_the_same_bits_in_chunks_in_company_and_in_graphs(checkpoint.folder(), DType::bf16);
}
#endif

TEST_F(DeepseekV3OnTheGpu, WhatAStepTakesIsWhatThePlanSays) {
  for (const auto& [name, format] : {std::pair("GLM-4.7-Flash", TensorFormat::nvfp4),
                                     {"DeepSeek-V3", TensorFormat::nvfp4},
                                     {"DeepSeek-V3", TensorFormat::int4_packed}}) {
    SCOPED_TRACE(name);
    ModelConfig config = must(read_model_config(root / "tests/data/models" / name));
    config.quantization.format = format;
    config.quantization.exclude = {"lm_head", "*.mlp.gate", "*.self_attn.*"};
    if (format == TensorFormat::int4_packed) {
      for (const char* in_bf16 : {"*.shared_experts.*", "*.0.mlp.*", "*.1.mlp.*", "*.2.mlp.*"})
        config.quantization.exclude.emplace_back(in_bf16);
    }
    const ModelTraits traits = must(traits_of(config, name));
    expect_a_step_to_take_what_is_planned(config, traits, 32768);
    DeviceArena weights;
    DecoderCudaWeights::lay_out(config, whole_model(config), weights);
    EXPECT_NEAR(static_cast<double>(weight_bytes(traits, Quantization::none, 1)) /
                    static_cast<double>(weights.used()),
                1.0, 0.005);
  }
}

TEST_F(DeepseekV3OnTheGpu, RefusesWhatNoKernelTakes) {
  const auto of_folder = [](const char* folder) {
    return must(read_model_config(root / "tests/data" / folder));
  };
  ModelConfig wide = of_folder("parity/deepseek_v3_bf16"), torn = of_folder("parity/deepseek_v3_fp8"),
              mixed = torn, many = wide, whole = wide;
  wide.latent.rank = 528;
  many.num_local_experts = 520;
  whole.quantization.set_formats({{"model.layers.1.self_attn.o_proj", {TensorFormat::int4_packed}}});
  torn.quantization.exclude.emplace_back("model.layers.1.self_attn.kv_a_proj_with_mqa");
  mixed.quantization.exclude.emplace_back("model.layers.1.mlp.shared_experts.up_proj");
  for (const auto& [config, what] :
       {std::pair(wide, "latents have 528 dimensions"), std::pair(many, "router's kernel takes up to 512"),
        std::pair(torn, "kv_a_proj_with_mqa is in bf16, and that of queries"),
        std::pair(mixed, "shared_experts.up_proj is in bf16, and the gate's in fp8_block"),
        std::pair(of_folder("parity/glm4_moe_lite"), "experts' of 40"),
        std::pair(whole, "self_attn.o_proj is in int4, and its kernels take")}) {
    RandomWeights random(1);
    const Result<std::unique_ptr<Worker>> worker = GpuWorker::start(config, random, limits_of(config, false));
    ASSERT_FALSE(worker.ok()) << what;
    EXPECT_NE(worker.status().message().find(what), std::string::npos) << worker.status().message();
  }
}

}  // namespace
}  // namespace nibble
