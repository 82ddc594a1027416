// Ranks of a CPU give the bits of one rank: tokens and log-probabilities, whatever is split over how many, in
// every batch and chunking. A control with a rank that adds in another order shows that the test would see
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "engine/choices.h"
#include "engine/ranks_test_util.h"
#include "models/model_traits.h"
#include "plan/rules.h"

namespace nibble {
namespace {

// Heads, widths and experts that divide and that do not; fewer heads of keys than ranks; every format.
const std::vector<std::string> models = {"example",          "gqa8_all_experts", "mha_top1",
                                         "tied_full",        "deep_shards",      "qwen3_moe_bf16",
                                         "qwen3_moe_fp8",    "qwen3_moe_nvfp4",  "qwen3_moe_nvfp4_packed",
                                         "qwen3_moe_fp8_row"};

// An architecture and a format of experts each, as far as there are checkpoints.
const std::vector<std::string> one_of_each_kind = {"example",         "qwen3_moe_bf16",  "qwen3_moe_fp8",
                                                   "qwen3_moe_nvfp4", "qwen3_next_bf16", "qwen3_5_moe_fp8",
                                                   "deepseek_v3_fp8", "glm4_moe_lite",   "qwen3_moe_fp8_row"};

TEST(Ranks, GiveTheBitsOfOneRank) {
  for (const std::string& model : models) {
    const EngineOptions alone{.threads = 1, .max_num_seqs = 1};
    const Answers expected = answers_of(model, alone);
    ASSERT_EQ(expected.size(), 6u);
    for (const Split& split : splits) {
      EngineOptions batched = with({.max_num_seqs = 5, .max_num_batched_tokens = 48}, split);
      batched.threads = split.tp == 2 ? 3 : 4;
      EXPECT_EQ(answers_of(model, batched), expected) << name_of(model, split);
    }
  }
}

TEST(Ranks, GiveTheBitsOfOneRankInEveryTypeBatchAndChunking) {
  for (const FloatType dtype : {FloatType::float32, FloatType::bfloat16, FloatType::int8}) {
    const Answers expected = answers_of("example", {.threads = 1, .max_num_seqs = 1, .dtype = dtype});
    for (const Split& split : splits) {
      for (const auto& [rows, sequences] : {std::pair{5, 2}, {200, 7}}) {
        const EngineOptions options{
            .threads = 2, .max_num_seqs = sequences, .max_num_batched_tokens = rows, .dtype = dtype};
        EXPECT_EQ(answers_of("example", with(options, split)), expected) << name_of("example", split) << rows;
      }
    }
  }
}

// A row has one scale, and every rank has the whole row.
TEST(Ranks, RoundPromptsToFp8AsOneRankDoes) {
  for (const std::string model :
       {"qwen3_moe_fp8", "qwen3_moe_fp8_row", "deepseek_v3_fp8", "qwen3_5_moe_fp8"}) {
    const EngineOptions alone{.threads = 1, .max_num_seqs = 1, .dtype = FloatType::fp8_e4m3};
    const Answers expected = answers_of(model, alone);
    EXPECT_NE(answers_of(model, {.threads = 1, .max_num_seqs = 1}), expected) << model;
    for (const Split& split : splits) {
      const EngineOptions batched{
          .threads = 4, .max_num_seqs = 5, .max_num_batched_tokens = 48, .dtype = FloatType::fp8_e4m3};
      EXPECT_EQ(answers_of(model, with(batched, split)), expected) << name_of(model, split);
    }
  }
}

// What `plan --matrix` says of this machine is so, of experts in every format and of every family.
TEST(Ranks, EveryPairThatThePlanSaysRunsHereGivesTheBitsOfOneRank) {
  int pairs = 0;
  for (const std::string& model : one_of_each_kind) {
    const ModelTraits traits = traits_of(read_model_config(checkpoints / model).value(), model).value();
    const Answers expected = answers_of(model, {.threads = 1});
    for (const int ranks : {2, 4}) {
      const EngineOptions base{.threads = 2, .tensor_parallel = ranks, .expert_parallel = ranks};
      const Result<std::vector<JudgedPair>> judged = judge_pairs(base, probe_machine(), traits);
      ASSERT_TRUE(judged.ok()) << judged.status().message();
      int of_model = 0;
      for (const JudgedPair& pair : *judged) {
        EngineOptions options = base;
        options.moe_runner_backend = std::string(pair.path.kernel);
        options.moe_a2a_backend = std::string(pair.path.exchange);
        if (!pair.built || !pair.rules.empty()) {
          options.model = (checkpoints / model).string();
          const Status refused = Engine::load(options).status();
          EXPECT_NE(refused.message().find("; give "), std::string::npos) << refused.message();
          continue;
        }
        EXPECT_EQ(answers_of(model, options), expected)
            << model << ", " << pair.path.kernel << " + " << pair.path.exchange;
        ++of_model;
      }
      EXPECT_GE(of_model, 3) << model;
      pairs += of_model;
    }
  }
  EXPECT_GE(pairs, 6);
}

TEST(Ranks, ConvertTheirPartsOfWeightsToTheSameBits) {
  for (const Quantization quantization : {Quantization::q8, Quantization::mxfp4}) {
    const EngineOptions options{.threads = 2, .quantization = quantization};
    const Answers expected = answers_of("example", options);
    for (const Split& split : splits)
      EXPECT_EQ(answers_of("example", with(options, split)), expected) << name_of("example", split);
  }
}

TEST(Ranks, TheTestSeesKernelsWhoseOrderDependsOnARanksShape) {
  const DotKernels breaking = broken_kernels(add_as_the_part_goes);
  const Answers expected = answers_of("example", {.threads = 1});
  for (const Split& split : {Split{1, 1}, Split{2, 1}, Split{4, 1}}) {
    const Answers got = answers_with(breaking, with({.threads = 1}, split));
    EXPECT_EQ(got == expected, split.tp == 1) << name_of("example", split);
  }
}

// Of four ranks the last alone has so few rows of the experts.
void stall_in_the_last_rank(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                            const TotalsSink& store) {
  const Mxfp4Checkpoint* experts = std::get_if<Mxfp4Checkpoint>(&matrix);
  if (experts != nullptr && experts->rows == 64) std::this_thread::sleep_for(std::chrono::milliseconds(600));
  best_dot_kernels().multiply(matrix, begin, end, inputs, store);
}

TEST(Ranks, ARankThatStallsEndsTheStepAndIsNamed) {
  static const DotKernels stalling{.name = "stalling",
                                   .supported = [] { return true; },
                                   .prepare = best_dot_kernels().prepare,
                                   .multiply = stall_in_the_last_rank,
                                   .prepare_int8 = best_dot_kernels().prepare_int8,
                                   .multiply_int8 = best_dot_kernels().multiply_int8};
  const auto change = [](EngineChoices& choices) {
    choices.worker.dots = &stalling;
    choices.worker.rank_deadline = std::chrono::milliseconds(200);
  };
  EngineOptions options{.threads = 4, .tensor_parallel = 4};
  options.model = (checkpoints / "example").string();
  Result<std::unique_ptr<Engine>> engine = load_engine(options, change, {});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE((*engine)->submit(request(1, {5, 6, 7}, {.max_tokens = 2})).ok());
  std::vector<Event> events;
  const Status failed = (*engine)->step(events).status();
  EXPECT_NE(failed.message().find("for rank 3, which did not come"), std::string::npos) << failed.message();
}

TEST(Ranks, ReuseAPrefixWithTheSameBits) {
  const std::vector<TokenId> prompt(70, 21);
  const auto ask_twice = [&](const EngineOptions& options) {
    const std::unique_ptr<Engine> engine = engine_of("example", options);
    std::vector<Answer> answers;
    for (const RequestId id : {1u, 2u}) {
      EXPECT_TRUE(engine->submit(request(id, prompt, {.max_tokens = 6, .temperature = 0})).ok());
      answers.push_back(run(*engine)[id]);
    }
    EXPECT_GT(answers[1].cached_tokens, 0);
    EXPECT_EQ(answers[0], answers[1]);
    return answers[1];
  };
  const Answer expected = ask_twice({.threads = 1});
  for (const Split& split : splits) EXPECT_EQ(ask_twice(with({.threads = 1}, split)), expected);
}

}  // namespace
}  // namespace nibble
