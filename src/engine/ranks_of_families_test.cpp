// Layers with states, latents, dense layers and shared experts over ranks of a CPU: the bits of one rank,
// also behind snapshots, in company, and where sequences are put back and begin again.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/test_checkpoint.h"
#include "engine/choices.h"
#include "engine/ranks_test_util.h"

namespace nibble {
namespace {

// Heads with states and latents that divide and that do not, fewer of them than ranks; projections by head of
// keys, and apart; in bf16 and FP8.
const std::vector<std::string> families = {"qwen3_next_bf16",  "qwen3_5_moe_stacked", "qwen3_5_moe_fp8",
                                           "deepseek_v3_bf16", "deepseek_v3_fp8",     "glm4_moe_lite"};

TEST(RanksOfFamilies, GiveTheBitsOfOneRank) {
  for (const std::string& model : families) {
    const Answers expected = answers_of(model, {.threads = 1, .max_num_seqs = 1});
    ASSERT_EQ(expected.size(), 6u);
    for (const Split& split :
         {Split{2, 1}, {4, 1}, {4, 4, "none"}, {2, 2, "normal"}, {4, 4, "low_latency"}}) {
      EngineOptions batched = with({.max_num_seqs = 5, .max_num_batched_tokens = 48}, split);
      batched.threads = split.tp == 2 ? 3 : 4;
      EXPECT_EQ(answers_of(model, batched), expected) << name_of(model, split);
    }
  }
}

// Three heads of queries and one of keys, on more ranks than either divides by.
TEST(RanksOfFamilies, ADenseModelGivesThemToo) {
  const Answers expected = answers_of("qwen3_5_dense", {.threads = 1, .max_num_seqs = 1});
  ASSERT_EQ(expected.size(), 6u);
  for (const Split& split : {Split{2, 1}, {4, 1}}) {
    EXPECT_EQ(answers_of("qwen3_5_dense",
                         with({.threads = 4, .max_num_seqs = 5, .max_num_batched_tokens = 48}, split)),
              expected)
        << name_of("qwen3_5_dense", split);
  }
}

TEST(RanksOfFamilies, GiveThemInEveryTypeBatchAndChunking) {
  struct Way {
    Split split;
    int rows, sequences;
  };
  for (const std::string model : {"qwen3_next_bf16", "deepseek_v3_bf16"}) {
    for (const FloatType dtype : {FloatType::float32, FloatType::bfloat16}) {
      const Answers expected = answers_of(model, {.threads = 1, .max_num_seqs = 1, .dtype = dtype});
      for (const Way& way : {Way{{2, 1}, 1, 1}, {{2, 2, "normal"}, 7, 3}, {{4, 1}, 200, 7}}) {
        const EngineOptions options{
            .threads = 2, .max_num_seqs = way.sequences, .max_num_batched_tokens = way.rows, .dtype = dtype};
        EXPECT_EQ(answers_of(model, with(options, way.split)), expected) << name_of(model, way.split);
      }
    }
    const EngineOptions eight{.threads = 2, .max_num_batched_tokens = 200, .tensor_parallel = 8};
    EXPECT_EQ(answers_of(model, eight), answers_of(model, {.threads = 1})) << model;
  }
}

// A layer with the rule and one of attention, a dense feed-forward in each; four heads of keys.
const std::string dense_config = R"({"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
    "hidden_act": "silu", "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 10000000.0,
    "partial_rotary_factor": 0.25, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "eos_token_id": 2, "vocab_size": 448, "hidden_size": 96, "num_hidden_layers": 2, "head_dim": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": ["linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
    "linear_num_key_heads": 4, "linear_num_value_heads": 12, "tie_word_embeddings": false,
    "intermediate_size": 160})";

