// On two GPUs or more, or on emulated ones: sums over ranks and their norm against those of one.
#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "ops/all_reduce_norm/cuda/all_reduce_norm_device_test_util.h"

namespace nibble {
namespace {

using namespace sums;

enum class Push { by_norm, ahead };

void expect_as_one_gpu(const PeerWorkspace& workspace, int ranks, const SumShape& shape,
                       const Variant& variant, Algorithm algorithm, Push push) {
  SCOPED_TRACE(std::string(variant.name) + ", " + algorithm_name(algorithm) + ", " + std::to_string(ranks) +
               " ranks, " + std::to_string(shape.rows) + " rows of " + std::to_string(shape.hidden));
  const Case c = case_of(static_cast<unsigned>(shape.rows * 7 + ranks), ranks, shape, variant);
  const int stride = shape.hidden + 8;
  const Answer expected = of_one_gpu(c, shape, stride);
  on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
    DeviceBuffer parts = on_device(c.parts[static_cast<std::size_t>(rank)]), residual = on_device(c.residual);
    DeviceBuffer weight = on_device(c.weight);
    DeviceBuffer out = device_bytes(expected.out.size() * 2, 0xff),
                 tiles = device_bytes(expected.tiles.size(), 0xff);
    const PeerGroup& group = workspace.member(rank);
    Status pushed;
    if (push == Push::ahead) pushed = push_parts_cuda(group, parts.as<float>(), shape.rows, stream);
    EXPECT_TRUE(pushed.ok());
    const Status status = all_reduce_norm_cuda(
        group,
        {.parts = push == Push::ahead ? nullptr : parts.as<float>(),
         .residual = variant.residual ? residual.as<float>() : nullptr,
         .weight = variant.norm ? weight.as<Bf16>() : nullptr,
         .weight_less_one = variant.less_one,
         .residual_at_owner = variant.at_owner,
         .out = variant.norm ? Bf16Rows{out.as<Bf16>(), stride, tiles.as<std::uint8_t>()} : Bf16Rows{},
         .rows = shape.rows,
         .hidden = shape.hidden,
         .eps = 1e-5f,
         .algorithm = algorithm},
        stream);
    EXPECT_TRUE(status.ok()) << status.message();
    cuda_check(cudaStreamSynchronize(stream));
    EXPECT_EQ(workspace.failure(rank).message(), "");
    Answer found = expected;
    residual.copy_to(std::span(found.residual));
    out.copy_to(std::span(found.out));
    tiles.copy_to(std::span(found.tiles));
    if (variant.norm) {
      EXPECT_TRUE(same(found.out, expected.out)) << "rank " << rank;
      EXPECT_TRUE(same(found.tiles, expected.tiles)) << "rank " << rank;
    }
    const std::size_t hidden = static_cast<std::size_t>(shape.hidden);
    for (int row = 0; row < shape.rows && variant.residual; ++row) {
      const bool written =
          !variant.at_owner || algorithm == Algorithm::one_shot || owner_of_row(row, ranks) == rank;
      const std::vector<float>& right = written ? expected.residual : c.residual;
      const std::size_t at = static_cast<std::size_t>(row) * hidden;
      EXPECT_EQ(std::memcmp(found.residual.data() + at, right.data() + at, hidden * 4), 0)
          << "rank " << rank << ", row " << row;
    }
  });
}

TEST_F(AllReduceNormOnGpus, GivesTheBitsOfOneGpuInEveryVariantAndSize) {
  std::vector<SumShape> shapes = {{1, 2880}, {3, 72}, {2, 4104}};
  if (!small_cases)
    shapes.insert(shapes.end(), {{8, 2880},
                                 {17, 2880},
                                 {40, 2880},
                                 {128, 2880},
                                 {300, 2880},
                                 {5, 8},
                                 {512, 2880},
                                 {300, 4104},
                                 {33, 12256}});
  for (const int ranks : group_sizes()) {
    for (const SumShape& shape : shapes) {
      const auto workspace = workspace_of(first_ranks(ranks), shape.rows, shape.hidden);
      for (const Variant& variant : variants) {
        for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
          expect_as_one_gpu(*workspace, ranks, shape, variant, algorithm, Push::by_norm);
        expect_as_one_gpu(*workspace, ranks, shape, variant, Algorithm::one_shot, Push::ahead);
      }
    }
  }
}

// By pairs of blocks, of which some have one row and some two.
TEST_F(AllReduceNormOnGpus, PairsOfBlocksTakeSeveralRowsEach) {
  const SumShape shape{136, 128};
  const auto workspace = workspace_of(first_ranks(2), shape.rows, shape.hidden);
  for (const Variant& variant : variants)
    expect_as_one_gpu(*workspace, 2, shape, variant, Algorithm::two_shot, Push::by_norm);
  expect_as_one_gpu(*workspace, 2, {104, 128}, variants[0], Algorithm::one_shot, Push::by_norm);
}

