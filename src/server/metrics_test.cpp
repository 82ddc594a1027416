#include "server/metrics.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

using std::chrono::milliseconds;

// The value of a sample without labels of its own.
std::string value_of(const std::string& text, const std::string& name) {
  const std::string begin = "\n" + name + "{model_name=\"m\",engine=\"0\"} ";
  const std::size_t at = text.find(begin);
  if (at == std::string::npos) return "none";
  const std::size_t from = at + begin.size();
  return text.substr(from, text.find('\n', from) - from);
}

TEST(Metrics, ARequestsTimeIsCutWhereItLeavesTheQueueAndWhereItsFirstTokenComes) {
  const ModelInfo model;
  ManualClock clock;
  Metrics metrics("m", model, clock);
  const int prompt[] = {7};
  metrics.accept({.first = 1, .prompt_tokens = prompt, .max_tokens = 3});
  clock.advance(milliseconds(1000));
  const auto begun = clock.now();
  clock.advance(milliseconds(500));
  metrics.take({.request = 1, .token = 5, .begun = begun});
  clock.advance(milliseconds(250));
  metrics.take({.request = 1, .token = 5});
  clock.advance(milliseconds(2000));
  metrics.take({.request = 1, .token = 5, .finish = FinishReason::length});
  const std::string text = metrics.text({}, {});
  EXPECT_EQ(value_of(text, "vllm:request_queue_time_seconds_sum"), "1");
  EXPECT_EQ(value_of(text, "vllm:request_prefill_time_seconds_sum"), "0.5");
  EXPECT_EQ(value_of(text, "vllm:request_decode_time_seconds_sum"), "2.25");
  EXPECT_EQ(value_of(text, "vllm:request_inference_time_seconds_sum"), "2.75");
  EXPECT_EQ(value_of(text, "vllm:e2e_request_latency_seconds_sum"), "3.75");
  EXPECT_EQ(value_of(text, "vllm:time_to_first_token_seconds_sum"), "1.5");
}

TEST(Metrics, WhoLeavesInTheQueueHasNoTimeButItsWhole) {
  const ModelInfo model;
  ManualClock clock;
  Metrics metrics("m", model, clock);
  const int prompt[] = {7};
  metrics.accept({.first = 1, .prompt_tokens = prompt, .max_tokens = 3});
  clock.advance(milliseconds(4000));
  metrics.end(1, Metrics::Outcome::abort);
  const std::string text = metrics.text({}, {});
  for (const char* name : {"queue", "prefill", "decode", "inference"})
    EXPECT_EQ(value_of(text, "vllm:request_" + std::string(name) + "_time_seconds_count"), "0") << name;
  EXPECT_EQ(value_of(text, "vllm:e2e_request_latency_seconds_sum"), "4");
}

TEST(Metrics, ThePlanStandsInLabels) {
  ModelInfo model;
  model.plan.page_size = 16;
  model.plan.kv_pages = 512;
  model.plan.prefix_cache = true;
  model.plan.choices = {{.field = "attention", .value = "cpu \"paged\"", .from = "default"}};
  const ManualClock clock;
  const std::string text = Metrics("m", model, clock).text({}, {});
  EXPECT_NE(
      text.find("vllm:cache_config_info{model_name=\"m\",engine=\"0\",block_size=\"16\",cache_dtype=\"bf16\","
                "enable_prefix_caching=\"True\",num_gpu_blocks=\"512\"} 1\n"),
      std::string::npos);
  EXPECT_NE(text.find("nibble_plan_info{model_name=\"m\",engine=\"0\",field=\"attention\","
                      "value=\"cpu \\\"paged\\\"\",from=\"default\"} 1\n"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble
