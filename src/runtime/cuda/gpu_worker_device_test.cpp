// A GPU's worker, on a GPU or on its emulation: beside the CPU's on the same checkpoint, and its bits alone,
// in batches, in chunks and in graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "models/cuda/decoder_cuda.h"
#include "models/cuda/random_weights.h"
#include "models/model_traits.h"
#include "ops/cuda/device_test_util.h"
#include "ops/sample/cuda/sample_cuda.h"
#include "plan/memory.h"
#include "runtime/cpu_worker.h"
#include "runtime/cuda/gpu_worker.h"
#include "runtime/cuda/gpu_worker_test_util.h"
#include "runtime/cuda/weight_upload.h"

namespace nibble {
namespace {

using GpuWorkerOnTheGpu = OnTheGpu;

// Both round what enters a product to bfloat16; they add in different orders.
TEST_F(GpuWorkerOnTheGpu, AgreesWithTheCpu) {
  expect_the_cpus_answer(example, DType::bf16, {0.08, 0.015, true});
}
// What then lies near the middle of two e4m3 falls either way.
TEST_F(GpuWorkerOnTheGpu, AgreesWithTheCpuOnKeysAndValuesInE4m3) {
  expect_the_cpus_answer(example, DType::f8_e4m3, {0.16, 0.035});
}

// Three query heads for each head of keys, where the kernels take four.
TEST_F(GpuWorkerOnTheGpu, HeadsThatFillNoGroupAgreeWithTheCpu) {
  const std::filesystem::path demo = root / "models/demo";
  const std::unique_ptr<Worker> gpu = gpu_worker(!small_cases, demo), cpu = cpu_worker(demo);
  const std::size_t answer = small_cases ? 2 : 100;
  int same_texts = 0;
  const int prompts = small_cases ? 1 : 8;
  for (int i = 0; i < prompts; ++i) {
    const std::vector<TokenId> prompt = random_prompt(20 + static_cast<unsigned>(i), 6, 6000);
    const Heard found = run_alone(*gpu, sequence_of(prompt, 6, {3, 7}), answer);
    const Heard expected = run_alone(*cpu, sequence_of(prompt, 6, {3, 7}), answer);
    for (std::size_t j = 0; j < 5; ++j)
      EXPECT_NEAR(found.prompt_logprobs[j], expected.prompt_logprobs[j], 0.15);
    same_texts += found.tokens == expected.tokens;
  }
  // A tie within rounding may fall either way, and the text goes its own way from there.
  EXPECT_GE(2 * same_texts, prompts);
}

TEST_F(GpuWorkerOnTheGpu, ASequencesBitsDependNeitherOnChunksNorOnCompanyNorOnGraphs) {
  expect_the_same_bits_in_chunks_in_company_and_in_graphs(example, DType::bf16);
}
TEST_F(GpuWorkerOnTheGpu, NorDoTheyOnKeysAndValuesInE4m3) {
  expect_the_same_bits_in_chunks_in_company_and_in_graphs(example, DType::f8_e4m3);
}

// By field, value and form of the plan's names.
std::map<std::string, std::uint64_t> ran_by(const Worker& worker) {
  std::map<std::string, std::uint64_t> times;
  const RanTable ran = worker.ran();
  for (const RanRow& row : ran.rows())
    times[std::string(row.field) + " " + std::string(row.value) + " " + std::string(row.form)] = row.times;
  return times;
}

// The host counts launches where it queues them, and those of a graph at each replay.
TEST_F(GpuWorkerOnTheGpu, CountsWhatItsStepsRanAlikeWithAndWithoutGraphs) {
  const auto layers = static_cast<std::uint64_t>(example_config().num_hidden_layers);
  std::map<std::string, std::uint64_t> counted[2];
  for (const bool graphs : {false, true}) {
    const std::unique_ptr<Worker> worker = gpu_worker(graphs);
    EXPECT_TRUE(ran_by(*worker).empty()) << "nothing of the start";
    (void)run_alone(*worker, sequence_of(random_prompt(2, 9), 9, {0}), 3);
    std::map<std::string, std::uint64_t>& ran = counted[graphs];
    ran = ran_by(*worker);
    EXPECT_EQ(ran["steps graph "], graphs ? 2u : 0u);
    EXPECT_EQ(ran["steps launches "], graphs ? 1u : 3u);
    ran.erase("steps graph ");
    ran.erase("steps launches ");
  }
  EXPECT_EQ(counted[0], counted[1]);
  EXPECT_EQ(counted[0]["attention sm90_attention one_row"], 2 * layers);
  EXPECT_EQ(counted[0]["attention sm90_attention rows"], layers);
  EXPECT_EQ(counted[0]["moe_runner sm90_mxfp4 few"] + counted[0]["moe_runner sm90_mxfp4 many"], 3 * layers);
}

// Who waits for a load, or gives one up in which nothing comes any more, must hear of what comes.
TEST_F(GpuWorkerOnTheGpu, AnUploadSaysHowFarItIs) {
  const ModelConfig config = must(read_model_config(example));
  const WeightSource source = must(WeightSource::open(example));
  ThreadPool threads(2);
  std::vector<double> heard;
  const auto hear = [&](double done, double total) {
    EXPECT_EQ(total, static_cast<double>(source.bytes()));
    heard.push_back(done);
  };
  WeightUpload upload = must(WeightUpload::begin(source, threads, {.pieces = nullptr, .progress = hear}));
  must(GpuWorker::start(config, upload, limits_of(config, false)));
  ASSERT_GE(heard.size(), source.tensors().size());
  EXPECT_TRUE(std::is_sorted(heard.begin(), heard.end()));
  EXPECT_GT(heard.front(), 0);
  EXPECT_EQ(heard.back(), static_cast<double>(source.bytes()));
}

// As many sequences as the kernels for many of them want, each with a token a step.
TEST_F(GpuWorkerOnTheGpu, NorDoTheyOnACrowd) {
  constexpr int crowd = 34;
  const Size size{crowd, crowd, 64, crowd + 2};
  const ModelConfig config = must(read_model_config(example));
  const WeightSource source = must(WeightSource::open(example));
  ThreadPool threads(2);
  WeightUpload upload = must(WeightUpload::begin(source, threads));
  const std::unique_ptr<Worker> worker =
      must(GpuWorker::start(config, upload, limits_of(config, false, size)));
  const Sequence own = sequence_of(random_prompt(2, 3), 1, {0});
  const Heard alone = run_alone(*worker, own, 2);
  std::vector<Sequence> all(crowd, own);
  for (int i = 0; i < crowd; ++i) {
    Sequence& sequence = all[static_cast<std::size_t>(i)];
    sequence.table = {i + 1};
    if (i % 16 != 0) sequence = sequence_of(random_prompt(static_cast<unsigned>(i), 3), 1, {i + 1});
  }
  std::vector<Sequence*> together;
  for (Sequence& sequence : all) together.push_back(&sequence);
  while (all[0].heard.tokens.size() < 2) step(*worker, together);
  for (const std::size_t i : {0, 16, 32}) EXPECT_TRUE(all[i].heard == alone) << i;
}

// gpt-oss-20b's shapes, whose steps take every kernel: for few and for many tokens, with splits and without.
void bits_depend_on_nothing_else_at_the_true_shapes(DType kv_dtype) {
  const ModelConfig config = must(read_model_config(root / "tests/data/models/gpt-oss-20b"));
  constexpr Size size{2048, 72, 4096, 400};
  RandomWeights random(1);
  const std::unique_ptr<Worker> eager =
      must(GpuWorker::start(config, random, limits_of(config, false, size, kv_dtype)));
  const std::unique_ptr<Worker> graphs =
      must(GpuWorker::start(config, random, limits_of(config, true, size, kv_dtype)));
  const unsigned vocabulary = static_cast<unsigned>(config.vocab_size);
  const std::size_t length = 1500, answer = 24;
  const std::vector<TokenId> prompt = random_prompt(2, length, vocabulary);
  const auto pages_from = [](int first) {
    std::vector<PageId> table(24);
    std::iota(table.begin(), table.end(), first);
    return table;
  };
  const SamplingParams drawn{.temperature = 0.8f, .top_p = 0.95f, .seed = 5};
  const Heard alone = run_alone(*graphs, sequence_of(prompt, length, pages_from(0), drawn), answer);
  ASSERT_EQ(alone.prompt_logprobs.size(), length - 1);
  for (Worker* worker : {eager.get(), graphs.get()}) {
    for (const std::size_t chunk : {64, 333, 1024, 1500}) {
      EXPECT_TRUE(run_alone(*worker, sequence_of(prompt, chunk, pages_from(30), drawn), answer) == alone)
          << chunk;
    }
    // Token by token: a prompt's log-probabilities are those of decode steps.
    const std::vector<TokenId> beginning(prompt.begin(), prompt.begin() + 200);
    const Heard one_by_one = run_alone(*worker, sequence_of(beginning, 1, pages_from(30)), 1);
    EXPECT_TRUE(std::equal(one_by_one.prompt_logprobs.begin(), one_by_one.prompt_logprobs.end(),
                           alone.prompt_logprobs.begin()));
    // Among 69 others, then on the pages that have been written.
    std::vector<Sequence> company;
    for (int i = 0; i < 69; ++i) {
      const std::size_t own_length = 3 + 2 * static_cast<std::size_t>(i);
      company.push_back(sequence_of(random_prompt(10 + static_cast<unsigned>(i), own_length, vocabulary),
                                    7 + static_cast<std::size_t>(i) % 5,
                                    {70 + 4 * i, 71 + 4 * i, 72 + 4 * i, 73 + 4 * i}));
      company.back().scores = false;
    }
    Sequence own = sequence_of(prompt, 700, pages_from(30), drawn);
    Sequence reusing = own;
    while (own.heard.tokens.size() < answer) {
      std::vector<Sequence*> all = {&own};
      for (Sequence& other : company) all.push_back(&other);
      step(*worker, all);
    }
    EXPECT_TRUE(own.heard == alone);
    reusing.done = 1408;  // 22 whole pages
    const Heard reused = run_alone(*worker, std::move(reusing), answer);
    EXPECT_EQ(reused.tokens, alone.tokens);
    EXPECT_EQ(reused.logprobs, alone.logprobs);
    // The comparison can fail: another token far back changes what comes of it.
    std::vector<TokenId> other = prompt;
    other[1] = (other[1] + 1) % static_cast<TokenId>(vocabulary);
    EXPECT_NE(run_alone(*worker, sequence_of(other, length, pages_from(30), drawn), answer).logprobs,
              alone.logprobs);
  }
}
TEST_F(GpuWorkerOnTheGpu, BitsDependOnNothingElseAtTheTrueShapes) {
  if (small_cases) GTEST_SKIP() << "needs a GPU";
  bits_depend_on_nothing_else_at_the_true_shapes(DType::bf16);
}
TEST_F(GpuWorkerOnTheGpu, BitsDependOnNothingElseAtTheTrueShapesInE4m3) {
  if (small_cases) GTEST_SKIP() << "needs a GPU";
  bits_depend_on_nothing_else_at_the_true_shapes(DType::f8_e4m3);
}

Sequence sampled_sequence(const SamplingParams& sampling, std::size_t top, PageId page) {
  Sequence sequence = sequence_of(random_prompt(3, 20), 20, {page}, sampling);
  sequence.scores = false;
  sequence.top.resize(top);
  return sequence;
}

std::vector<Heard> run_together(Worker& worker, const std::vector<SamplingParams>& all, std::size_t top) {
  std::vector<Sequence> sequences;
  std::vector<Sequence*> together;
  for (const SamplingParams& sampling : all)
    sequences.push_back(sampled_sequence(sampling, top, static_cast<PageId>(sequences.size())));
  for (Sequence& sequence : sequences) together.push_back(&sequence);
  while (sequences[0].heard.tokens.size() < 4) step(worker, together);
  std::vector<Heard> heard;
  for (Sequence& sequence : sequences) heard.push_back(std::move(sequence.heard));
  return heard;
}

// Each but the last changes what `plain` says.
std::vector<SamplingParams> changed_samplings(const SamplingParams& plain, const Heard& said) {
  std::vector<SamplingParams> all(7, plain);
  all[0].logit_bias = {{said.tokens[0], -3.0f}, {7, 1.5f}, {said.tokens[0], -9.0f}};
  all[1].repetition_penalty = 3.0f;
  all[2].frequency_penalty = 2.0f;
  all[2].presence_penalty = 1.5f;
  all[2].logit_bias = {{said.tokens[0], 9.0f}};
  all[3].min_tokens = 3;
  all[3].stop_ids = said.tokens;
  all[4].repetition_penalty = 0.6f;
  all[4].presence_penalty = -2.0f;
  // More than a step has room for: the host's, for another reason than the others'.
  all[5].logit_bias.assign(static_cast<std::size_t>(logit_change_room(12, 512)) + 1, {3, 0.001f});
  return all;
}

TEST_F(GpuWorkerOnTheGpu, ChangedLogitsHaveTheHostsBitsAloneAndInCompany) {
  const std::unique_ptr<Worker> gpu = gpu_worker(true);
  const SamplingParams plain{.temperature = 1.0f, .min_p = 0.02f, .seed = 77};
  const Heard said = run_alone(*gpu, sampled_sequence(plain, 20, 9), 4);
  const std::vector<SamplingParams> all = changed_samplings(plain, said);
  const std::vector<Heard> device = run_together(*gpu, all, 20);
  // Lists longer than the kernels' are the host's work, and so is all else of such a sequence.
  const std::vector<Heard> host = run_together(*gpu, all, sample_cuda_max_likeliest + 1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(device[i] == host[i]) << i;
    EXPECT_EQ(device[i].tokens == said.tokens, i == 6) << i;
    for (std::size_t j = 0; j < 20; ++j) {
      EXPECT_EQ(device[i].top[j].id, host[i].top[j].id);
      EXPECT_EQ(device[i].top[j].logprob, host[i].top[j].logprob);
    }
  }
  for (const std::size_t i : {1, 2})
    EXPECT_TRUE(run_alone(*gpu, sampled_sequence(all[i], 0, 9), 4) == device[i]) << i;
}

TEST_F(GpuWorkerOnTheGpu, RanksOfAPromptsTokensAreTheHosts) {
  const std::unique_ptr<Worker> gpu = gpu_worker(false);
  // Lists longer than the kernels' make the sequence the host's.
  const auto ranks = [&](int listed) {
    Sequence sequence =
        sequence_of(random_prompt(8, 30), 30, {2}, {.temperature = 0, .prompt_top_logprobs = listed});
    sequence.target_ranks.resize(2048);
    sequence.target_top.resize(2048 * static_cast<std::size_t>(listed));
    step(*gpu, {&sequence});
    sequence.target_ranks.resize(29);
    return sequence.target_ranks;
  };
  const std::vector<int> device = ranks(0), host = ranks(sample_cuda_max_likeliest + 1);
  EXPECT_EQ(device, host);
  EXPECT_GT(*std::max_element(host.begin(), host.end()), sample_cuda_max_likeliest);
  EXPECT_GE(*std::min_element(host.begin(), host.end()), 1);
}

// Results of a step are read while the next one runs; here two sequences change places in each.
TEST_F(GpuWorkerOnTheGpu, AStepBegunBehindAnotherTakesTheTokensThatOneChose) {
  const std::unique_ptr<Worker> gpu = gpu_worker(true);
  constexpr std::size_t answer = 5;
  std::vector<Sequence> sequences = {
      sequence_of(random_prompt(5, 9), 9, {3}, {.temperature = 0.9f, .seed = 3, .logprobs = 2}),
      sequence_of(random_prompt(6, 4), 4, {5})};
  std::vector<Heard> alone;
  for (Sequence& sequence : sequences) {
    sequence.scores = false;
    sequence.top.resize(2);
    sequence.tokens.reserve(32);
    alone.push_back(run_alone(*gpu, sequence, answer));
  }
  const auto in_step = [&](std::size_t i) {
    return std::vector<Sequence*>{&sequences[i % 2], &sequences[1 - i % 2]};
  };
  Batch batches[2];
  const auto finish = [&](std::size_t i) {
    std::vector<StepResult> results(2);
    ASSERT_TRUE(gpu->finish(batches[i % 2], results).ok());
    for (std::size_t j = 0; j < 2; ++j) {
      Heard& heard = in_step(i)[j]->heard;
      heard.tokens.push_back(results[j].token);
      heard.logprobs.push_back(results[j].logprob);
    }
  };
  for (std::size_t i = 0; i < answer; ++i) {
    Batch& batch = batches[i % 2] = batch_of(in_step(i));
    if (i > 0) {
      for (int j = 0; j < 2; ++j) batch.sequences[static_cast<std::size_t>(j)].awaits = 1 - j;
      EXPECT_TRUE(gpu->may_begin_behind(batch) && gpu->may_choose_behind(batch));
    }
    ASSERT_TRUE(gpu->forward(batch).ok());
    ASSERT_TRUE(gpu->choose(batch).ok());
    if (i > 0) finish(i - 1);
    for (Sequence& sequence : sequences) {
      sequence.done = sequence.tokens.size();
      sequence.tokens.push_back(-1);
    }
  }
  finish(answer - 1);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(sequences[i].heard == alone[i]) << i;
}

TEST_F(GpuWorkerOnTheGpu, NoForwardBeginsBehindAStepThatTheHostSamplesAndNothingIsChosenBeforeWhatItLooksAt) {
  const std::unique_ptr<Worker> gpu = gpu_worker(false);
  const auto plan = [](Sequence& sequence) {
    sequence.scores = false;
    return batch_of({&sequence});
  };
  Sequence plain = sampled_sequence({.temperature = 0}, 0, 1), penalized = plain, listed = plain;
  penalized.sampling.presence_penalty = 1;
  listed.top.resize(sample_cuda_max_likeliest + 1);
  const Batch plains = plan(plain), penalties = plan(penalized), lists = plan(listed);
  std::vector<StepResult> results(1);
  ASSERT_TRUE(gpu->run(penalties, results).ok());
  for (const Batch* next : {&plains, &lists, &penalties}) EXPECT_TRUE(gpu->may_begin_behind(*next));
  EXPECT_TRUE(gpu->may_choose_behind(plains));
  EXPECT_TRUE(gpu->may_choose_behind(lists));
  EXPECT_FALSE(gpu->may_choose_behind(penalties));
  ASSERT_TRUE(gpu->run(lists, results).ok());
  EXPECT_FALSE(gpu->may_begin_behind(plains));
}

#ifdef NIBBLE_GPU_EMULATION
TEST_F(GpuWorkerOnTheGpu, StepsUseItsDeviceWhicheverThreadRunsThem) {
  const ModelConfig config = example_config();
  WorkerLimits limits = limits_of(config, false);
  limits.device = 1;
  RandomWeights random(1);
  const std::unique_ptr<Worker> worker = must(GpuWorker::start(config, random, limits));
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const Heard here = run_alone(*worker, sequence_of(random_prompt(4, 30), 30, {0}), 3);
  Heard there;
  std::thread([&] { there = run_alone(*worker, sequence_of(random_prompt(4, 30), 30, {0}), 3); }).join();
  EXPECT_TRUE(here == there);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}
#endif

TEST_F(GpuWorkerOnTheGpu, RandomWeightsFollowFromTheirSeed) {
  const ModelConfig config = example_config();
  const auto heard = [&](std::uint64_t seed) {
    RandomWeights random(seed);
    const std::unique_ptr<Worker> worker = must(GpuWorker::start(config, random, limits_of(config, false)));
    return run_alone(*worker, sequence_of(random_prompt(4, 30), 30, {0}), 3);
  };
  const Heard first = heard(1);
  EXPECT_TRUE(heard(1) == first);
  EXPECT_FALSE(heard(2) == first);
  for (const float logprob : first.prompt_logprobs) EXPECT_TRUE(std::isfinite(logprob) && logprob > -60);
}

TEST_F(GpuWorkerOnTheGpu, WhatAStepTakesIsWhatThePlanSays) {
  const ModelConfig config = must(read_model_config(root / "tests/data/models/gpt-oss-120b"));
  const ModelTraits traits = must(traits_of(config, "gpt-oss-120b"));
  expect_a_step_to_take_what_is_planned(config, traits, 131072);
  DeviceArena weights;
  DecoderCudaWeights::lay_out(config, whole_model(config), weights);
  EXPECT_NEAR(
      static_cast<double>(weight_bytes(traits, Quantization::none, 1)) / static_cast<double>(weights.used()),
      1.0, 0.005);
}

TEST_F(GpuWorkerOnTheGpu, RefusesAModelItsKernelsDoNotFit) {
  ModelConfig narrow = example_config(), crowded = example_config();
  narrow.head_dim = 32;
  crowded.num_local_experts = 641;
  for (const auto& [config, what] : {std::pair(narrow, "32 dimensions"), std::pair(crowded, "641 experts")}) {
    RandomWeights random(1);
    const Result<std::unique_ptr<Worker>> worker = GpuWorker::start(config, random, limits_of(config, false));
    ASSERT_FALSE(worker.ok()) << what;
    EXPECT_EQ(worker.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(worker.status().message().find(what), std::string::npos) << worker.status().message();
  }
}

}  // namespace
}  // namespace nibble
