// The engine with a GPU's worker, on a GPU or on its emulation.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/choices.h"
#include "engine/damaged_example_test_util.h"
#include "runtime/gpu.h"

namespace nibble {
namespace {

// Whatever the plan for this machine would be: small steps on its GPU.
std::unique_ptr<Engine> gpu_engine(const std::filesystem::path& folder, EngineOptions options,
                                   const std::function<void(EngineChoices&)>& change = {}) {
  options.model = folder.string();
  options.device = Device::cpu;
  options.threads = 2;
  options.max_num_batched_tokens = 48;
  const auto small = [&](EngineChoices& choices) {
    choices.plan.device = DeviceKind::cuda;
    choices.plan_ahead = true;
    choices.scheduler.max_logit_rows = choices.worker.max_logit_rows = 48;
    choices.cache.page_size = choices.worker.page_size = 64;
    choices.cache.page_count = choices.worker.page_counts = {24, 24};
    choices.worker.activations = InputValues::bf16;
    choices.worker.kv_dtype = DType::bf16;
    choices.scheduler.max_model_len = choices.worker.max_positions = 512;
    if (change) change(choices);
  };
  Result<std::unique_ptr<Engine>> engine = load_engine(options, small, {});
  NIBBLE_CHECK(engine.ok(), engine.ok() ? "" : engine.status().message());
  return std::move(engine).value();
}

class GpuEngine : public DamagedExample {
 protected:
  void SetUp() override {
    Machine machine;
    probe_gpus(machine);
    if (machine.gpu.count == 0) GTEST_SKIP() << "no usable GPU or driver";
    DamagedExample::SetUp();
  }
};

TEST_F(GpuEngine, ANotANumberEndsTheRequestThatMetItAndLeavesItsMatesBitsAlone) {
  spoil_embedding(300);
  std::unique_ptr<Engine> engine = gpu_engine(copy_, {.max_num_seqs = 4, .no_prefix_cache = true});
  const auto ask = [&](RequestId id, std::vector<TokenId> prompt) {
    ASSERT_TRUE(engine->submit(request(id, prompt, {.max_tokens = 4, .temperature = 0, .logprobs = 2})).ok());
  };
  ask(1, {1, 2, 3});
  ask(2, {7, 8});
  const auto expected = run(*engine);
  ASSERT_EQ(expected.at(1).tokens.size(), 4u);
  ask(3, {5, 300});
  ask(1, {1, 2, 3});
  ask(4, {300});
  ask(2, {7, 8});
  const auto answers = run(*engine);
  for (const RequestId id : {3, 4}) {
    EXPECT_EQ(answers.at(id).finish, FinishReason::error);
    EXPECT_TRUE(answers.at(id).tokens.empty());
  }
  for (const RequestId id : {1, 2}) EXPECT_TRUE(answers.at(id) == expected.at(id)) << id;
}

}  // namespace
}  // namespace nibble