// More rows than a launch takes: in several.
TEST_F(AllReduceNormOnGpus, CutsWhatExceedsAWindow) {
  const SumShape shape{small_cases ? 7 : 8192, small_cases ? 64 : 2880};
  const int ranks = group_sizes().back();
  const auto workspace = workspace_of(first_ranks(ranks), small_cases ? 3 : 512, shape.hidden);
  const Case c = case_of(3, ranks, shape, variants[0]);
  const Answer expected = of_one_gpu(c, shape, shape.hidden);
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
    on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
      DeviceBuffer parts = on_device(c.parts[static_cast<std::size_t>(rank)]),
                   residual = on_device(c.residual);
      DeviceBuffer weight = on_device(c.weight), out = device_bytes(shape.count() * 2, 0xff);
      EXPECT_TRUE(all_reduce_norm_cuda(workspace->member(rank),
                                       {.parts = parts.as<float>(),
                                        .residual = residual.as<float>(),
                                        .weight = weight.as<Bf16>(),
                                        .out = Bf16Rows{out.as<Bf16>(), shape.hidden},
                                        .rows = shape.rows,
                                        .hidden = shape.hidden,
                                        .eps = 1e-5f,
                                        .algorithm = algorithm},
                                       stream)
                      .ok());
      cuda_check(cudaStreamSynchronize(stream));
      std::vector<float> found(shape.count());
      std::vector<Bf16> normed(shape.count());
      residual.copy_to(std::span(found));
      out.copy_to(std::span(normed));
      EXPECT_TRUE(same(found, expected.residual));
      EXPECT_TRUE(same(normed, expected.out));
    });
  }
}

TEST_F(AllReduceNormOnGpus, TakesNanInfinityAndMinusZeroForData) {
  const SumShape shape{2, 64};
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const auto workspace = workspace_of(first_ranks(2), shape.rows, shape.hidden);
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
    on_each_gpu(first_ranks(2), [&](int rank, cudaStream_t stream) {
      std::vector<float> values(shape.count(), -0.0f);
      values[0] = rank == 0 ? nan : 1;
      values[1] = rank == 0 ? infinity : -infinity;
      values[2] = infinity;
      DeviceBuffer parts = on_device(values), residual = on_device(std::vector<float>(shape.count(), -0.0f));
      DeviceBuffer weight = on_device(std::vector<Bf16>(64, Bf16::from_float(1)));
      DeviceBuffer out = device_bytes(shape.count() * 2, 0);
      EXPECT_TRUE(all_reduce_norm_cuda(workspace->member(rank),
                                       {.parts = parts.as<float>(),
                                        .residual = residual.as<float>(),
                                        .weight = weight.as<Bf16>(),
                                        .residual_at_owner = algorithm == Algorithm::two_shot,
                                        .out = Bf16Rows{out.as<Bf16>(), shape.hidden},
                                        .rows = shape.rows,
                                        .hidden = shape.hidden,
                                        .eps = 1e-5f,
                                        .algorithm = algorithm},
                                       stream)
                      .ok());
      cuda_check(cudaStreamSynchronize(stream));
      std::vector<float> found(shape.count());
      std::vector<Bf16> normed(shape.count());
      residual.copy_to(std::span(found));
      out.copy_to(std::span(normed));
      EXPECT_TRUE(std::isnan(normed[0].to_float()));
      EXPECT_EQ(normed[64].to_float(), 0.0f) << "the row of zeros";
      if (algorithm == Algorithm::two_shot && rank != owner_of_row(0, 2)) return;
      EXPECT_TRUE(std::isnan(found[0]));
      EXPECT_TRUE(std::isnan(found[1]));
      EXPECT_EQ(found[2], infinity);
      EXPECT_FALSE(std::signbit(found[3]));
    });
  }
}

// Calls without a pause, of changing size, algorithm and group, eager and in replayed graphs; residuals
// gather every sum, so one that came late, twice or in other bits is seen at the end.
struct Stress {
  static constexpr int most_rows = 40, most_calls = 50;
  const int hidden;
  const int calls = small_cases ? 24 : most_calls;
  struct Call {
    int rows;
    Algorithm algorithm;
    bool ahead;
    std::size_t group, first;  // of the parts
  };

  std::vector<Group> groups;  // every rank is in some of them
  std::vector<std::unique_ptr<PeerWorkspace>> workspaces;
  std::vector<Call> list;
  std::vector<std::vector<float>> parts;                                            // of each rank
  const std::size_t residual_count = static_cast<std::size_t>(most_rows * hidden);  // of a group
  const std::size_t parts_count = static_cast<std::size_t>((most_rows + most_calls) * hidden);

  Stress(std::vector<Group> of, int ranks, unsigned seed, int columns = 64)
      : hidden(columns), groups(std::move(of)) {
    for (const Group& group : groups) workspaces.push_back(workspace_of(group, most_rows, hidden));
    std::mt19937 random(seed);
    for (int i = 0; i < calls; ++i) {
      const Algorithm algorithm = random() % 2 == 0 ? Algorithm::one_shot : Algorithm::two_shot;
      const int most = small_cases ? 3 : most_rows;
      list.push_back({.rows = 1 + static_cast<int>(random() % static_cast<unsigned>(most)),
                      .algorithm = algorithm,
                      .ahead = algorithm == Algorithm::one_shot && random() % 3 == 0,
                      .group = random() % groups.size(),
                      .first = static_cast<std::size_t>(i * hidden)});
    }
    for (int i = 0; i < ranks; ++i) {
      std::mt19937 values(seed * 8 + static_cast<unsigned>(i));
      parts.emplace_back(parts_count);
      // Small whole numbers: their sums are exact, so the order over calls does not matter.
      for (float& part : parts.back()) part = static_cast<float>(static_cast<int>(values() % 9) - 4);
    }
  }

  void queue(int rank, const float* own_parts, float* residual, cudaStream_t stream) const {
    for (const Call& call : list) {
      const int member = groups[call.group].member_of(rank);
      if (member < 0) continue;
      const PeerGroup& group = workspaces[call.group]->member(member);
      const float* const from = own_parts + call.first;
      if (call.ahead) NIBBLE_CHECK(push_parts_cuda(group, from, call.rows, stream).ok());
      const Status status = all_reduce_norm_cuda(group,
                                                 {.parts = call.ahead ? nullptr : from,
                                                  .residual = residual + call.group * residual_count,
                                                  .rows = call.rows,
                                                  .hidden = hidden,
                                                  .algorithm = call.algorithm},
                                                 stream);
      NIBBLE_CHECK(status.ok(), status.message());
    }
  }

  std::vector<float> expected(int rank, int times) const {
    std::vector<float> residual(groups.size() * residual_count);
    for (const Call& call : list) {
      if (groups[call.group].member_of(rank) < 0) continue;
      for (std::size_t at = 0; at < static_cast<std::size_t>(call.rows * hidden); ++at) {
        for (const int other : groups[call.group].members)
          residual[call.group * residual_count + at] +=
              static_cast<float>(times) * parts[static_cast<std::size_t>(other)][call.first + at];
      }
    }
    return residual;
  }

  // `times`: the list, once eager, then as a graph.
  void run(int ranks, int times) const {
    on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
      DeviceBuffer own_parts = on_device(parts[static_cast<std::size_t>(rank)]);
      DeviceBuffer residual = on_device(std::vector<float>(groups.size() * residual_count));
      queue(rank, own_parts.as<float>(), residual.as<float>(), stream);
      cuda_check(cudaStreamSynchronize(stream));
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      queue(rank, own_parts.as<float>(), residual.as<float>(), stream);
      cuda_check(cudaStreamEndCapture(stream, &graph));
      cuda_check(cudaGraphInstantiate(&exec, graph, 0));
      for (int i = 1; i < times; ++i) {
        cuda_check(cudaGraphLaunch(exec, stream));
        if (i % 16 == 0) cuda_check(cudaStreamSynchronize(stream));
      }
      cuda_check(cudaStreamSynchronize(stream));
      cuda_check(cudaGraphExecDestroy(exec));
      cuda_check(cudaGraphDestroy(graph));
      std::vector<float> found(groups.size() * residual_count);
      residual.copy_to(std::span(found));
      EXPECT_TRUE(same(found, expected(rank, times))) << "rank " << rank;
      for (std::size_t i = 0; i < groups.size(); ++i) {
        const int member = groups[i].member_of(rank);
        if (member >= 0) {
          EXPECT_EQ(workspaces[i]->failure(member).message(), "");
        }
      }
    });
  }
};

TEST_F(AllReduceNormOnGpus, StandsManyCallsOfChangingSizeAndAlgorithm) {
  for (const int ranks : group_sizes()) {
    // 50 calls each; the sums stay below 2^24.
    for (unsigned seed = 1; seed <= (small_cases ? 1u : 10u); ++seed) {
#ifdef NIBBLE_GPU_EMULATION
      emulation::schedule_seed = seed;
#endif
      Stress({first_ranks(ranks)}, ranks, seed).run(ranks, small_cases ? 2 : 2000);
    }
    // Rows too wide for clusters.
    Stress({first_ranks(ranks)}, ranks, 99, 4104).run(ranks, small_cases ? 1 : 200);
  }
}

