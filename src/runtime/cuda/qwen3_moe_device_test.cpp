// Qwen3-MoE on a GPU, or on its emulation: beside the CPU's worker on the same checkpoint, and its bits
// alone, in batches, in chunks and in graphs.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/cuda/random_numbers.h"
#include "models/cuda/random_weights.h"
#include "models/model_traits.h"
#include "ops/attention/cuda/attention_cuda.h"
#include "ops/cuda/launch.cuh"
#include "runtime/cuda/gpu_worker_test_util.h"
#include "runtime/cuda/random_checkpoint.h"

namespace nibble {
namespace {

using Qwen3MoeOnTheGpu = OnTheGpu;

// Of experts; attention, router and lm_head are in bf16.
constexpr const char* mxfp4_experts =
    R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float",
      "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false}, "input_activations": null}},
      "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*"]})";
constexpr const char* nvfp4_packed_experts =
    R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
      "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*"]})";
constexpr const char* int4_experts =
    R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int",
      "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false}, "input_activations": null}},
      "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*"]})";
constexpr const char* nvfp4_experts = R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
      "exclude_modules": ["lm_head", "model.layers.*.mlp.gate", "model.layers.*.self_attn*"]})";

// Of everything but router and lm_head.
constexpr const char* fp8_rows = R"({"quant_method": "fbgemm_fp8",
    "modules_to_not_convert": ["lm_head"]})";
constexpr const char* fp8_blocks = R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.gate"]})";
constexpr const char* nvfp4_modelopt =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
      "exclude_modules": ["lm_head", "model.layers.*.mlp.gate"]})";
constexpr const char* all_in_bf16 = "null";

struct Kind {
  int head_dim, heads, kv_heads;
  bool renormalises, tied;
  const char* quantization = mxfp4_experts;
  int expert_width = 96;
};

std::string config_json(const Kind& kind) {
  const auto field = [](const char* name, int value) {
    return std::string("\"") + name + "\": " + std::to_string(value) + ", ";
  };
  return R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
      "attention_bias": false, "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": false,
      "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, "max_position_embeddings": 40960,
      "torch_dtype": "bfloat16", "eos_token_id": 2, "vocab_size": 448, "hidden_size": 192,
      "num_hidden_layers": 2, "num_experts": 12, "num_experts_per_tok": 5, )" +
         field("moe_intermediate_size", kind.expert_width) + field("head_dim", kind.head_dim) +
         field("num_attention_heads", kind.heads) + field("num_key_value_heads", kind.kv_heads) +
         "\"norm_topk_prob\": " + (kind.renormalises ? "true" : "false") +
         ", \"tie_word_embeddings\": " + (kind.tied ? "true" : "false") +
         ", \"quantization_config\": " + kind.quantization + "}";
}

// In a model of random weights experts are chosen by logits that lie close together, and the two forwards,
// whose sums have other orders, choose differently here and there.
TEST_F(Qwen3MoeOnTheGpu, AgreesWithTheCpu) {
  for (const Kind& kind :
       {Kind{128, 4, 2, true, false}, Kind{64, 6, 2, false, true},
        Kind{128, 2, 1, true, false, nvfp4_modelopt}, Kind{64, 2, 1, true, true, nvfp4_packed_experts, 80},
        Kind{128, 2, 1, true, false, fp8_blocks, 144}, Kind{64, 2, 1, true, true, all_in_bf16, 80}}) {
    SCOPED_TRACE(kind.quantization);
    const RandomCheckpoint checkpoint(config_json(kind), 1);
    expect_the_cpus_answer(checkpoint.folder(), DType::bf16, {0.3, 0.02});
  }
}

TEST_F(Qwen3MoeOnTheGpu, AgreesWithTheCpuOnKeysAndValuesInE4m3) {
  const RandomCheckpoint checkpoint(config_json({128, 4, 1, true, false}), 2);
  expect_the_cpus_answer(checkpoint.folder(), DType::f8_e4m3, {0.3, 0.05});
}

TEST_F(Qwen3MoeOnTheGpu, ASequencesBitsDependNeitherOnChunksNorOnCompanyNorOnGraphs) {
  const RandomCheckpoint checkpoint(config_json({128, 8, 1, false, false}), 3);
  expect_the_same_bits_in_chunks_in_company_and_in_graphs(checkpoint.folder(), DType::bf16);
}

