// Norm, rotary embedding and sampling at gpt-oss's sizes: rows of 2,880, 72 heads of 64, 201,088 logits.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/row/row_kernels.h"
#include "ops/sample/logit_changes.h"
#include "ops/sample/sample.h"

namespace nibble {
namespace {

constexpr std::size_t vocabulary = 201088, hidden = 2880;

std::vector<float> normal_floats(std::size_t n, float spread) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

void statistics(benchmark::State& state, const RowKernels& kernel) {
  const std::vector<float> logits = normal_floats(vocabulary, 3.0f);
  for (auto _ : state) benchmark::DoNotOptimize(row_statistics(logits, kernel));
}

void draw(benchmark::State& state, const RowKernels& kernel, SampleParams params, float spread) {
  const std::vector<float> logits = normal_floats(vocabulary, spread);
  const RowStatistics found = row_statistics(logits, kernel);
  SampleWorkspace room;
  room.reserve(vocabulary);
  for (auto _ : state) {
    ++params.position;
    benchmark::DoNotOptimize(sample(logits, found.likeliest, params, room, kernel));
  }
}

// Every kind of change, after a prompt and an answer of 1,000 tokens each.
void change(benchmark::State& state) {
  const std::vector<float> logits = normal_floats(vocabulary, 3.0f);
  std::mt19937 random(2);
  std::vector<TokenId> tokens(2000);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocabulary);
  const std::vector<TokenBias> bias(20, {.id = 7, .bias = 1.0f});
  const LogitChanges changes{.bias = bias,
                             .repetition_penalty = 1.1f,
                             .frequency_penalty = 0.1f,
                             .presence_penalty = 0.1f,
                             .prompt = std::span(tokens).first(1000),
                             .answer = std::span(tokens).last(1000)};
  LogitChangeRoom room;
  room.reserve(vocabulary);
  for (auto _ : state) benchmark::DoNotOptimize(change_logits(logits, changes, room));
}

// A mask of `allowed` tokens of each 32, as inside a string, then a choice.
void choose_masked(benchmark::State& state, std::uint32_t allowed) {
  const std::vector<float> logits = normal_floats(vocabulary, 3.0f);
  const std::vector<std::uint32_t> mask((vocabulary + 31) / 32, allowed);
  LogitChangeRoom room;
  SampleWorkspace sampling;
  SampleParams params;
  for (auto _ : state) {
    ++params.position;
    std::span<const float> row = few_allowed_logits(logits, mask, room);
    if (row.empty()) row = change_logits(logits, {.mask = mask}, room);
    benchmark::DoNotOptimize(sample(row, likeliest_token(row), params, sampling));
  }
}

void top_logprobs(benchmark::State& state) {
  const std::vector<float> logits = normal_floats(vocabulary, 3.0f);
  std::vector<TokenId> ids;
  ids.reserve(vocabulary);
  for (auto _ : state) likeliest(logits, 20, ids);
}

void norm(benchmark::State& state, const RowKernels& kernel) {
  ThreadPool threads(1);
  OpContext context{.threads = threads, .rows = kernel};
  std::vector<float> residual = normal_floats(hidden, 1.0f), out(hidden);
  const std::vector<float> delta(hidden, 1e-3f);
  const std::vector<Bf16> weight(hidden, Bf16::from_float(0.9f));
  for (auto _ : state) {
    add_rms_norm(context, {.residual = residual.data(),
                           .delta = delta.data(),
                           .weight = weight.data(),
                           .out = out.data(),
                           .rows = 1,
                           .hidden = hidden,
                           .eps = 1e-5f});
  }
}

void rotate(benchmark::State& state, const RowKernels& kernel) {
  ThreadPool threads(1);
  OpContext context{.threads = threads, .rows = kernel};
  std::vector<float> x = normal_floats(72 * 64, 1.0f), cos(32, 0.6f), sin(32, 0.8f);
  for (auto _ : state)
    rope(context,
         {.x = x.data(), .cos = cos.data(), .sin = sin.data(), .rows = 1, .heads = 72, .head_dim = 64});
}

void angles(benchmark::State& state) {
  ThreadPool threads(1);
  OpContext context{threads};
  const RopeFrequencies frequencies = yarn_rope(64, {.truncate = false});
  const int position = 100000;
  std::vector<float> cos(32), sin(32);
  for (auto _ : state) rope_angles(context, frequencies, {&position, 1}, cos.data(), sin.data());
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  using namespace nibble;
  const auto add = [](const std::string& name, auto&& run, auto... arguments) {
    benchmark::RegisterBenchmark(name.c_str(), run, arguments...)->Unit(benchmark::kMicrosecond);
  };
  for (const RowKernels& kernel : row_kernels()) {
    if (!kernel.supported()) continue;
    const std::string name = "/" + std::string(kernel.name);
    add("statistics" + name, statistics, kernel);
    add("sample_temperature" + name, draw, kernel, SampleParams{}, 3.0f);
    add("sample_top_k_50" + name, draw, kernel, SampleParams{.top_k = 50}, 3.0f);
    add("sample_top_p_0.9" + name, draw, kernel, SampleParams{.top_p = 0.9f}, 3.0f);
    add("sample_top_p_0.9_flat" + name, draw, kernel, SampleParams{.top_p = 0.9f}, 0.001f);
    add("norm" + name, norm, kernel);
    add("rope" + name, rotate, kernel);
  }
  add("top_20", top_logprobs);
  add("change_logits", change);
  add("choose_masked/29_of_32", choose_masked, 0xefffff5fu);
  add("choose_masked/half", choose_masked, 0x5a5a5a5au);
  add("choose_masked/8_of_32", choose_masked, 0x40404444u | 0x00110000u);
  add("choose_masked/1_of_32", choose_masked, 0x400u);
  add("rope_angles", angles);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
