// Models whose layers keep a state of a sequence: a slot is taken up by one request after the other, and bits
// depend on none of that.
#include <gtest/gtest.h>

#include "engine/choices.h"
#include "engine/engine_test_util.h"

namespace nibble {
namespace {

const std::filesystem::path hybrid =
    std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity/qwen3_5_moe_stacked";

// Lengths around the borders of a state's chunks, prompts and answers together, and some that cross them
// while they decode.
std::map<RequestId, Answer> answers_of(Engine& engine) {
  RequestId id = 0;
  for (const int length : {1, 62, 63, 64, 65, 127, 128, 150}) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back((7 * i + length) % 400);
    EXPECT_TRUE(
        engine.submit(request(id++, prompt, {.max_tokens = 12, .temperature = 0, .logprobs = 2})).ok());
  }
  return run(engine);
}

std::unique_ptr<Engine> load_hybrid(EngineOptions options,
                                    const std::function<void(EngineChoices&)>& change = {}) {
  options.model = hybrid.string();
  Result<std::unique_ptr<Engine>> engine = load_engine(options, change, {});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

TEST(States, BitsDependOnNeitherCutsNorCompanyNorPreemption) {
  const auto expected =
      answers_of(*load_hybrid({.threads = 1, .max_num_seqs = 1, .max_num_batched_tokens = 1}));
  ASSERT_EQ(expected.size(), 8u);
  struct Way {
    int rows, sequences, preempt_every;
    bool plans_ahead;
  };
  for (const Way& way :
       {Way{512, 8, 0, false}, {63, 3, 0, true}, {65, 2, 2, false}, {100, 4, 3, true}, {7, 8, 5, false}}) {
    const auto engine =
        load_hybrid({.threads = 2, .max_num_seqs = way.sequences, .max_num_batched_tokens = way.rows},
                    [&](EngineChoices& choices) {
                      choices.scheduler.preempt_every = way.preempt_every;
                      choices.plan_ahead = way.plans_ahead;
                    });
    const auto got = answers_of(*engine);
    for (const auto& [id, answer] : expected)
      EXPECT_EQ(got.at(id), answer) << id << ", " << way.rows << " rows a step";
    EXPECT_EQ(engine->totals().preemptions > 0, way.preempt_every > 0);
  }
}

TEST(States, NoPromptGoesOnFromAnothers) {
  const auto engine = load_hybrid({});
  EXPECT_FALSE(engine->model().plan.prefix_cache);
  const auto first = answers_of(*engine), second = answers_of(*engine);
  for (const auto& [id, answer] : first) {
    EXPECT_EQ(second.at(id), answer);
    EXPECT_EQ(second.at(id).cached_tokens, 0);
  }
}

TEST(States, RanksOfACpuAreRefusedBeforeWeightsAreRead) {
  const Result<std::unique_ptr<Engine>> engine =
      Engine::load({.model = hybrid.string(), .tensor_parallel = 2});
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("layers with a state are not divided among ranks of a CPU yet"),
            std::string::npos)
      << engine.status().message();
}

}  // namespace
}  // namespace nibble
