// A request's bits depend on its prompt, parameters and seed alone. One checker compares ways of running the
// same requests; a control with kernels that break the contract shows that it would see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "engine/choices.h"
#include "engine/engine_test_util.h"
#include "ops/attention/attention_kernels.h"

namespace nibble {
namespace {

using Answers = std::map<RequestId, Answer>;

// Greedy and seeded requests over the example's prompts, one of them with its prompt's log-probabilities.
void submit_all(Engine& engine) {
  const std::vector<Expected> prompts = expected_prompts();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    SamplingParams sampling{.max_tokens = 10, .temperature = 0, .logprobs = 3};
    if (i % 2 == 1) {
      sampling.temperature = 1.3f;
      sampling.top_p = 0.95f;
      sampling.seed = i;
    }
    sampling.prompt_logprobs = i == 3;
    ASSERT_TRUE(engine.submit(request(i, prompts[i].prompt, sampling)).ok());
  }
}

Answers answers_of(Engine& engine) {
  submit_all(engine);
  return run(engine);
}

// One after the other, on one thread.
EngineOptions alone(EngineOptions options) {
  options.threads = 1;
  options.max_num_seqs = 1;
  return options;
}

struct Way {
  std::string name;
  EngineOptions options;
};

// Every size of chunk and number of threads, each in batches of another size.
std::vector<Way> ways(const EngineOptions& base) {
  std::vector<Way> all;
  for (const auto& [rows, threads, seqs] :
       {std::tuple{1, 2, 4}, {16, 3, 7}, {64, 1, 5}, {64, 2, 2}, {333, 2, 7}, {333, 3, 3}}) {
    Way way{std::to_string(rows) + " rows a step, " + std::to_string(threads) + " threads, " +
                std::to_string(seqs) + " sequences",
            base};
    way.options.max_num_batched_tokens = rows;
    way.options.threads = threads;
    way.options.max_num_seqs = seqs;
    all.push_back(std::move(way));
  }
  return all;
}

// The checker: which requests got other bits than expected.
std::vector<RequestId> differing(const Answers& got, const Answers& expected) {
  std::vector<RequestId> found;
  for (const auto& [id, answer] : expected) {
    const auto other = got.find(id);
    if (other == got.end() || !(other->second == answer)) found.push_back(id);
  }
  return found;
}

constexpr FloatType dtypes[] = {FloatType::float32, FloatType::bfloat16, FloatType::int8};

TEST(Determinism, BitsDependOnNeitherBatchNorChunksNorThreads) {
  for (const FloatType dtype : dtypes) {
    const EngineOptions base{.dtype = dtype};
    const Answers expected = answers_of(*load(alone(base)));
    ASSERT_EQ(expected.size(), 7u);
    for (const Way& way : ways(base))
      EXPECT_EQ(differing(answers_of(*load(way.options)), expected), std::vector<RequestId>()) << way.name;
  }
}

TEST(Determinism, BitsDependOnNoKernelsByTheirNames) {
  for (const FloatType dtype : dtypes) {
    const Answers expected = answers_of(*load(alone({.dtype = dtype})));
    const auto check = [&](EngineOptions options, const std::string& name) {
      options.dtype = dtype;
      options.max_num_batched_tokens = 48;
      EXPECT_EQ(differing(answers_of(*load(options)), expected), std::vector<RequestId>()) << name;
    };
    int kernels = 0;
    for (const DotKernels& each : dot_kernels()) {
      if (!each.supported()) continue;
      const std::string name = "cpu_" + std::string(each.name);
      check({.threads = 2, .moe_runner_backend = name}, name);
      ++kernels;
    }
    for (const AttentionKernels& each : attention_kernels()) {
      if (!each.supported()) continue;
      const std::string name = "cpu_" + std::string(each.name);
      check({.threads = 2, .attention_backend = name}, "attention in " + name);
      ++kernels;
    }
    EXPECT_GE(kernels, 2);
  }
}

TEST(Determinism, HoldsForEveryFormatOfWeightsAndCache) {
  for (const EngineOptions& base :
       {EngineOptions{.quantization = Quantization::q8}, EngineOptions{.quantization = Quantization::mxfp4},
        EngineOptions{.kv_cache_dtype = FloatType::float32},
        EngineOptions{.kv_cache_dtype = FloatType::fp8_e4m3}}) {
    const Answers expected = answers_of(*load(alone(base)));
    EngineOptions batched = base, scalar = base;
    batched.threads = 3;
    batched.max_num_batched_tokens = 64;
    EXPECT_EQ(differing(answers_of(*load(batched)), expected), std::vector<RequestId>());
    scalar.moe_runner_backend = scalar.attention_backend = "cpu_scalar";
    EXPECT_EQ(differing(answers_of(*load(scalar)), expected), std::vector<RequestId>());
  }
}

// Kernels that keep the contract for one input and add in another order for several, as those do that split K
// by what else is in the batch.
void add_as_the_batch_goes(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                           const TotalsSink& store) {
  best_dot_kernels().multiply(matrix, begin, end, inputs, store);
  const Bf16Matrix* dense = std::get_if<Bf16Matrix>(&matrix);
  if (dense == nullptr || inputs.rows.count == 1) return;
  for (int row = begin; row < end; row += tile_rows) {
    for (int input = 0; input < inputs.rows.count; ++input) {
      float totals[tile_rows] = {};
      for (int r = 0; r < std::min(tile_rows, dense->rows - row); ++r) {
        const Bf16* weights = dense->data + static_cast<std::int64_t>(row + r) * dense->cols;
        for (int k = 0; k < dense->cols; ++k) totals[r] += weights[k].to_float() * inputs.rows[input][k];
      }
      store(row, input, totals);
    }
  }
}

TEST(Determinism, TheCheckerSeesKernelsWhoseOrderDependsOnTheBatch) {
  static const DotKernels breaking{.name = "breaking",
                                   .supported = [] { return true; },
                                   .prepare = best_dot_kernels().prepare,
                                   .multiply = add_as_the_batch_goes,
                                   .prepare_int8 = best_dot_kernels().prepare_int8,
                                   .multiply_int8 = best_dot_kernels().multiply_int8};
  const auto load_breaking = [](EngineOptions options) {
    options.model = example_folder.string();
    Result<std::unique_ptr<Engine>> engine =
        load_engine(options, [](EngineChoices& choices) { choices.worker.dots = &breaking; }, {});
    EXPECT_TRUE(engine.ok());
    return std::move(engine).value();
  };
  for (const FloatType dtype : dtypes) {
    const EngineOptions base{.dtype = dtype};
    // Prompts in one-row chunks, one request at a time: the contract's order throughout.
    EngineOptions one_row = alone(base);
    one_row.max_num_batched_tokens = 1;
    const Answers expected = answers_of(*load_breaking(one_row));
    EXPECT_EQ(differing(expected, answers_of(*load(one_row))), std::vector<RequestId>());
    for (const Way& way : ways(base)) {
      const bool batched = way.options.max_num_batched_tokens > 1;
      EXPECT_EQ(differing(answers_of(*load_breaking(way.options)), expected).empty(), !batched) << way.name;
    }
  }
}

}  // namespace
}  // namespace nibble
