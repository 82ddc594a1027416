// What an engine takes is what its plan said. The demo model with keys and values for sixteen of its longest
// sequences: some 180 MB, of which what nobody planned (the file's index, queues) is well below one per cent.
// Counted are the bytes of the heap, where every buffer lies, and the mapped file; not the threads' stacks.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>

#include "engine/engine_test_util.h"

namespace nibble {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool own_heap = false;
#else
constexpr bool own_heap = true;
#endif

std::int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

TEST(Memory, WhatAnEngineTakesIsWhatItsPlanSaid) {
  if (!own_heap) GTEST_SKIP() << "a sanitizer has another heap";
  const std::string demo = std::string(NIBBLE_SOURCE_DIR) + "/models/demo";
  for (const EngineOptions& options :
       {EngineOptions{.model = demo, .threads = 2},
        EngineOptions{.model = demo, .threads = 3, .max_num_seqs = 40},
        EngineOptions{.model = demo, .threads = 1, .kv_cache_dtype = FloatType::float32},
        EngineOptions{.model = demo, .threads = 2, .quantization = Quantization::q8}}) {
    const std::int64_t before = heap_bytes();
    const Result<std::unique_ptr<Engine>> engine = Engine::load(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const ModelInfo& model = (*engine)->model();
    const MemoryPlan& planned = model.plan.memory;
    std::int64_t taken = heap_bytes() - before + model.weight_bytes;
    // Of a converted matrix the file's pages are given back; lm_head is the embedding here, which stays.
    for (const WeightGroup& group : model.plan.model.weights) {
      if (options.quantization != Quantization::none && group.convertible &&
          group.use != WeightUse::last_token)
        taken -= 2 * group.values;
    }
    EXPECT_GT(planned.total, 100 << 20);
    EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(planned.total),
                0.01 * static_cast<double>(planned.total));
    RecordProperty("taken", std::to_string(taken));
    std::printf("planned %lld, taken %lld\n", static_cast<long long>(planned.total),
                static_cast<long long>(taken));
  }
}

}  // namespace
}  // namespace nibble