// Attention of a sequence that is alone has other kernels for short contexts, which the host must leave where
// heads of this size are no longer short.
TEST_F(Qwen3MoeOnTheGpu, AnAnswerThatOutgrowsShortContextsKeepsItsBits) {
  const RandomCheckpoint checkpoint(config_json({128, 8, 1, false, false}), 8);
  const int most =
      (1 + attention_later_clusters(1, 8, processors_of_device())) * attention_cluster_positions(128);
  const std::unique_ptr<Worker> worker = gpu_worker_of(
      checkpoint.folder(),
      limits_of(must(read_model_config(checkpoint.folder())), true, {160, 12, most + page_size, 24}));
  // The first page's keys and values again and again, up to the page that ends at the border.
  Sequence sequence = sequence_of(random_prompt(2, 2 * page_size - 2), 2 * page_size, {3, 5});
  step(*worker, {&sequence});
  sequence.table.assign(static_cast<std::size_t>(most / page_size - 1), 3);
  sequence.table.insert(sequence.table.end(), {5, 4});
  sequence.tokens.resize(static_cast<std::size_t>(most - 1), 7);
  sequence.done = static_cast<std::size_t>(most - 2);
  sequence.heard = {};
  Sequence beside = sequence_of(random_prompt(3, 5), 5, {8});
  step(*worker, {&beside});
  const Heard alone = run_alone(*worker, sequence, 5);
  while (sequence.heard.tokens.size() < 5) step(*worker, {&sequence, &beside});
  EXPECT_TRUE(sequence.heard == alone);
}

#ifndef NIBBLE_GPU_EMULATION  // there the expert layer's own tests ask that
TEST_F(Qwen3MoeOnTheGpu, NorDoTheyWithExpertsInNvfp4) {
  const RandomCheckpoint checkpoint(config_json({64, 2, 1, true, false, nvfp4_packed_experts, 80}), 4);
  expect_the_same_bits_in_chunks_in_company_and_in_graphs(checkpoint.folder(), DType::bf16);
}

TEST_F(Qwen3MoeOnTheGpu, NorDoTheyInFp8OrBf16) {
  for (const char* quantization : {fp8_blocks, fp8_rows, all_in_bf16}) {
    const RandomCheckpoint checkpoint(config_json({128, 4, 2, true, false, quantization}), 7);
    expect_the_same_bits_in_chunks_in_company_and_in_graphs(checkpoint.folder(), DType::bf16);
  }
}
#endif

TEST_F(Qwen3MoeOnTheGpu, RandomWeightsAreOfASizeThatRuns) {
  for (const char* quantization : {nvfp4_experts, nvfp4_packed_experts, int4_experts, fp8_blocks, fp8_rows}) {
    SCOPED_TRACE(quantization);
    const RandomCheckpoint checkpoint(config_json({64, 2, 1, true, false, quantization}), 5);
    const ModelConfig config = must(read_model_config(checkpoint.folder()));
    RandomWeights random(1);
    const std::unique_ptr<Worker> worker = must(GpuWorker::start(config, random, limits_of(config, false)));
    const Heard heard = run_alone(*worker, sequence_of(random_prompt(1, 8), 8, {3}), 1);
    ASSERT_EQ(heard.prompt_logprobs.size(), 7u);
    for (const float logprob : heard.prompt_logprobs) EXPECT_TRUE(std::isfinite(logprob) && logprob > -60);
  }
}

// What a worker says of random weights in which `make` has made one tensor.
template <class Make>
std::string refusal_with(const char* quantization, const std::string& tensor_name, const Make& make) {
  class OneOther final : public WeightFeed {
   public:
    OneOther(const std::string& name, const Make& make_it) : name_(name), make_(make_it) {}
    Status queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
                 cudaStream_t stream) override {
      if (tensor.name != name_) return random_.queue(tensor, begin, count, to, stream);
      make_(count, to, stream);
      return {};
    }

   private:
    const std::string& name_;
    const Make& make_;
    RandomWeights random_{1};
  } feed(tensor_name, make);
  const RandomCheckpoint checkpoint(config_json({64, 2, 1, true, false, quantization}), 6);
  const ModelConfig config = must(read_model_config(checkpoint.folder()));
  const Result<std::unique_ptr<Worker>> worker = GpuWorker::start(config, feed, limits_of(config, false));
  return worker.ok() ? "nothing" : worker.status().message();
}

