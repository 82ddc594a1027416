// Kernels that take a row at a time, beside the CPU's forms of them.
#include <algorithm>
#include <cmath>

#include "ops/embedding/cuda/embedding_cuda.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/router/cuda/router_cuda.h"
#include "ops/router/router.h"
#include "ops/sample/cuda/sample_cuda.h"
#include "ops/sample/sample.h"
#include "runtime/cuda/gpu_check_util.h"

namespace nibble {
namespace {

std::vector<float> floats(Numbers& numbers, std::size_t count, float most) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(numbers.bf16(most).to_float());
  return values;
}

}  // namespace

Result<std::string> check_norm() {
  constexpr int rows = 3, hidden = 2880;
  constexpr std::size_t elements = rows * hidden;
  constexpr float eps = 1e-5f;
  Numbers numbers;
  std::vector<float> residual = floats(numbers, elements, 3.0f), expected(elements);
  const std::vector<float> delta = floats(numbers, elements, 1.0f);
  const std::vector<Bf16> weight = numbers.list(hidden);
  NIBBLE_ASSIGN(DeviceBuffer device_residual, on_device(residual));
  NIBBLE_ASSIGN(DeviceBuffer device_delta, on_device(delta));
  NIBBLE_ASSIGN(DeviceBuffer device_weight, on_device(weight));
  NIBBLE_ASSIGN(DeviceBuffer out, zeroed(elements * sizeof(Bf16)));
  NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda({.residual = device_residual.as<float>(),
                                            .residual_out = device_residual.as<float>(),
                                            .delta = device_delta.as<float>(),
                                            .weight = device_weight.as<Bf16>(),
                                            .out = out.as<Bf16>(),
                                            .out_stride = hidden,
                                            .rows = rows,
                                            .hidden = hidden,
                                            .eps = eps},
                                           nullptr));
  ThreadPool threads(1);
  OpContext context{.threads = threads, .activations = InputValues::bf16};
  add_rms_norm(context, {.residual = residual.data(),
                         .delta = delta.data(),
                         .weight = weight.data(),
                         .out = expected.data(),
                         .rows = rows,
                         .hidden = hidden,
                         .eps = eps});
  std::vector<float> found_residual(elements);
  std::vector<Bf16> found(elements);
  device_residual.copy_to(std::span(found_residual));
  out.copy_to(std::span(found));
  if (found_residual != residual) return std::string("another residual than the CPU's");
  for (std::size_t i = 0; i < elements; ++i) {
    // The sum's order differs, so a value may round to its neighbour.
    if (!(std::fabs(found[i].to_float() - expected[i]) <= std::fabs(expected[i]) / 128))
      return std::string("far from the CPU's");
  }
  return std::string();
}

Result<std::string> check_router() {
  constexpr int rows = 9, experts = 128, top_k = 4;
  Numbers numbers;
  std::vector<float> logits = floats(numbers, rows * experts, 3.0f);
  for (float& logit : logits) logit = std::round(logit * 4) / 4;  // many ties: the lower index wins
  NIBBLE_ASSIGN(DeviceBuffer device_logits, on_device(logits));
  NIBBLE_ASSIGN(DeviceBuffer device_ids, zeroed(rows * top_k * sizeof(std::int32_t)));
  NIBBLE_ASSIGN(DeviceBuffer device_weights, zeroed(rows * top_k * sizeof(float)));
  NIBBLE_RETURN_IF_ERROR(route_top_k_cuda({.logits = device_logits.as<float>(),
                                           .rows = rows,
                                           .experts = experts,
                                           .top_k = top_k,
                                           .expert_ids = device_ids.as<std::int32_t>(),
                                           .expert_weights = device_weights.as<float>()},
                                          nullptr));
  std::vector<std::int32_t> ids(rows * top_k), expected_ids(rows * top_k);
  std::vector<float> weights(rows * top_k), expected_weights(rows * top_k);
  device_ids.copy_to(std::span(ids));
  device_weights.copy_to(std::span(weights));
  ThreadPool threads(1);
  OpContext context{.threads = threads};
  route_top_k(context, {.logits = logits.data(),
                        .rows = rows,
                        .experts = experts,
                        .top_k = top_k,
                        .expert_ids = expected_ids.data(),
                        .expert_weights = expected_weights.data()});
  if (ids != expected_ids) return std::string("other experts than the CPU's");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(std::fabs(weights[i] - expected_weights[i]) <= 1e-5f))
      return std::string("weights far from the CPU's");
  }
  return std::string();
}

