#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/damaged_example_test_util.h"

namespace nibble {
namespace {

TEST(Engine, ComputesTheModelThatTransformersComputes) {
  std::unique_ptr<Engine> engine = load({.dtype = FloatType::float32});
  const std::vector<Expected> prompts = expected_prompts();
  ASSERT_EQ(prompts.size(), 7u);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(
        engine
            ->submit(request(i, prompts[i].prompt,
                             {.max_tokens = 32, .temperature = 0, .logprobs = 5, .prompt_logprobs = true}))
            .ok());
  }
  const auto answers = run(*engine);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Answer& answer = answers.at(i);
    EXPECT_EQ(answer.tokens, prompts[i].greedy) << "prompt " << i;
    EXPECT_EQ(answer.finish, FinishReason::length);
    ASSERT_EQ(answer.prompt_logprobs.size(), prompts[i].prompt.size());
    for (std::size_t k = 0; k < 32; ++k) EXPECT_NEAR(answer.logprobs[k], prompts[i].logprobs[k], 0.001);
    for (std::size_t k = 1; k < prompts[i].prompt.size(); ++k)
      EXPECT_NEAR(answer.prompt_logprobs[k], prompts[i].prompt_logprobs[k], 0.001);
    EXPECT_EQ(answer.last_top.size(), 5u);
    EXPECT_EQ(answer.last_top[0].id, answer.tokens.back());
  }
}

TEST(Engine, NarrowActivationsAndCacheStayNearTheReference) {
  for (const auto& [dtype, kv_dtype] : {std::pair{FloatType::bfloat16, FloatType::float32},
                                        {FloatType::int8, FloatType::float32},
                                        {FloatType::float32, FloatType::bfloat16},
                                        // The example's config asks for bfloat16.
                                        {FloatType::automatic, FloatType::automatic}}) {
    std::unique_ptr<Engine> engine = load({.dtype = dtype, .kv_cache_dtype = kv_dtype});
    const std::vector<Expected> prompts = expected_prompts();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_TRUE(
          engine->submit(request(i, prompts[i].prompt, {.max_tokens = 0, .prompt_logprobs = true})).ok());
    }
    const auto answers = run(*engine);
    double worst = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      for (std::size_t k = 1; k < prompts[i].prompt.size(); ++k) {
        worst = std::max(worst, std::abs(answers.at(i).prompt_logprobs[k] - prompts[i].prompt_logprobs[k]));
      }
    }
    // Transformers' own bfloat16 run of this checkpoint is up to 0.125 away from its float32 run.
    EXPECT_LT(worst, 0.125);
    EXPECT_GT(worst, 1e-4) << "the option has no effect";
  }
}

TEST(Engine, AnFp8CacheStaysNearTheReferenceAndSaysWhatItIs) {
  std::unique_ptr<Engine> engine = load({.dtype = FloatType::float32, .kv_cache_dtype = FloatType::fp8_e4m3});
  const std::vector<Expected> prompts = expected_prompts();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(
        engine->submit(request(i, prompts[i].prompt, {.max_tokens = 0, .prompt_logprobs = true})).ok());
  }
  const auto answers = run(*engine);
  double worst = 0, sum = 0;
  int count = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (std::size_t k = 1; k < prompts[i].prompt.size(); ++k, ++count) {
      const double error = std::abs(answers.at(i).prompt_logprobs[k] - prompts[i].prompt_logprobs[k]);
      worst = std::max(worst, error);
      sum += error;
    }
  }
  // Three bits of mantissa: sixteen times bfloat16's rounding.
  EXPECT_LT(worst, 1.0);
  EXPECT_LT(sum / count, 0.15);
  EXPECT_GT(worst, 0.005) << "the option has no effect";
}

