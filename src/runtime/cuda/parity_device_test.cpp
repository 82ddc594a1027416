// A GPU, or its emulation, against transformers' log-probabilities of the tiny checkpoints in
// tests/data/parity, by their own limits for arithmetic in bfloat16.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/text_file.h"
#include "runtime/cuda/gpu_worker_test_util.h"

namespace nibble {
namespace {

JsonValue member(const JsonValue& of, std::string_view name) {
  const std::optional<JsonValue> found = of.find(name);
  NIBBLE_CHECK(found.has_value(), name);
  return *found;
}

// What a prompt's log-probabilities and those of its greedy answer are apart from the reference's.
struct ApartFromReference {
  double most = 0, sum = 0;
  int count = 0;

  void add(double found, double expected) {
    const double apart = std::fabs(found - expected);
    most = std::isfinite(apart) ? std::max(most, apart) : INFINITY;
    sum += apart;
    ++count;
  }
  double mean() const { return sum / count; }
};

ApartFromReference compare_prompt(Worker& worker, const JsonValue& prompt, double tie_margin) {
  constexpr std::size_t steps = 3;
  std::vector<TokenId> ids;
  for (const JsonValue& id : member(prompt, "prompt_ids").elements())
    ids.push_back(static_cast<TokenId>(id.as_integer()));
  const Heard heard = run_alone(worker, sequence_of(ids, 64, {0, 1}), steps);
  ApartFromReference apart;
  std::size_t at = 0;
  for (const JsonValue& logprob : member(prompt, "prompt_logprobs").elements()) {
    if (logprob.is_null()) continue;  // of the first token
    apart.add(double{heard.prompt_logprobs.at(at++)}, logprob.as_double());
  }
  std::vector<TokenId> greedy;
  std::vector<double> logprobs;
  for (const JsonValue& id : member(prompt, "greedy_ids").elements())
    greedy.push_back(static_cast<TokenId>(id.as_integer()));
  for (const JsonValue& logprob : member(prompt, "greedy_logprobs").elements())
    logprobs.push_back(logprob.as_double());
  for (std::size_t step = 0; step < steps; ++step) {
    if (heard.tokens[step] != greedy[step]) {  // a tie, and another answer behind it
      EXPECT_LT(std::fabs(double{heard.logprobs[step]} - logprobs[step]), tie_margin) << "step " << step;
      break;
    }
    apart.add(double{heard.logprobs[step]}, logprobs[step]);
  }
  return apart;
}

class ParityOnTheGpu : public OnTheGpu, public testing::WithParamInterface<const char*> {};

TEST_P(ParityOnTheGpu, LogProbabilitiesAreTransformers) {
  if (IsSkipped()) return;
  const std::filesystem::path folder = root / "tests/data/parity" / GetParam();
  const JsonDocument expected =
      must(JsonDocument::parse(must(read_text_file(folder / "expected.json", std::size_t{1} << 20))));
  const JsonValue limits = member(member(expected.root(), "thresholds"), "bf16");
  const double tie_margin = member(member(expected.root(), "tie_margin"), "bf16").as_double();
  const std::unique_ptr<Worker> worker = gpu_worker(false, folder);
  int compared = 0;
  for (const JsonValue& prompt : member(expected.root(), "prompts").elements()) {
    const std::string id(member(prompt, "id").as_string());
    if (small_cases ? id != "len7" && id != "chat1" : member(prompt, "prompt_ids").size() > 128) continue;
    SCOPED_TRACE(id);
    const ApartFromReference apart = compare_prompt(*worker, prompt, tie_margin);
    EXPECT_LE(apart.most, member(limits, "max_abs").as_double());
    EXPECT_LE(apart.mean(), member(limits, "mean_abs").as_double());
    ++compared;
  }
  EXPECT_GE(compared, 2);
}

INSTANTIATE_TEST_SUITE_P(Cases, ParityOnTheGpu,
                         testing::Values("example", "qwen3_moe_bf16", "qwen3_moe_fp8", "qwen3_moe_fp8_row",
                                         "qwen3_moe_nvfp4_packed", "qwen3_next_bf16", "qwen3_5_moe_stacked",
                                         "deepseek_v3_bf16", "deepseek_v3_fp8"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace nibble
