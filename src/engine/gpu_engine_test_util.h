// The engine with a GPU's worker in tests, on a GPU or on its emulation.
#pragma once

#include <functional>
#include <memory>

#include "engine/choices.h"
#include "engine/damaged_example_test_util.h"
#include "engine/engine_test_util.h"
#include "runtime/gpu.h"

namespace nibble {

class OnAGpuEngine : public DamagedExample {
 protected:
  void SetUp() override {
    Machine machine;
    probe_gpus(machine);
    if (machine.gpu.count == 0) GTEST_SKIP() << "no usable GPU or driver";
    DamagedExample::SetUp();
  }
};

// Whatever the plan for this machine would be: small steps on its GPU, of which none has drafts unless that
// is asked for.
inline std::unique_ptr<Engine> gpu_engine(const std::filesystem::path& folder, EngineOptions options,
                                          const std::function<void(EngineChoices&)>& change = {}) {
  options.model = folder.string();
  options.device = Device::cpu;
  options.threads = 2;
  if (options.speculative_algorithm == "auto") options.speculative_algorithm = "none";
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

}  // namespace nibble