TEST(Engine, QuantizedDenseWeightsStayNearTheReference) {
  const std::vector<Expected> prompts = expected_prompts();
  const auto mean_error = [&](Quantization quantization) {
    int parts = 0;
    EngineOptions options{
        .model = example_folder.string(), .dtype = FloatType::float32, .quantization = quantization};
    std::unique_ptr<Engine> engine = std::move(Engine::load(options, [&](double done, double total) {
                                       ++parts;
                                       EXPECT_LE(done, total);
                                     })).value();
    EXPECT_EQ(parts > 0, quantization != Quantization::none);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_TRUE(
          engine->submit(request(i, prompts[i].prompt, {.max_tokens = 0, .prompt_logprobs = true})).ok());
    }
    const auto answers = run(*engine);
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      for (std::size_t k = 1; k < prompts[i].prompt.size(); ++k, ++count)
        sum += std::abs(answers.at(i).prompt_logprobs[k] - prompts[i].prompt_logprobs[k]);
    }
    return sum / count;
  };
  const double none = mean_error(Quantization::none), q8 = mean_error(Quantization::q8),
               mxfp4 = mean_error(Quantization::mxfp4);
  EXPECT_LT(none, 1e-4);
  EXPECT_GT(q8, 1e-3) << "the option has no effect";
  EXPECT_LT(q8, 0.05);
  EXPECT_GT(mxfp4, 4 * q8);
  EXPECT_LT(mxfp4, 1.0);
}

TEST(Engine, KernelsAreHonouredByNameOrRefusedWithThoseThatRunHere) {
  const EngineOptions options{.model = example_folder.string(), .moe_runner_backend = "cpu_scalar"};
  const Result<std::unique_ptr<Engine>> engine = Engine::load(options);
  ASSERT_TRUE(engine.ok());
  const Choice& runner = (*engine)->model().plan.choice("moe_runner");
  EXPECT_EQ(runner.value, "cpu_scalar");
  EXPECT_EQ(runner.from, "user");

  EngineOptions unknown{.model = example_folder.string(), .attention_backend = "flash"};
  const Status refused = Engine::load(unknown).status();
  EXPECT_EQ(refused.exit_code(), 2);
  EXPECT_EQ(refused.message().find("--attention-backend: \"flash\" is not built in"), 0u)
      << refused.message();
  EXPECT_NE(refused.message().find("cpu_scalar"), std::string::npos);
}

TEST(Engine, StopsAtAStopTokenAndCancels) {
  const std::vector<Expected> prompts = expected_prompts();
  std::unique_ptr<Engine> engine = load();
  ASSERT_TRUE(engine
                  ->submit(request(1, prompts[0].prompt,
                                   {.max_tokens = 32, .temperature = 0, .stop_ids = {prompts[0].greedy[3]}}))
                  .ok());
  ASSERT_TRUE(engine->submit(request(2, prompts[1].prompt, {.max_tokens = 32, .temperature = 0})).ok());
  std::vector<Event> events;
  ASSERT_TRUE(engine->step(events).ok());
  engine->cancel(2);
  const auto answers = run(*engine);
  EXPECT_EQ(answers.at(1).finish, FinishReason::stop);
  EXPECT_EQ(answers.at(1).tokens.back(), prompts[0].greedy[3]);
  EXPECT_EQ(answers.at(2).finish, FinishReason::cancelled);
  EXPECT_TRUE(answers.at(2).tokens.empty());
}

TEST(Engine, RefusesWhatItCannotHonour) {
  std::unique_ptr<Engine> engine = load();
  EXPECT_NE(engine->submit(request(1, {0, 448}, {})).message().find("from 0 to 447"), std::string::npos);
  EXPECT_NE(engine->submit(request(1, {-1}, {})).message().find("outside the vocabulary"), std::string::npos);
  EXPECT_NE(engine->submit(request(1, {}, {})).message().find("empty"), std::string::npos);
  EngineOptions options{.model = example_folder.string(), .max_model_len = 131073};
  EXPECT_NE(Engine::load(options).status().message().find("give at most 131072"), std::string::npos);
  options = {.model = "/nowhere"};
  EXPECT_EQ(Engine::load(options).status().exit_code(), 3);
}

TEST_F(DamagedExample, AFileThatShrinksMidwayIsAnErrorNotACrash) {
  std::unique_ptr<Engine> engine = load_copy();
  ASSERT_TRUE(engine->submit(request(1, {1, 2, 3}, {.max_tokens = 8, .temperature = 0})).ok());
  std::vector<Event> events;
  ASSERT_TRUE(engine->step(events).ok());
  std::filesystem::resize_file(copy_ / "model.safetensors", 4096);
  const Result<StepTimes> step = engine->step(events);
  ASSERT_FALSE(step.ok());
  EXPECT_NE(step.status().message().find("model.safetensors"), std::string::npos) << step.status().message();
}

