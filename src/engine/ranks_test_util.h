// What the tests of a CPU's ranks share: the ways to divide a model, and requests whose answers are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/choices.h"
#include "engine/engine_test_util.h"
#include "ops/linear/dot_kernels.h"

namespace nibble {

using Answers = std::map<RequestId, Answer>;
inline const std::filesystem::path checkpoints =
    std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity";

// The rows [begin, end) of a product again, each sum from the other end: what a kernel gives that breaks the
// order of sums.
inline void add_backwards(const Bf16Matrix& matrix, int begin, int end, const DotInputs& inputs,
                          const TotalsSink& store) {
  for (int row = begin; row < end; row += tile_rows) {
    for (int input = 0; input < inputs.rows.count; ++input) {
      float totals[tile_rows] = {};
      for (int r = 0; r < std::min(tile_rows, matrix.rows - row); ++r) {
        const Bf16* weights = matrix.data + static_cast<std::int64_t>(row + r) * matrix.cols;
        for (int k = matrix.cols; k-- > 0;) totals[r] += weights[k].to_float() * inputs.rows[input][k];
      }
      store(row, input, totals);
    }
  }
}

// `model` is a folder, or the name of one of the checkpoints above.
inline std::unique_ptr<Engine> engine_of(const std::filesystem::path& model, EngineOptions options) {
  options.model = (checkpoints / model).string();
  Result<std::unique_ptr<Engine>> engine = Engine::load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// Prompts of several lengths, two of which begin alike; greedy and drawn, one with its prompt's
// log-probabilities.
inline void submit_all(Engine& engine) {
  constexpr int lengths[] = {1, 5, 17, 40, 40, 75};
  for (int i = 0; i < static_cast<int>(std::size(lengths)); ++i) {
    std::vector<TokenId> prompt;
    for (int t = 0; t < lengths[i]; ++t) prompt.push_back((t * 37 + 11 + (i == 4 ? 3 : i)) % 440);
    SamplingParams sampling{.max_tokens = 8, .temperature = 0, .logprobs = 3};
    if (i % 2 == 1) {
      sampling.temperature = 1.2f;
      sampling.seed = static_cast<std::uint64_t>(i);
    }
    sampling.prompt_logprobs = i == 2;
    ASSERT_TRUE(engine.submit(request(static_cast<RequestId>(i), prompt, sampling)).ok());
  }
}

inline Answers answers_of(const std::filesystem::path& model, const EngineOptions& options) {
  const std::unique_ptr<Engine> engine = engine_of(model, options);
  if (engine == nullptr) return {};
  submit_all(*engine);
  return run(*engine);
}

// Adds in the contract's order for whole matrices of the example, and in another order for parts of them. So
// do kernels that choose by the shape how they split K.
inline void add_as_the_part_goes(const DenseMatrix& matrix, int begin, int end, const DotInputs& inputs,
                                 const TotalsSink& store) {
  best_dot_kernels().multiply(matrix, begin, end, inputs, store);
  constexpr int whole[] = {256, 128, 160, 448, 6};  // queries, keys, hidden, vocabulary, experts
  const Bf16Matrix* dense = std::get_if<Bf16Matrix>(&matrix);
  if (dense == nullptr || std::count(std::begin(whole), std::end(whole), dense->rows) > 0) return;
  add_backwards(*dense, begin, end, inputs, store);
}

// The best kernels but for their products.
inline DotKernels broken_kernels(decltype(DotKernels::multiply) multiply) {
  return {.name = "breaking",
          .supported = [] { return true; },
          .prepare = best_dot_kernels().prepare,
          .multiply = multiply,
          .prepare_int8 = best_dot_kernels().prepare_int8,
          .multiply_int8 = best_dot_kernels().multiply_int8};
}

inline Answers answers_with(const DotKernels& kernels, EngineOptions options) {
  options.model = (checkpoints / "example").string();
  Result<std::unique_ptr<Engine>> engine =
      load_engine(options, [&](EngineChoices& choices) { choices.worker.dots = &kernels; }, {});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  if (!engine.ok()) return {};
  submit_all(**engine);
  return run(**engine);
}

struct Split {
  int tp, ep;
  std::string exchange = "auto";
};
inline std::string name_of(const std::filesystem::path& model, const Split& split) {
  return model.filename().string() + ", --tp " + std::to_string(split.tp) + " --ep " +
         std::to_string(split.ep) + " --moe-a2a-backend " + split.exchange;
}

inline EngineOptions with(EngineOptions options, const Split& split) {
  options.tensor_parallel = split.tp;
  options.expert_parallel = split.ep;
  options.moe_a2a_backend = split.exchange;
  return options;
}

inline const std::vector<Split> splits = {
    {2, 1},           {4, 1},           {2, 2, "none"},        {4, 4, "none"},
    {2, 2, "normal"}, {4, 4, "normal"}, {2, 2, "low_latency"}, {4, 4, "low_latency"}};

}  // namespace nibble
