#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/allocation_meter.h"
#include "engine/choices.h"

namespace nibble {
namespace {

std::unique_ptr<Engine> load(EngineOptions options, bool plans_ahead) {
  options.model = (std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity/example").string();
  // Few pages and forced preemptions, so that steps evict, preempt and compute again.
  Result<std::unique_ptr<Engine>> engine =
      load_engine(options,
                  [&](EngineChoices& choices) {
                    choices.plan_ahead = plans_ahead;
                    choices.scheduler.preempt_every = 7;
                    choices.worker.page_counts = choices.cache.page_count = {16, 16};
                  },
                  {});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

void submit(Engine& engine, RequestId id, std::size_t prompt, SamplingParams sampling) {
  Request request{.id = id, .sampling = std::move(sampling)};
  for (std::size_t i = 0; i < prompt; ++i)
    request.prompt.push_back(static_cast<TokenId>((id * 31 + i) % 400));
  ASSERT_TRUE(engine.submit(std::move(request)).ok());
}

// Greedy, sampled in two ways, with the likeliest tokens, and with the prompt's log-probabilities: every kind
// of request, in chunks that mix prompts with answers.
void submit_every_kind(Engine& engine) {
  submit(engine, 1, 70, {.max_tokens = 20, .temperature = 0});
  submit(engine, 2, 9, {.max_tokens = 30, .temperature = 0.9f, .top_p = 0.9f, .seed = 5});
  submit(engine, 3, 33, {.max_tokens = 10, .temperature = 1.2f, .top_k = 20, .min_p = 0.05f, .logprobs = 5});
  submit(engine, 4, 50, {.max_tokens = 3, .temperature = 1.0f, .logprobs = 400, .prompt_logprobs = true});
  submit(engine, 6, 20,
         {.max_tokens = 25,
          .repetition_penalty = 1.3f,
          .frequency_penalty = 0.5f,
          .presence_penalty = -0.5f,
          .logit_bias = {{7, 5.0f}, {9, -100.0f}},
          .min_tokens = 8,
          .stop_ids = {7, 11},
          .prompt_logprobs = true,
          .prompt_top_logprobs = 3});
  submit(engine, 5, 40, {.max_tokens = 0, .prompt_logprobs = true});
}

TEST(AllocationMeter, SeesWhatIsAllocated) {
  const AllocationMeter meter;
  const std::string text(1000, 'x');
  EXPECT_EQ(text.size(), 1000u);
  EXPECT_EQ(meter.count(), 1u);
}

TEST(Engine, AStepAllocatesNothing) {
  for (const FloatType dtype : {FloatType::float32, FloatType::bfloat16}) {
    for (const int threads : {1, 2}) {
      std::unique_ptr<Engine> engine =
          load({.threads = threads, .max_num_seqs = 4, .max_num_batched_tokens = 32, .dtype = dtype},
               threads == 2);
      submit_every_kind(*engine);
      std::vector<Event> events;
      events.reserve(64);
      int steps = 0, prefill_steps = 0, decode_steps = 0;
      while (!engine->idle()) {
        events.clear();
        const AllocationMeter meter;
        const Result<StepTimes> step = engine->step(events);
        const std::size_t allocations = meter.count();
        ASSERT_TRUE(step.ok()) << step.status().message();
        EXPECT_EQ(allocations, 0u) << "step " << steps << " of " << step->prefill_tokens << " prompt and "
                                   << step->decode_tokens << " answer tokens";
        prefill_steps += step->prefill_tokens > 0;
        decode_steps += step->prefill_tokens == 0;
        ++steps;
      }
      EXPECT_GE(engine->totals().preemptions, 3u);
      EXPECT_GT(engine->totals().evicted_pages, 0u);
      EXPECT_GE(prefill_steps, 6);
      EXPECT_GE(decode_steps, 6);
    }
  }
}

}  // namespace
}  // namespace nibble
