// On a GPU, or on its emulation: the CPU's tokens and log-probabilities, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "ops/cuda/device_test_util.h"
#include "ops/op_test_util.h"
#include "ops/sample/cuda/sample_cuda.h"
#include "ops/sample/sample.h"

namespace nibble {
namespace {

using SampleOnTheGpu = OnTheGpu;

struct Sampled {
  std::vector<SampledToken> tokens;
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
};

// The same logits for every row's parameters.
Sampled on_gpu(const std::vector<float>& logits, const std::vector<SampleCudaParams>& params,
               int likeliest = 0) {
  const std::size_t rows = params.size(),
                    blocks = static_cast<std::size_t>(sample_cuda_blocks(static_cast<int>(logits.size())));
  const std::size_t stride = logits.size() + 3;
  std::vector<float> all(rows * stride, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t row = 0; row < rows; ++row)
    std::copy(logits.begin(), logits.end(), all.begin() + static_cast<std::ptrdiff_t>(row * stride));
  const std::size_t listed = rows * static_cast<std::size_t>(likeliest);
  Sampled found{std::vector<SampledToken>(rows), std::vector<std::int32_t>(listed),
                std::vector<float>(listed)};
  DeviceBuffer device_logits = on_device(all), device_params = on_device(params),
               tokens = device_bytes(rows * sizeof(SampledToken), 0xff), ids = device_bytes(listed * 4, 0xff),
               logprobs = device_bytes(listed * 4, 0xff), best = device_bytes(rows * blocks * 8, 0xff),
               sums = device_bytes(rows * blocks * 8, 0xff), masses = device_bytes(rows * blocks * 8, 0xff);
  const Status status =
      sample_cuda({.logits = device_logits.as<float>(),
                   .rows = static_cast<int>(rows),
                   .vocabulary = static_cast<int>(logits.size()),
                   .stride = static_cast<int>(stride),
                   .params = device_params.as<SampleCudaParams>(),
                   .tokens = tokens.as<SampledToken>(),
                   .likeliest = likeliest,
                   .likeliest_ids = ids.as<std::int32_t>(),
                   .likeliest_logprobs = logprobs.as<float>(),
                   .workspace = {best.as<std::uint64_t>(), sums.as<double>(), masses.as<std::int64_t>()}},
                  nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  tokens.copy_to(std::span(found.tokens));
  ids.copy_to(std::span(found.ids));
  logprobs.copy_to(std::span(found.logprobs));
  return found;
}

std::vector<SampleCudaParams> every_filter(std::uint32_t first_position) {
  std::vector<SampleCudaParams> all;
  for (const float temperature : {0.0f, 0.2f, 1.0f, 5.0f}) {
    for (const int top_k : {0, 1, 5, 900, 100000}) {
      for (const float top_p : {1.0f, 0.95f, 0.4f, 1e-6f}) {
        for (const float min_p : {0.0f, 0.3f}) {
          if (small_cases && (temperature == 0.2f || (temperature == 0.0f && top_k > 0))) continue;
          all.push_back({.temperature = temperature,
                         .top_k = top_k,
                         .top_p = top_p,
                         .min_p = min_p,
                         .seed = 5,
                         .choice = static_cast<std::uint32_t>(top_k),
                         .position = first_position + static_cast<std::uint32_t>(all.size())});
        }
      }
    }
  }
  return all;
}

TEST_F(SampleOnTheGpu, DrawsTheCpusTokens) {
  std::mt19937 random(1);
  std::vector<std::pair<int, float>> cases = {{1, 1.0f}, {37, 2.0f}, {1025, 0.0f}, {2500, 1.5f}};
  if (!small_cases)
    cases.insert(cases.end(), {{5000, 0.001f}, {30001, 3.0f}, {201088, 1.0f}, {201088, 4.0f}});
  for (const auto& [size, spread] : cases) {
    std::vector<float> logits = random_floats(random, static_cast<std::size_t>(size), spread);
    for (std::size_t i = 0; i + 7 < logits.size(); i += 5) logits[i] = logits[i + 7];  // ties
    const std::vector<SampleCudaParams> params = every_filter(static_cast<std::uint32_t>(size));
    const Sampled found = on_gpu(logits, params);
    const RowStatistics statistics = row_statistics(logits);
    SampleWorkspace room;
    for (std::size_t row = 0; row < params.size(); ++row) {
      const SampleCudaParams& p = params[row];
      const TokenId token = sample(logits, statistics.likeliest,
                                   {.temperature = p.temperature,
                                    .top_k = p.top_k,
                                    .top_p = p.top_p,
                                    .min_p = p.min_p,
                                    .seed = p.seed,
                                    .choice = p.choice,
                                    .position = p.position},
                                   room);
      ASSERT_EQ(found.tokens[row].token, token)
          << size << " tokens, spread " << spread << ", temperature " << p.temperature << " top_k " << p.top_k
          << " top_p " << p.top_p << " min_p " << p.min_p;
      ASSERT_EQ(found.tokens[row].finite, 1);
      ASSERT_EQ(found.tokens[row].logprob, logprob(logits, statistics, token));
    }
  }
}

TEST_F(SampleOnTheGpu, ListsTheLikeliestWithTheirLogProbabilities) {
  std::mt19937 random(2);
  for (const int size : small_cases ? std::vector<int>{20, 2100} : std::vector<int>{20, 2100, 201088}) {
    for (const float spread : {0.0f, 2.0f}) {
      const std::vector<float> logits = random_floats(random, static_cast<std::size_t>(size), spread);
      const RowStatistics statistics = row_statistics(logits);
      for (const int count : {1, 20}) {
        const Sampled found = on_gpu(logits, {{.temperature = 0}, {}}, count);
        std::vector<TokenId> expected;
        likeliest(logits, count, expected);
        for (std::size_t i = 0; i < found.ids.size(); ++i) {
          const TokenId id = expected[i % static_cast<std::size_t>(count)];
          ASSERT_EQ(found.ids[i], id) << size << " tokens, place " << i;
          ASSERT_EQ(found.logprobs[i], logprob(logits, statistics, id));
        }
      }
    }
  }
}

TEST_F(SampleOnTheGpu, SaysWhichRowsAreNotFinite) {
  std::mt19937 random(3);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = random_floats(random, 1500);
    logits[1200] = bad;
    for (const SampledToken& token : on_gpu(logits, {{}, {.temperature = 0}, {.top_p = 0.5f}}).tokens)
      EXPECT_EQ(token.finite, 0);
  }
}

TEST_F(SampleOnTheGpu, RefusesListsItHasNoRoomFor) {
  EXPECT_NE(sample_cuda({.vocabulary = 100, .likeliest = 40}, nullptr).message().find("40"),
            std::string::npos);
  EXPECT_NE(sample_cuda({.vocabulary = 1 << 21}, nullptr).message().find("2097152"), std::string::npos);
}

}  // namespace
}  // namespace nibble