TEST_F(Qwen3MoeOnTheGpu, RefusesAScaleOfAMatrixThatItsKernelsCannotHold) {
  const std::string said =
      refusal_with(nvfp4_packed_experts, "model.layers.1.mlp.experts.7.up_proj.weight_global_scale",
                   [](std::size_t, void* to, cudaStream_t stream) {
                     random_floats_cuda({.count = 1}, 0x1p-122f, static_cast<float*>(to), stream);
                   });
  EXPECT_NE(said.find("experts.7.up_proj.weight_global_scale\" makes weights too large"), std::string::npos)
      << said;
}

TEST_F(Qwen3MoeOnTheGpu, RefusesScalesInInt4ThatItsKernelsCannotHold) {
  const std::string said = refusal_with(int4_experts, "model.layers.1.mlp.experts.7.down_proj.weight_scale",
                                        [](std::size_t bytes, void* to, cudaStream_t stream) {
                                          random_bf16_cuda({.count = bytes / 2}, 3.0f, 0.1f,
                                                           static_cast<std::uint16_t*>(to), stream);
                                        });
  EXPECT_NE(said.find("down_proj are not all between 2^-123 and 2"), std::string::npos) << said;
}

TEST_F(Qwen3MoeOnTheGpu, WhatAStepTakesIsWhatThePlanSays) {
  ModelConfig config = must(read_model_config(root / "tests/data/models/Qwen3-30B-A3B"));
  for (const TensorFormat format : {TensorFormat::mxfp4_packed, TensorFormat::nvfp4,
                                    TensorFormat::int4_packed, TensorFormat::bf16, TensorFormat::fp8_row}) {
    config.quantization.format = format;
    config.quantization.exclude = {"lm_head", "*.mlp.gate", "*.self_attn.*"};
    const ModelTraits traits = must(traits_of(config, "Qwen3-30B-A3B"));
    // Experts in blocks have no room for many tokens in tiles, which a plan counts.
    if (!in_blocks(format)) expect_a_step_to_take_what_is_planned(config, traits, 40960);
    DeviceArena weights;
    DecoderCudaWeights::lay_out(config, whole_model(config), weights);
    EXPECT_NEAR(static_cast<double>(weight_bytes(traits, Quantization::none, 1)) /
                    static_cast<double>(weights.used()),
                1.0, 0.005)
        << tensor_format_name(format);
  }
}

TEST_F(Qwen3MoeOnTheGpu, RefusesWhatNoKernelTakes) {
  const auto of_case = [](const char* name) {
    return must(read_model_config(root / "tests/data/parity" / name));
  };
  ModelConfig odd = of_case("qwen3_moe_bf16"), mixed = of_case("qwen3_moe_fp8"), torn = mixed, narrow = mixed,
              of_two = mixed;
  odd.intermediate_size = 40;
  mixed.quantization.exclude.emplace_back("model.layers.0.mlp.experts.*");
  narrow.quantization.format = TensorFormat::mxfp4_packed;
  torn.quantization.exclude.emplace_back("model.layers.1.self_attn.k_proj");
  of_two.quantization.set_formats({{"model.layers.1.self_attn.v_proj", {TensorFormat::fp8_row}}});
  for (const auto& [config, what] :
       {std::pair(odd, "experts' of 40"),
        std::pair(mixed, "experts.0.gate_proj is in bf16, and other experts"),
        std::pair(torn, "k_proj is in bf16, and the queries' in fp8_block"),
        std::pair(of_case("qwen3_moe_nvfp4"), "32 dimensions"),
        std::pair(of_two, "v_proj is in fp8_row, and the queries' in fp8_block"),
        std::pair(narrow,
                  "self_attn.q_proj is in mxfp4, and its kernels take bf16, fp8_block, fp8_row or nvfp4")}) {
    RandomWeights random(1);
    const Result<std::unique_ptr<Worker>> worker = GpuWorker::start(config, random, limits_of(config, false));
    ASSERT_FALSE(worker.ok()) << what;
    EXPECT_NE(worker.status().message().find(what), std::string::npos) << worker.status().message();
  }
}

}  // namespace
}  // namespace nibble
