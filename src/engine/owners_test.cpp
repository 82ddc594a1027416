// Ranks of a CPU, or groups of them that divide heads, that have sequences of their own give the bits of one
// rank that has all: tokens and log-probabilities, in every batch, chunking and exchange, behind prefixes and
// preemptions, for every family. Controls with kernels whose order depends on the batch, or on a part's
// shape, show that the tests would see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/choices.h"
#include "engine/ranks_test_util.h"
#include "models/model_traits.h"
#include "plan/rules.h"
#include "sched/owner_choice.h"

namespace nibble {
namespace {

const std::vector<std::string> families = {"example",         "gqa8_all_experts", "qwen3_moe_bf16",
                                           "qwen3_moe_nvfp4", "qwen3_next_bf16",  "qwen3_5_moe_fp8",
                                           "deepseek_v3_fp8", "glm4_moe_lite"};

struct Owners {
  int ranks, owners;
  std::string exchange;
};
const std::vector<Owners> ways = {{2, 2, "normal"},      {4, 4, "normal"},      {4, 2, "normal"},
                                  {2, 2, "low_latency"}, {4, 4, "low_latency"}, {4, 2, "low_latency"}};

EngineOptions with(EngineOptions options, const Owners& owners) {
  options.expert_parallel = owners.ranks;
  options.data_parallel = owners.owners == owners.ranks ? 0 : owners.owners;
  options.dp_attention = true;
  options.moe_a2a_backend = owners.exchange;
  return options;
}
std::string name_of(const std::string& model, const Owners& owners) {
  return model + ", --ep " + std::to_string(owners.ranks) + " --dp " + std::to_string(owners.owners) +
         " --dp-attention --moe-a2a-backend " + owners.exchange;
}

TEST(Owners, GiveTheBitsOfOneRankForEveryFamily) {
  for (const std::string& model : families) {
    const Answers expected = answers_of(model, {.threads = 1, .max_num_seqs = 1});
    ASSERT_EQ(expected.size(), 6u);
    for (const Owners& owners : ways) {
      const EngineOptions batched{.threads = 3, .max_num_seqs = 5, .max_num_batched_tokens = 48};
      EXPECT_EQ(answers_of(model, with(batched, owners)), expected) << name_of(model, owners);
    }
  }
}

TEST(Owners, GiveTheBitsOfOneRankInEveryTypeBatchAndChunking) {
  for (const FloatType dtype : {FloatType::float32, FloatType::bfloat16, FloatType::int8}) {
    const Answers expected = answers_of("example", {.threads = 1, .max_num_seqs = 1, .dtype = dtype});
    for (const Owners& owners : ways) {
      for (const auto& [rows, sequences] : {std::pair{5, 2}, {64, 3}, {200, 7}}) {
        const EngineOptions options{
            .threads = 2, .max_num_seqs = sequences, .max_num_batched_tokens = rows, .dtype = dtype};
        EXPECT_EQ(answers_of("example", with(options, owners)), expected)
            << name_of("example", owners) << ", " << rows << " rows, " << sequences << " sequences";
      }
    }
  }
}

// Each owner's step is of prompts or of answers as the whole is.
TEST(Owners, RoundPromptsToFp8AsOneRankDoes) {
  for (const std::string model : {"qwen3_moe_fp8", "deepseek_v3_fp8"}) {
    const Answers expected =
        answers_of(model, {.threads = 1, .max_num_seqs = 1, .dtype = FloatType::fp8_e4m3});
    for (const Owners& owners : ways) {
      const EngineOptions batched{
          .threads = 3, .max_num_seqs = 5, .max_num_batched_tokens = 48, .dtype = FloatType::fp8_e4m3};
      EXPECT_EQ(answers_of(model, with(batched, owners)), expected) << name_of(model, owners);
    }
  }
}

TEST(Owners, GiveTheBitsOfOneRankWithConvertedWeightsAndNarrowKeys) {
  const EngineOptions options{
      .threads = 2, .kv_cache_dtype = FloatType::fp8_e4m3, .quantization = Quantization::q8};
  const Answers expected = answers_of("example", options);
  for (const Owners& owners : ways)
    EXPECT_EQ(answers_of("example", with(options, owners)), expected) << name_of("example", owners);
}

TEST(Owners, GiveTheBitsOfOneRankWhoeverMakesRoom) {
  for (const std::string model : {"example", "qwen3_next_bf16"}) {
    const Answers expected = answers_of(model, {.threads = 1});
    for (const Owners& owners : ways) {
      EngineOptions options = with({.threads = 2, .max_num_seqs = 6, .max_num_batched_tokens = 16}, owners);
      options.model = (checkpoints / model).string();
      Result<std::unique_ptr<Engine>> engine =
          load_engine(options, [](EngineChoices& choices) { choices.scheduler.preempt_every = 3; }, {});
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      submit_all(**engine);
      EXPECT_EQ(run(**engine), expected) << name_of(model, owners);
      EXPECT_GT((*engine)->totals().preemptions, 0u);
    }
  }
}

TEST(Owners, GiveTheBitsOfOneRankInGroupsOfEightRanks) {
  const Answers expected = answers_of("example", {.threads = 1, .max_num_seqs = 1});
  for (const Owners& owners : {Owners{8, 2, "normal"}, {8, 4, "low_latency"}, {8, 8, "normal"}})
    EXPECT_EQ(answers_of("example", with({.threads = 2}, owners)), expected) << name_of("example", owners);
}

// What `plan --matrix` says of this machine is so.
TEST(Owners, EveryPairThatThePlanSaysRunsHereGivesTheBitsOfOneRankAndOthersAreRefused) {
  for (const std::string model : {"example", "qwen3_moe_bf16", "qwen3_moe_nvfp4", "qwen3_5_moe_fp8"}) {
    const ModelTraits traits = traits_of(read_model_config(checkpoints / model).value(), model).value();
    const Answers expected = answers_of(model, {.threads = 1});
    for (const auto& [ranks, owners] : {std::pair{2, 2}, {4, 4}, {4, 2}}) {
      const EngineOptions base = with({.threads = 2}, Owners{ranks, owners, "auto"});
      const Result<std::vector<JudgedPair>> judged = judge_pairs(base, probe_machine(), traits);
      ASSERT_TRUE(judged.ok()) << judged.status().message();
      int ran = 0;
      for (const JudgedPair& pair : *judged) {
        EngineOptions options = base;
        options.moe_runner_backend = std::string(pair.path.kernel);
        options.moe_a2a_backend = std::string(pair.path.exchange);
        if (pair.built && pair.rules.empty()) {
          EXPECT_EQ(answers_of(model, options), expected)
              << name_of(model, {ranks, owners, options.moe_a2a_backend}) << ", " << pair.path.kernel;
          EXPECT_NE(pair.path.exchange, "none");
          ++ran;
          continue;
        }
        options.model = (checkpoints / model).string();
        const Status refused = Engine::load(options).status();
        EXPECT_NE(refused.message().find("; give "), std::string::npos) << refused.message();
      }
      EXPECT_GE(ran, 2) << model;
    }
  }
}

// A second turn goes to the owner that has the first, also where others have less to do.
TEST(Owners, APrefixIsFoundByWhoHasIt) {
  const auto prompt_of = [](TokenId first) { return std::vector<TokenId>(70, first); };
  const auto ask = [](Engine& engine, RequestId id, std::vector<TokenId> prompt) {
    const SamplingParams sampling{.max_tokens = 6, .temperature = 0, .logprobs = 2};
    EXPECT_TRUE(engine.submit(request(id, std::move(prompt), sampling)).ok());
    return run(engine)[id];
  };
  for (const std::string model : {"example", "qwen3_5_moe_fp8", "deepseek_v3_fp8"}) {
    EngineOptions options{.threads = 1};
    const std::unique_ptr<Engine> alone = engine_of(model, options);
    if (alone->model().plan.model.linear_layers > 0) options.snapshot_interval = 64;
    for (const Owners& owners : ways) {
      const std::unique_ptr<Engine> engine = engine_of(model, with(options, owners));
      for (RequestId id = 0; id < 8; ++id) {
        const auto prompt = prompt_of(static_cast<TokenId>(20 + id % 4));
        const Answer got = ask(*engine, id, prompt), expected = ask(*alone, id, prompt);
        EXPECT_EQ(got, expected) << name_of(model, owners);
        EXPECT_EQ(got.cached_tokens, id < 4 ? 0 : 64) << name_of(model, owners);
      }
    }
  }
}

// Kernels that add from the other end where there are several inputs.
void add_as_the_batch_goes(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                           const TotalsSink& store) {
  best_dot_kernels().multiply(matrix, begin, end, inputs, store);
  const Bf16Matrix* dense = std::get_if<Bf16Matrix>(&matrix);
  if (dense == nullptr || inputs.rows.count == 1) return;
  add_backwards(*dense, begin, end, inputs, store);
}

TEST(Owners, TheTestSeesKernelsWhoseOrderDependsOnTheBatch) {
  const DotKernels breaking = broken_kernels(add_as_the_batch_goes);
  const EngineOptions row_by_row{.threads = 1, .max_num_seqs = 1, .max_num_batched_tokens = 1};
  const Answers expected = answers_with(breaking, row_by_row);
  EXPECT_EQ(answers_with(breaking, row_by_row), expected);
  for (const Owners& owners : ways)
    EXPECT_NE(answers_with(breaking, with({.threads = 2}, owners)), expected) << name_of("example", owners);
}

TEST(Owners, TheTestSeesKernelsWhoseOrderDependsOnAPartsShapeInGroupsThatDivideHeads) {
  const DotKernels breaking = broken_kernels(add_as_the_part_goes);
  const Answers expected = answers_with(breaking, {.threads = 1});
  for (const Owners& owners : ways) {
    const Answers got = answers_with(breaking, with({.threads = 2}, owners));
    EXPECT_EQ(got == expected, owners.ranks == owners.owners) << name_of("example", owners);
  }
}

TEST(Owners, ThePlanSaysHowTheyAreChosen) {
  EXPECT_NE(owner_rule.find(" " + std::to_string(most_ahead_for_prefix) + " sequences"),
            std::string_view::npos);
}

}  // namespace
}  // namespace nibble
