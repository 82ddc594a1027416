// What an engine takes is what its plan said. The demo model with keys and values for sixteen of its longest
// sequences: some 180 MB, of which what nobody planned (the file's index, queues) is well below one per cent.
// Counted are the bytes of the heap, where every buffer lies, and the mapped file; not the threads' stacks.
#include "plan/memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <tuple>
#include <utility>

#include "engine/engine_test_util.h"

namespace nibble {
namespace {

std::int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

// A sanitizer brings its own heap, of which mallinfo2 knows nothing. Compilers name sanitizers in different
// ways, so the heap is tried.
bool heap_is_counted() {
  constexpr std::int64_t bytes = 1 << 20;
  const std::int64_t before = heap_bytes();
  const std::unique_ptr<volatile char[]> taken(new volatile char[bytes]);
  taken[0] = 1;
  return heap_bytes() - before >= bytes;
}

TEST(Memory, WhatAnEngineTakesIsWhatItsPlanSaid) {
  if (!heap_is_counted()) GTEST_SKIP() << "a sanitizer has another heap";
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
      if (options.quantization != Quantization::none && group.use != WeightUse::last_token)
        taken -= 2 * group.convertible_values();
    }
    EXPECT_GT(planned.total, 100 << 20);
    EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(planned.total),
                0.01 * static_cast<double>(planned.total));
    RecordProperty("taken", std::to_string(taken));
    std::printf("planned %lld, taken %lld\n", static_cast<long long>(planned.total),
                static_cast<long long>(taken));
  }
}

// Ranks of a CPU have parts that differ: the plan has the largest, and what the first has alone (logits,
// rooms for sampling) is counted for each. States and latents of many sequences are most of it here.
TEST(Memory, RanksTakeNoMoreThanTheirPlansSay) {
  if (!heap_is_counted()) GTEST_SKIP() << "a sanitizer has another heap";
  for (const char* model : {"qwen3_next_bf16", "qwen3_5_moe_stacked", "deepseek_v3_bf16"}) {
    for (const auto& [ranks, owners, quantization] : {std::tuple{1, 1, Quantization::none},
                                                      {2, 1, Quantization::none},
                                                      {2, 2, Quantization::none},
                                                      {4, 2, Quantization::none},
                                                      {1, 1, Quantization::q8},
                                                      {2, 1, Quantization::q8},
                                                      {2, 2, Quantization::q8}}) {
      const EngineOptions options{.model = std::string(NIBBLE_SOURCE_DIR) + "/tests/data/parity/" + model,
                                  .threads = 2,
                                  .max_num_seqs = 200,
                                  .quantization = quantization,
                                  .kv_cache_tokens = 40000,
                                  .tensor_parallel = ranks,
                                  .data_parallel = owners};
      const std::int64_t before = heap_bytes();
      const Result<std::unique_ptr<Engine>> engine = Engine::load(options);
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      const MemoryPlan& planned = (*engine)->model().plan.memory;
      const std::int64_t converted =
          converted_bytes((*engine)->model().plan.model, quantization, ranks / owners);
      EXPECT_EQ(converted > 0, quantization != Quantization::none);
      const double taken = static_cast<double>(heap_bytes() - before);
      // What ranks meet in is shared memory and no heap: two slots of a mebibyte each, in each of their
      // groups.
      const int groups = ranks == 1 ? 0 : owners == 1 || owners == ranks ? 1 : 2;
      const double meeting = groups * ranks * 2.0 * (1 << 20);
      const double all = static_cast<double>(ranks * (planned.kv + planned.workspace + converted)) - meeting;
      EXPECT_GT(taken, 0.9 * all) << model << " on " << ranks << ", owners " << owners;
      // Converted weights are asked for in whole huge pages.
      const double huge_pages = converted > 0 ? ranks * 2.0 * (1 << 20) : 0;
      EXPECT_LT(taken, 1.02 * all + (2 << 20) + huge_pages)
          << model << " on " << ranks << ", owners " << owners;
      std::printf("%s on %d: planned %.0f, taken %.0f\n", model, ranks, all, taken);
    }
  }
}

}  // namespace
}  // namespace nibble