TEST_F(AllReduceNormOnGpus, KeepsGroupsOfOneWorldApart) {
  if (devices_ < 4) GTEST_SKIP() << "needs four GPUs";
  std::vector<Group> groups = {first_ranks(4)};
  for (const GroupShape shape : {GroupShape::neighbours, GroupShape::strided}) {
    const std::vector<Group> pairs = groups_of_world(4, 2, shape).value();
    groups.insert(groups.end(), pairs.begin(), pairs.end());
  }
  for (unsigned seed = 1; seed <= (small_cases ? 1u : 5u); ++seed)
    Stress(groups, 4, seed).run(4, small_cases ? 2 : 2000);
}

TEST_F(AllReduceNormOnGpus, DrainsAGraphWhenARankDoesNotComeAndSaysWho) {
  const int ranks = group_sizes().back();
  const Group group = first_ranks(ranks);
  const SumShape shape{2, 64};
  const auto workspace = workspace_of(group, shape.rows, shape.hidden, std::chrono::milliseconds(300));
  const auto queue = [&](int rank, int calls, const std::vector<float>& values, cudaStream_t stream) {
    DeviceBuffer parts = on_device(values), residual = on_device(std::vector<float>(shape.count()));
    for (int i = 0; i < calls; ++i) {
      EXPECT_TRUE(all_reduce_norm_cuda(workspace->member(rank),
                                       {.parts = parts.as<float>(),
                                        .residual = residual.as<float>(),
                                        .rows = shape.rows,
                                        .hidden = shape.hidden,
                                        .algorithm = i % 2 == 0 ? Algorithm::one_shot : Algorithm::two_shot},
                                       stream)
                      .ok());
    }
    cuda_check(cudaStreamSynchronize(stream));
    std::vector<float> found(shape.count());
    residual.copy_to(std::span(found));
    return found;
  };
  const auto begin = std::chrono::steady_clock::now();
  on_each_gpu(group, [&](int rank, cudaStream_t stream) {
    queue(rank, rank == ranks - 1 ? 1 : 9, std::vector<float>(shape.count(), 1), stream);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            small_cases ? std::chrono::seconds(60) : std::chrono::seconds(2));
  const std::string last = "rank " + std::to_string(ranks - 1);
  EXPECT_TRUE(workspace->failure(ranks - 1).ok());
  // Who waited for a row's owner may go on with what the owner gave up on, and wait in the next call.
  int named = 0;
  for (int rank = 0; rank < ranks - 1; ++rank) {
    const std::string message = workspace->failure(rank).message();
    EXPECT_EQ(message.rfind("rank " + std::to_string(rank) + " waited 300 ms in all_reduce_norm, step ", 0),
              0u)
        << message;
    const bool first = message.find(", step 1 of row ") != std::string::npos;
    named += first && message.find(", for " + last + ", which did not come") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(named, 1);
  workspace->arm();
  on_each_gpu(group, [&](int rank, cudaStream_t stream) {
    const std::vector<float> found = queue(rank, 4, std::vector<float>(shape.count(), 1), stream);
    EXPECT_EQ(found, std::vector<float>(shape.count(), static_cast<float>(4 * ranks)));
    EXPECT_TRUE(workspace->failure(rank).ok());
  });
}

TEST_F(AllReduceNormOnGpus, RefusesWhatItCannotDo) {
  const auto workspace = workspace_of(first_ranks(2), 4, 64);
  const PeerGroup& group = workspace->member(0);
  DeviceBuffer memory = device_bytes(64 * 4 * 8, 0);
  float* const floats = memory.as<float>();
  const auto refused = [&](const AllReduceNormCudaArgs& args) {
    return !all_reduce_norm_cuda(group, args, nullptr).ok();
  };
  EXPECT_TRUE(refused({.parts = floats, .residual = floats, .rows = 1, .hidden = 72}));
  EXPECT_TRUE(refused({.parts = floats, .rows = 1, .hidden = 64}));
  EXPECT_TRUE(refused({.parts = floats, .residual = floats, .rows = 8193, .hidden = 64}));
  EXPECT_TRUE(refused({.residual = floats, .rows = 5, .hidden = 64}));
  EXPECT_TRUE(refused({.residual = floats, .rows = 1, .hidden = 64, .algorithm = Algorithm::two_shot}));
  EXPECT_FALSE(PeerWorkspace::make(first_ranks(2), std::vector{0}, {.most_rows = 1, .hidden = 64}).ok());
  EXPECT_FALSE(PeerWorkspace::make(first_ranks(2), std::vector{0, 1}, {.most_rows = 1, .hidden = 60}).ok());
  EXPECT_FALSE(
      PeerWorkspace::make(Group{{0, 1, 2}}, std::vector{0, 1, 2}, {.most_rows = 1, .hidden = 64}).ok());
}

}  // namespace
}  // namespace nibble
