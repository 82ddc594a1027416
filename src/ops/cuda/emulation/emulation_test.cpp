#include "ops/cuda/emulation/emulation.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/cuda/emulation/streams.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_map.cuh"
#include "ops/ptx/warpgroup.cuh"

namespace nibble {
namespace {

using emulation::run;

TEST(Emulation, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<int> runs(3 * 2 * 96, 0);
  run({.blocks_x = 3, .blocks_y = 2, .threads = 96},
      [&] { ++runs[(blockIdx.y * 3 + blockIdx.x) * 96 + threadIdx.x]; });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST(Emulation, HandsLanesWhatTheOthersHave) {
  std::vector<int> above(64), first(64);
  std::vector<unsigned> same(64), odd(64);
  run({.threads = 64}, [&] {
    const unsigned thread = threadIdx.x;
    above[thread] = __shfl_up_sync(~0u, static_cast<int>(thread), 2);
    first[thread] = __shfl_sync(~0u, static_cast<int>(thread), 0);
    same[thread] = __match_any_sync(~0u, static_cast<int>(thread % 16));
    odd[thread] = __ballot_sync(~0u, thread % 2 == 1);
  });
  for (unsigned i = 0; i < 64; ++i) {
    EXPECT_EQ(above[i], static_cast<int>(i % 32 < 2 ? i : i - 2));
    EXPECT_EQ(first[i], static_cast<int>(i / 32 * 32));
    EXPECT_EQ(same[i], 0x00010001u << i % 16);
    EXPECT_EQ(odd[i], 0xaaaaaaaau);
  }
}

TEST(Emulation, BringsACopysBytesOnlyBeforeItsBarrierEnds) {
  const std::vector<std::uint8_t> source(64, 7);
  alignas(16) std::uint8_t bytes[64];
  std::copy(source.begin(), source.end(), bytes);
  int before = 0, after = 0;
  run({.threads = 32, .shared_bytes = 64}, [&] {
    __shared__ std::uint64_t barrier;
    if (threadIdx.x != 0) return;
    ptx::mbarrier_init(&barrier, 1);
    ptx::mbarrier_arrive_expecting(&barrier, 64);
    ptx::bulk_copy_to_shared(ptx::dynamic_shared(), bytes, 64, &barrier);
    before = ptx::dynamic_shared()[5];
    ptx::mbarrier_wait(&barrier, 0);
    after = ptx::dynamic_shared()[5];
  });
  EXPECT_NE(before, 7);
  EXPECT_EQ(after, 7);
}

TEST(Emulation, LetsBlocksWaitForOneAnother) {
  unsigned arrived = 0;
  std::vector<unsigned> seen(4);
  run({.blocks_x = 4, .threads = 32}, [&] {
    if (threadIdx.x != 0) return;
    ptx::count_up_release(&arrived);
    while (ptx::load_acquire(&arrived) < 4) {
    }
    seen[blockIdx.x] = arrived;
  });
  EXPECT_EQ(seen, std::vector<unsigned>(4, 4));
}

// As compilers have it: who waits for a cluster of one is at the block's barrier, and lets nobody pass by
// having come to the cluster's alone.
TEST(Emulation, HoldsABlockWithoutAClusterUntilAllOfItWaits) {
  int waiting = 0, early = 0;
  run({.threads = 64}, [&] {
    ptx::cluster_arrive();
    for (unsigned i = 0; i < threadIdx.x; ++i) emulation::poll();
    ++waiting;
    ptx::cluster_wait();
    early += waiting < 64;
  });
  EXPECT_EQ(early, 0);
}

// Each block of a cluster brings one KB to all of its blocks, and has its places given back by all.
TEST(Emulation, BringsACopysBytesToTheBlocksThatItNames) {
  constexpr unsigned blocks = 4, cluster = 2, rounds = 5;
  std::vector<std::uint32_t> source(blocks * rounds * 256 + 4);
  std::iota(source.begin(), source.end(), 0u);
  std::uint32_t* const from = source.data() + (16 - reinterpret_cast<std::uintptr_t>(source.data()) % 16) / 4;
  const std::uint32_t first = *from;
  const ptx::TensorMap map =
      ptx::box_map({.matrix = from, .block_bytes = 1024, .blocks = 1, .rows = blocks * rounds});
  std::vector<std::vector<std::uint32_t>> seen(blocks);
  run({.blocks_x = blocks, .threads = 32, .cluster = cluster, .shared_bytes = cluster * 1024}, [&] {
    __shared__ std::uint64_t full, empty;
    const int rank = ptx::cluster_rank();
    auto* const shared = reinterpret_cast<std::uint32_t*>(ptx::dynamic_shared());
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(&full, 1);
      ptx::mbarrier_init(&empty, cluster);
    }
    ptx::cluster_barrier();
    for (unsigned round = 0; round < rounds; ++round) {
      if (threadIdx.x != 0) continue;
      if (round > 0) ptx::mbarrier_wait(&empty, (round - 1) & 1);
      const int row = static_cast<int>(round * blocks + blockIdx.x);
      if (rank == 0) {
        ptx::bulk_copy_to_blocks(shared + rank * 256, from + row * 256, 1024, &full, 3);
      } else {
        ptx::box_copy_to_blocks(shared + rank * 256, map, 0, row, &full, 3);
      }
      ptx::mbarrier_arrive_expecting(&full, cluster * 1024);
      ptx::mbarrier_wait(&full, round & 1);
      seen[blockIdx.x].insert(seen[blockIdx.x].end(), shared, shared + cluster * 256);
      for (unsigned to = 0; to < cluster; ++to) ptx::mbarrier_arrive_at(&empty, static_cast<int>(to));
    }
    ptx::cluster_barrier();
  });
  for (unsigned block = 0; block < blocks; ++block) {
    ASSERT_EQ(seen[block].size(), rounds * cluster * 256);
    for (unsigned i = 0; i < seen[block].size(); ++i) {
      const unsigned row = i / (cluster * 256) * blocks + block / cluster * cluster + i / 256 % cluster;
      ASSERT_EQ(seen[block][i], first + row * 256 + i % 256) << "block " << block << ", word " << i;
    }
  }
}

TEST(Emulation, HoldsSumsBackUntilTheirProductsAreWaitedFor) {
  std::vector<float> early(128), late(128), second(128);
  run({.threads = 128, .shared_bytes = 2048}, [&] {
    const unsigned thread = threadIdx.x;
    auto* const words = reinterpret_cast<std::uint32_t*>(ptx::dynamic_shared());
    for (unsigned i = thread; i < 512; i += 128) words[i] = 0x3f803f80u;  // ones
    __syncthreads();
    const std::uint64_t operand = ptx::wgmma_operand<256>(words);
    float sums[4] = {}, others[4] = {};
    for (int step = 0; step < 2; ++step) ptx::wgmma_bf16(sums, operand, operand, step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_bf16(others, operand, operand, false);
    ptx::wgmma_commit();
    early[thread] = sums[0];
    ptx::wgmma_wait_but_last();
    late[thread] = sums[0];
    second[thread] = others[0];
    ptx::wgmma_wait(others);
  });
  for (unsigned thread = 0; thread < 128; ++thread) {
    EXPECT_TRUE(std::isnan(early[thread]));
    EXPECT_EQ(late[thread], 32);
    EXPECT_TRUE(std::isnan(second[thread]));
  }
}

// Each launch adds one to what the launch ahead left; a thread that does not wait finds what was there
// before.
TEST(Emulation, BeginsALaunchBesideTheOneAheadOfIt) {
  constexpr unsigned blocks = 20;
  for (const bool waits : {true, false}) {
    std::vector<int> values(3 * blocks, 0);
    for (unsigned launch = 0; launch < 2; ++launch) {
      run({.blocks_x = blocks, .threads = 32, .overlaps = true},
          [waits, launch, from = &values[launch * blocks]] {
            if (waits || launch == 0 || threadIdx.x != 0) ptx::grid_dependency_wait();
            if (threadIdx.x == 0) from[blocks + blockIdx.x] = from[blockIdx.x] + 1;
          });
    }
    emulation::finish_launches();
    EXPECT_EQ(values[blocks], 1);
    EXPECT_EQ(values[2 * blocks], waits ? 2 : 1) << "the first block begins early";
    EXPECT_EQ(values[3 * blocks - 1], 2);
  }
}

// What is queued behind an event may wait for a device that nobody runs until this wait has ended.
TEST(Emulation, AStreamOfSeveralDevicesRunsNoFurtherThanItIsWaitedFor) {
  for (const int devices : {1, 2}) {
    emulation::device_count = devices;
    emulation::Stream stream;
    int far = 0;
    for (int wait = 0; wait < 64; ++wait) {
      int done = 0;
      stream.queue([&] { ++done; });
      const std::uint64_t event = stream.queued();
      stream.queue([&] { ++done; });
      stream.wait_for(event);
      EXPECT_GE(done, 1);
      far += done - 1;
      stream.wait();
    }
    EXPECT_EQ(far > 0, devices == 1) << far << " of 64 waits went further";
  }
  emulation::device_count = 1;
}

TEST(EmulationDeathTest, StopsAKernelThatBreaksTheRules) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run({.threads = 32},
                   [] {
                     __shared__ std::uint64_t barrier;
                     ptx::mbarrier_init(&barrier, 1);
                     ptx::mbarrier_arrive_expecting(&barrier, 16);
                     ptx::mbarrier_arrive(&barrier);
                   }),
               "more arrivals than a barrier expects");
  EXPECT_DEATH(run({.threads = 32, .shared_bytes = 32},
                   [] {
                     alignas(16) static const std::uint8_t source[64] = {};
                     __shared__ std::uint64_t barrier;
                     ptx::mbarrier_init(&barrier, 1);
                     ptx::bulk_copy_to_shared(ptx::dynamic_shared(), source, 48, &barrier);
                   }),
               "past shared memory");
  EXPECT_DEATH(run({.threads = 32, .shared_bytes = 32}, [] { __ldcg(ptx::dynamic_shared() + 8); }),
               "global memory that is shared");
  EXPECT_DEATH(run({.blocks_x = 2, .threads = 32, .cluster = 2},
                   [] {
                     __shared__ std::uint64_t barrier;
                     ptx::mbarrier_init(&barrier, 64);
                     ptx::cluster_barrier();
                     while (ptx::cluster_rank() == 0) {  // the other block does not wait for this one
                       ptx::mbarrier_arrive_at(&barrier, 1);
                       emulation::poll();
                     }
                   }),
               "a block that does not run|more arrivals");
  EXPECT_DEATH(
      {
        run({.threads = 32, .overlaps = true}, [] {});
        emulation::finish_launches();
      },
      "a launch that has not waited");
}

TEST(EmulationDeathTest, NamesWhatAKernelGaveUpWaitingFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  static unsigned arrived = 0;
  EXPECT_DEATH(
      {
        ptx::give_up_polls = 1000;
        run({.blocks_x = 1, .threads = 1}, [] {
          ptx::count_up_release(&arrived);  // the second block never comes
          ptx::await_count(&arrived, 2, nullptr, Stuck::expert_grid);
        });
      },
      "gave up waiting for the other blocks of the experts' decode kernel");
}

TEST(EmulationDeathTest, NamesARingThatIsNeverLeft) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ptx::give_up_polls = 1000;
        run({.blocks_x = 1, .threads = 1}, [] {
          __shared__ std::uint64_t empty;
          ptx::mbarrier_init(&empty, 1);
          ptx::await_room(&empty, 1, nullptr, Stuck::dense_ring);  // nobody has filled it yet
          ptx::await_room(&empty, 0, nullptr, Stuck::dense_ring);
        });
      },
      "gave up waiting for room in the ring of a dense product");
}

}  // namespace
}  // namespace nibble