// Random weights in bfloat16, matrices such that rows keep their size.
void write_random_checkpoint(const TestFolder& folder, const std::string& config) {
  folder.write("config.json", config);
  const Result<ModelConfig> read = read_model_config(folder.path());
  ASSERT_TRUE(read.ok()) << read.status().message();
  std::mt19937 random(1);
  std::vector<TestTensor> tensors;
  for (const ExpectedTensor& expected : expected_tensors(*read)) {
    ASSERT_EQ(expected.dtype, DType::bf16) << expected.name;
    TestTensor tensor{.name = expected.name, .dtype = "BF16", .shape = {}, .bytes = {}};
    for (int axis = 0; axis < expected.shape.rank(); ++axis) tensor.shape.push_back(expected.shape[axis]);
    const float spread = 1.3f / std::sqrt(static_cast<float>(tensor.shape.back()));
    std::normal_distribution<float> values(0.0f, tensor.shape.size() == 1 ? 0.1f : spread);
    for (std::int64_t i = 0; i < expected.shape.count(); ++i) {
      const Bf16 value = Bf16::from_float(values(random));
      tensor.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    tensors.push_back(std::move(tensor));
  }
  folder.write("model.safetensors", safetensors_file(tensors));
}

TEST(RanksOfFamilies, DenseModelsDivideTheirLayersAndRefuseToSpreadExperts) {
  const TestFolder folder;
  write_random_checkpoint(folder, dense_config);
  const Answers expected = answers_of(folder.path(), {.threads = 1});
  ASSERT_EQ(expected.size(), 6u);
  for (const int ranks : {2, 4, 8}) {
    const EngineOptions options{.threads = 3, .max_num_batched_tokens = 50, .tensor_parallel = ranks};
    EXPECT_EQ(answers_of(folder.path(), options), expected) << ranks;
  }
  EngineOptions spread{.model = folder.path().string(), .tensor_parallel = 2, .expert_parallel = 2};
  EXPECT_NE(Engine::load(spread).status().message().find("this model has no experts"), std::string::npos)
      << Engine::load(spread).status().message();
}

std::vector<TokenId> parting_at(int position, int length) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((i < position ? 7 * i : 11 * i + 3) % 400);
  return prompt;
}

Answer answer_to(Engine& engine, const std::vector<TokenId>& prompt) {
  EXPECT_TRUE(engine.submit(request(1, prompt, {.max_tokens = 6, .temperature = 0, .logprobs = 2})).ok());
  return run(engine).at(1);
}

TEST(RanksOfFamilies, PrefixesAreGoneOnFromOnEveryRank) {
  for (const std::string model : {"qwen3_5_moe_stacked", "deepseek_v3_bf16"}) {
    const auto cold = engine_of(model, {.threads = 1, .no_prefix_cache = true});
    const bool states = cold->model().plan.model.linear_layers > 0;
    for (const Split& split : {Split{2, 1}, {4, 4, "normal"}}) {
      for (const int rows : split.tp == 2 ? std::vector{512, 63} : std::vector{512}) {
        EngineOptions options{.threads = 2, .max_num_batched_tokens = rows};
        if (states) options.snapshot_interval = 64;
        const auto warm = engine_of(model, with(options, split));
        (void)answer_to(*warm, parting_at(200, 200));
        for (const int cut : {63, 64, 65, 128, 129}) {
          const std::vector<TokenId> prompt = parting_at(cut, 200);
          const Answer got = answer_to(*warm, prompt);
          EXPECT_EQ(got, answer_to(*cold, prompt)) << name_of(model, split) << ", cut at " << cut;
          EXPECT_TRUE(!states || got.cached_tokens == cut / 64 * 64) << got.cached_tokens;
          EXPECT_GT(answer_to(*warm, prompt).cached_tokens, 100);
        }
        EXPECT_EQ(warm->totals().snapshots_resumed > 0, states);
      }
    }
  }
}

// Requests around the borders of chunks, some of which are put back and begin again, or share a snapshot that
// is soon evicted.
TEST(RanksOfFamilies, BitsDependOnNeitherPreemptionNorEviction) {
  const auto ask = [](Engine& engine) {
    RequestId id = 0;
    for (const int length : {1, 62, 63, 64, 65, 127, 128, 150}) {
      EXPECT_TRUE(engine
                      .submit(request(id++, parting_at(40 + length / 2, length),
                                      {.max_tokens = 12, .temperature = 0, .logprobs = 2}))
                      .ok());
    }
    return run(engine);
  };
  for (const std::string model : {"qwen3_5_moe_stacked", "glm4_moe_lite"}) {
    const auto one = engine_of(model, {.threads = 1, .max_num_seqs = 1, .no_prefix_cache = true});
    const Answers expected = ask(*one);
    const bool states = one->model().plan.model.linear_layers > 0;
    for (const Split& split : {Split{4, 1}, {2, 2, "low_latency"}}) {
      EngineOptions options =
          with({.threads = 2, .max_num_batched_tokens = 65, .kv_cache_tokens = 640}, split);
      options.model = (checkpoints / model).string();
      if (states) options.state_snapshots = 2;
      const auto preempt = [&](EngineChoices& choices) {
        choices.scheduler.preempt_every = split.tp == 4 ? 5 : 2;
      };
      Result<std::unique_ptr<Engine>> engine = load_engine(options, preempt, {});
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      for (int turn = 0; turn < 2; ++turn)
        EXPECT_EQ(ask(**engine), expected) << name_of(model, split) << ", turn " << turn;
      EXPECT_GT((*engine)->totals().preemptions, 0u);
    }
  }
}

}  // namespace
}  // namespace nibble
