#include "ops/latent_attention/latent_kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

struct RunShape {
  int queries, positions, rank, rotated;
};

// Scores and sums of a run, and widened vectors, in one row of floats.
std::vector<float> results(const LatentKernels& kernels, const RunShape& run) {
  std::mt19937 random(static_cast<unsigned>(run.queries * 100 + run.positions));
  const int width = run.rank + run.rotated, stride = partial_floats(run.rank), at = 32;
  const auto size = [](int rows, int cols) { return static_cast<std::size_t>(rows * cols); };
  const std::vector<float> q = random_floats(random, size(run.queries, width)),
                           vectors = random_floats(random, size(run.positions, width));
  std::vector<float> scores = random_floats(random, size(run.queries, kv_split)),
                     sums = random_floats(random, size(run.queries, stride));
  std::vector<const float*> query;
  for (int i = 0; i < run.queries; ++i) query.push_back(q.data() + i * width);
  auto* const rows = reinterpret_cast<float(*)[kv_split]>(scores.data());
  kernels.score({.q = query.data(),
                 .queries = run.queries,
                 .vectors = vectors.data(),
                 .positions = run.positions,
                 .width = width,
                 .scale = 0.3f,
                 .scores = rows,
                 .at = at});
  kernels.add({.weights = rows,
               .queries = run.queries,
               .vectors = vectors.data(),
               .positions = run.positions,
               .width = width,
               .rank = run.rank,
               .sums = sums.data(),
               .stride = stride,
               .at = at});
  const std::vector<Bf16> narrow = random_bf16(random, size(run.positions, width));
  std::vector<float> wide(narrow.size());
  kernels.widen(narrow.data(), static_cast<int>(narrow.size()), wide.data());
  std::vector<float> all = scores;
  all.insert(all.end(), sums.begin(), sums.end());
  all.insert(all.end(), wide.begin(), wide.end());
  return all;
}

class LatentKernelsOfThisMachine : public testing::TestWithParam<const LatentKernels*> {};

TEST_P(LatentKernelsOfThisMachine, GiveTheBitsOfTheScalarOnes) {
  if (!GetParam()->supported()) GTEST_SKIP() << "this machine lacks the instructions";
  for (const int queries : {1, 2, 3, 4, 5, 9, 32}) {
    for (const int positions : {1, 2, 3, 4, 7, 16}) {
      for (const auto& [rank, rotated] : {std::pair(16, 16), std::pair(48, 16), std::pair(512, 64)}) {
        const RunShape run{.queries = queries, .positions = positions, .rank = rank, .rotated = rotated};
        const std::vector<float> expected = results(latent_kernels().back(), run),
                                 got = results(*GetParam(), run);
        ASSERT_EQ(std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)), 0)
            << queries << " queries, " << positions << " positions, " << rank << " + " << rotated;
      }
    }
  }
}

std::vector<const LatentKernels*> vector_kernels() {
  std::vector<const LatentKernels*> all;
  for (const LatentKernels& each : latent_kernels().first(latent_kernels().size() - 1)) all.push_back(&each);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, LatentKernelsOfThisMachine, testing::ValuesIn(vector_kernels()),
                         [](const auto& param_info) { return std::string(param_info.param->name); });

}  // namespace
}  // namespace nibble