TEST_F(DamagedExample, ANotANumberEndsTheRequestThatMetItAndLeavesItsMatesBitsAlone) {
  const auto ask = [](Engine& engine, RequestId id, std::vector<TokenId> prompt) {
    ASSERT_TRUE(engine.submit(request(id, prompt, {.max_tokens = 8, .temperature = 0})).ok());
  };
  std::unique_ptr<Engine> whole = load();
  ask(*whole, 1, {1, 2, 3});
  const Answer expected = run(*whole).at(1);

  spoil_embedding(300);
  std::unique_ptr<Engine> engine = load_copy();
  ask(*engine, 1, {1, 2, 3});
  ask(*engine, 2, {1, 300, 3});
  const auto answers = run(*engine);
  EXPECT_EQ(answers.at(2).finish, FinishReason::error);
  EXPECT_TRUE(answers.at(2).tokens.empty());
  EXPECT_TRUE(answers.at(1) == expected);
}

TEST(Engine, PenaltiesAndBiasesAreOfTheirRequestAloneAndLeaveLogProbabilitiesAlone) {
  const std::vector<Expected> prompts = expected_prompts();
  const std::vector<TokenId>& prompt = prompts[0].prompt;
  const SamplingParams plain{.max_tokens = 12, .temperature = 0, .logprobs = 4};
  SamplingParams biased = plain, repeated = plain, held = plain;
  biased.logit_bias = {{7, 30.0f}};
  repeated.logit_bias = {{7, 30.0f}};
  repeated.presence_penalty = 2;
  repeated.frequency_penalty = 2;
  repeated.repetition_penalty = 1.9f;
  held.stop_ids = {prompts[0].greedy[0]};
  held.min_tokens = 5;
  const SamplingParams asked[] = {plain, biased, repeated, held};
  std::unique_ptr<Engine> engine = load({.max_num_seqs = 4});
  std::vector<Answer> alone;
  for (const SamplingParams& sampling : asked) {
    ASSERT_TRUE(engine->submit(request(1, prompt, sampling)).ok());
    alone.push_back(run(*engine)[1]);
  }
  for (RequestId id = 0; id < 4; ++id) ASSERT_TRUE(engine->submit(request(id, prompt, asked[id])).ok());
  const std::map<RequestId, Answer> together = run(*engine);
  for (RequestId id = 0; id < 4; ++id) EXPECT_EQ(together.at(id), alone[id]) << id;

  EXPECT_EQ(alone[1].tokens, std::vector<TokenId>(12, 7));
  EXPECT_NE(alone[2].tokens, alone[1].tokens) << "a penalty of the answer so far";
  EXPECT_EQ(alone[2].tokens[0], 7);
  EXPECT_EQ(alone[1].logprobs[0], alone[2].logprobs[0]);
  EXPECT_LT(alone[1].logprobs[0], alone[0].logprobs[0]) << "as the model gave it, not as it was changed";
  EXPECT_EQ(std::count(alone[3].tokens.begin(), alone[3].tokens.begin() + 5, prompts[0].greedy[0]), 0);
}

TEST(Engine, APromptsTokensComeWithTheLikeliestBesideThem) {
  const Expected expected = expected_prompts()[0];
  std::unique_ptr<Engine> engine = load({.max_num_batched_tokens = 16});
  ASSERT_TRUE(engine
                  ->submit(request(1, expected.prompt,
                                   {.max_tokens = 0, .prompt_logprobs = true, .prompt_top_logprobs = 3}))
                  .ok());
  std::vector<Event> events;
  while (!engine->idle()) ASSERT_TRUE(engine->step(events).ok());
  ASSERT_EQ(events.size(), 1u);
  ASSERT_EQ(events[0].prompt_top.size(), 3 * expected.prompt.size());
  for (std::size_t i = 1; i < expected.prompt.size(); ++i) {
    const TokenLogprob* top = &events[0].prompt_top[3 * i];
    EXPECT_TRUE(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
    EXPECT_GE(top[0].logprob, events[0].prompt_logprobs[i]);
    for (int k = 0; k < 3; ++k) {
      if (top[k].id != expected.prompt[i]) continue;
      EXPECT_EQ(top[k].logprob, events[0].prompt_logprobs[i]);
    }
  }
}

TEST(Engine, ABiasOutsideTheVocabularyIsRefused) {
  std::unique_ptr<Engine> engine = load();
  for (const TokenId id : {-1, engine->model().vocabulary}) {
    const Status status = engine->submit(request(1, {1, 2}, {.logit_bias = {{id, 1.0f}}}));
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("logit_bias"), std::string::npos);
  }
}

}  // namespace
}  // namespace nibble
