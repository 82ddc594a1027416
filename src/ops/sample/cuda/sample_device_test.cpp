// On a GPU, or on its emulation: the CPU's tokens and log-probabilities, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "ops/cuda/device_test_util.h"
#include "ops/op_test_util.h"
#include "ops/sample/cuda/sample_cuda.h"
#include "ops/sample/sample.h"
#include "tensor/pinned_buffer.h"

namespace nibble {
namespace {

using SampleOnTheGpu = OnTheGpu;

struct Sampled {
  std::vector<SampledToken> tokens;
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs, target_logprobs;
};

struct Asked {
  int likeliest = 0;
  const std::vector<float>* changed = nullptr;  // what every other row is chosen from
  std::vector<std::int32_t> targets = {};
  int most_row_blocks = sample_cuda_cluster();
};
bool is_changed(std::size_t row) { return row % 2 == 1; }

// The same logits for every row's parameters.
Sampled on_gpu(const std::vector<float>& logits, const std::vector<SampleCudaParams>& params,
               const Asked& asked = {}) {
  const std::size_t rows = params.size(), stride = logits.size() + 3;
  const int vocabulary = static_cast<int>(logits.size());
  std::vector<float> all(rows * stride, std::numeric_limits<float>::quiet_NaN()), changed;
  std::vector<std::int32_t> changed_rows;
  for (std::size_t row = 0; row < rows; ++row) {
    std::copy(logits.begin(), logits.end(), all.begin() + static_cast<std::ptrdiff_t>(row * stride));
    const bool other = asked.changed != nullptr && is_changed(row);
    changed_rows.push_back(other ? static_cast<std::int32_t>(changed.size() / stride) : -1);
    if (!other) continue;
    changed.insert(changed.end(), asked.changed->begin(), asked.changed->end());
    changed.resize(changed.size() + 3, std::numeric_limits<float>::quiet_NaN());
  }
  changed.resize(std::max(changed.size(), std::size_t{1}));
  const std::size_t listed = rows * static_cast<std::size_t>(asked.likeliest);
  Sampled found{std::vector<SampledToken>(rows), std::vector<std::int32_t>(listed),
                std::vector<float>(listed), std::vector<float>(rows)};
  std::vector<std::int32_t> targets = asked.targets;
  targets.resize(rows, -1);
  DeviceBuffer device_logits = on_device(all), device_params = on_device(params),
               device_changed = on_device(changed), device_rows = on_device(changed_rows),
               device_targets = on_device(targets), tokens = device_bytes(rows * sizeof(SampledToken), 0xff),
               ids = device_bytes(listed * 4, 0xff), logprobs = device_bytes(listed * 4, 0xff),
               target_logprobs = device_bytes(rows * 4, 0xee),
               workspace =
                   device_bytes(sample_cuda_workspace_bytes(static_cast<int>(rows), vocabulary), 0xff);
  Result<PinnedBuffer> of_host = PinnedBuffer::allocate(rows * sizeof(SampledToken));
  NIBBLE_CHECK(of_host.ok(), of_host.status().message());
  const Status status =
      sample_cuda({.logits = device_logits.as<float>(),
                   .rows = static_cast<int>(rows),
                   .vocabulary = vocabulary,
                   .stride = static_cast<int>(stride),
                   .params = device_params.as<SampleCudaParams>(),
                   .tokens = tokens.as<SampledToken>(),
                   .host_tokens = of_host->at<SampledToken>(0),
                   .changed = asked.changed == nullptr ? nullptr : device_changed.as<float>(),
                   .changed_rows = asked.changed == nullptr ? nullptr : device_rows.as<std::int32_t>(),
                   .targets = asked.targets.empty() ? nullptr : device_targets.as<std::int32_t>(),
                   .target_logprobs = target_logprobs.as<float>(),
                   .likeliest = asked.likeliest,
                   .likeliest_ids = ids.as<std::int32_t>(),
                   .likeliest_logprobs = logprobs.as<float>(),
                   .workspace = workspace.as<std::uint8_t>(),
                   .most_row_blocks = asked.most_row_blocks},
                  nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  tokens.copy_to(std::span(found.tokens));
  EXPECT_EQ(std::memcmp(of_host->data(), found.tokens.data(), of_host->size()), 0)
      << "other tokens on the host";
  ids.copy_to(std::span(found.ids));
  logprobs.copy_to(std::span(found.logprobs));
  target_logprobs.copy_to(std::span(found.target_logprobs));
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

TokenId on_cpu(const std::vector<float>& logits, const SampleCudaParams& p) {
  static SampleWorkspace room;
  return sample(logits, likeliest_token(logits),
                {.temperature = p.temperature,
                 .top_k = p.top_k,
                 .top_p = p.top_p,
                 .min_p = p.min_p,
                 .seed = p.seed,
                 .choice = p.choice,
                 .position = p.position},
                room);
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
    for (std::size_t row = 0; row < params.size(); ++row) {
      const SampleCudaParams& p = params[row];
      const TokenId token = on_cpu(logits, p);
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
        const Sampled found = on_gpu(logits, {{.temperature = 0}, {}}, {.likeliest = count});
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

// 17 rows share the blocks otherwise than 3 do, and 300 are more than one launch takes.
TEST_F(SampleOnTheGpu, ARowsTokenDoesNotDependOnHowManyRowsThereAre) {
  std::mt19937 random(4);
  for (const int size : small_cases ? std::vector<int>{5000} : std::vector<int>{1500, 20000}) {
    const std::vector<float> logits = random_floats(random, static_cast<std::size_t>(size), 3.0f);
    for (const int rows : small_cases ? std::vector<int>{3, 40} : std::vector<int>{1, 17, 40, 90, 300}) {
      std::vector<SampleCudaParams> params;
      for (int row = 0; row < rows; ++row) {
        params.push_back({.top_k = row % 3 == 0   ? 20
                                   : row % 3 == 1 ? 700
                                                  : 0,
                          .top_p = row % 2 == 0 ? 1.0f : 0.7f,
                          .position = static_cast<std::uint32_t>(row)});
      }
      const Sampled found = on_gpu(logits, params, {.likeliest = 3});
      for (std::size_t row = 0; row < params.size(); ++row)
        ASSERT_EQ(found.tokens[row].token, on_cpu(logits, params[row])) << rows << " rows, row " << row;
    }
  }
}

TEST_F(SampleOnTheGpu, ARowsTokenDoesNotDependOnTheBlocksThatShareIt) {
  std::mt19937 random(6);
  const std::vector<float> logits = random_floats(random, small_cases ? 17000 : 201088, 3.0f);
  const std::vector<SampleCudaParams> params = {
      {.temperature = 0}, {.seed = 1}, {.top_k = 700, .top_p = 0.7f, .seed = 2}, {.top_p = 0.9f, .seed = 3}};
  for (int blocks = sample_cuda_cluster(); blocks >= 1; blocks /= 2) {
    const Sampled found = on_gpu(logits, params, {.likeliest = 3, .most_row_blocks = blocks});
    for (std::size_t row = 0; row < params.size(); ++row)
      ASSERT_EQ(found.tokens[row].token, on_cpu(logits, params[row])) << blocks << " blocks, row " << row;
  }
}

#ifdef NIBBLE_GPU_EMULATION
TEST_F(SampleOnTheGpu, TakesNoLargerClusterThanTheDeviceRuns) {
  for (unsigned largest : {16u, 8u, 4u, 1u}) {
    emulation::largest_cluster = largest;
    EXPECT_EQ(sample_cuda_cluster(), static_cast<int>(largest));
  }
  emulation::largest_cluster = 16;
}
#endif

TEST_F(SampleOnTheGpu, ChoosesFromChangedLogitsAndReportsTheOriginals) {
  std::mt19937 random(5);
  for (const int size : small_cases ? std::vector<int>{40, 2500} : std::vector<int>{40, 2500, 201088}) {
    const std::vector<float> logits = random_floats(random, static_cast<std::size_t>(size), 3.0f);
    std::vector<float> changed = random_floats(random, static_cast<std::size_t>(size), 3.0f);
    changed[7] = -1e30f;
    const RowStatistics statistics = row_statistics(logits);
    std::vector<SampleCudaParams> params;
    Asked asked{.likeliest = 9, .changed = &changed};
    for (const float temperature : {0.0f, 1.0f, 0.7f}) {
      for (const int top_k : {0, 6, 500}) {
        for (const float top_p : {1.0f, 0.8f}) {
          for (int twice = 0; twice < 2; ++twice) {  // one row is changed
            params.push_back({.temperature = temperature,
                              .top_k = top_k,
                              .top_p = top_p,
                              .seed = 9,
                              .position = static_cast<std::uint32_t>(params.size())});
            asked.targets.push_back(twice == 0 ? -1 : static_cast<std::int32_t>(params.size()));
          }
        }
      }
    }
    const Sampled found = on_gpu(logits, params, asked);
    std::vector<TokenId> listed;
    likeliest(logits, 9, listed);
    for (std::size_t row = 0; row < params.size(); ++row) {
      const TokenId token = on_cpu(is_changed(row) ? changed : logits, params[row]);
      ASSERT_EQ(found.tokens[row].token, token) << size << " tokens, row " << row;
      ASSERT_EQ(found.tokens[row].logprob, logprob(logits, statistics, token));
      for (std::size_t i = 0; i < 9; ++i) {
        ASSERT_EQ(found.ids[row * 9 + i], listed[i]) << size << " tokens, row " << row;
        ASSERT_EQ(found.logprobs[row * 9 + i], logprob(logits, statistics, listed[i]));
      }
      if (asked.targets[row] >= 0) {
        ASSERT_EQ(found.target_logprobs[row], logprob(logits, statistics, asked.targets[row]));
      } else {
        ASSERT_EQ(std::memcmp(&found.target_logprobs[row], "\xee\xee\xee\xee", 4), 0);
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