Result<std::string> check_embedding() {
  constexpr int vocabulary = 40, hidden = 72;
  Numbers numbers;
  const std::vector<Bf16> table = numbers.list(vocabulary * hidden);
  const std::vector<std::int32_t> ids = {0, 39, 7, 7, 20};
  NIBBLE_ASSIGN(DeviceBuffer device_table, on_device(table));
  NIBBLE_ASSIGN(DeviceBuffer device_ids, on_device(ids));
  NIBBLE_ASSIGN(DeviceBuffer out, zeroed(ids.size() * hidden * sizeof(float)));
  NIBBLE_RETURN_IF_ERROR(embedding_cuda({.table = device_table.as<Bf16>(),
                                         .ids = device_ids.as<std::int32_t>(),
                                         .rows = static_cast<int>(ids.size()),
                                         .hidden = hidden,
                                         .out = out.as<float>()},
                                        nullptr));
  std::vector<float> found(ids.size() * hidden);
  out.copy_to(std::span(found));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t row = static_cast<std::size_t>(ids[i / hidden]);
    if (found[i] != table[row * hidden + i % hidden].to_float()) return std::string("another row's values");
  }
  return std::string();
}

Result<std::string> check_sampling() {
  constexpr int vocabulary = 5000, listed = 8;
  Numbers numbers;
  const std::vector<SampleCudaParams> params = {{.temperature = 0},
                                                {.temperature = 1, .seed = 3},
                                                {.temperature = 0.8f, .top_k = 40, .seed = 4},
                                                {.temperature = 1.2f, .top_p = 0.9f, .seed = 5}};
  const int rows = static_cast<int>(params.size());
  const std::vector<float> logits = floats(numbers, params.size() * vocabulary, 9.0f);
  NIBBLE_ASSIGN(DeviceBuffer device_logits, on_device(logits));
  NIBBLE_ASSIGN(DeviceBuffer device_params, on_device(params));
  NIBBLE_ASSIGN(DeviceBuffer device_tokens, zeroed(params.size() * sizeof(SampledToken)));
  NIBBLE_ASSIGN(DeviceBuffer device_ids, zeroed(params.size() * listed * sizeof(std::int32_t)));
  NIBBLE_ASSIGN(DeviceBuffer device_logprobs, zeroed(params.size() * listed * sizeof(float)));
  NIBBLE_ASSIGN(DeviceBuffer workspace, zeroed(sample_cuda_workspace_bytes(rows, vocabulary)));
  NIBBLE_RETURN_IF_ERROR(sample_cuda({.logits = device_logits.as<float>(),
                                      .rows = rows,
                                      .vocabulary = vocabulary,
                                      .stride = vocabulary,
                                      .params = device_params.as<SampleCudaParams>(),
                                      .tokens = device_tokens.as<SampledToken>(),
                                      .likeliest = listed,
                                      .likeliest_ids = device_ids.as<std::int32_t>(),
                                      .likeliest_logprobs = device_logprobs.as<float>(),
                                      .workspace = workspace.as<std::uint8_t>(),
                                      .most_row_blocks = sample_cuda_cluster()},
                                     nullptr));
  std::vector<SampledToken> tokens(params.size());
  std::vector<std::int32_t> ids(params.size() * listed);
  device_tokens.copy_to(std::span(tokens));
  device_ids.copy_to(std::span(ids));
  SampleWorkspace room;
  for (std::size_t row = 0; row < params.size(); ++row) {
    const std::span<const float> own = std::span(logits).subspan(row * vocabulary, vocabulary);
    const RowStatistics statistics = row_statistics(own);
    const SampleCudaParams& asked = params[row];
    const TokenId expected = sample(
        own, statistics.likeliest,
        {.temperature = asked.temperature, .top_k = asked.top_k, .top_p = asked.top_p, .seed = asked.seed},
        room);
    if (tokens[row].token != expected) return std::string("another token than the CPU's");
    if (!(std::fabs(tokens[row].logprob - logprob(own, statistics, expected)) <= 1e-4f))
      return std::string("a log-probability far from the CPU's");
    std::vector<TokenId> list;
    likeliest(own, listed, list);
    if (!std::equal(list.begin(), list.end(), ids.begin() + static_cast<std::ptrdiff_t>(row * listed)))
      return std::string("other likeliest tokens than the CPU's");
  }
  return std::string();
}

}  // namespace nibble
