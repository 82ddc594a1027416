#include "ops/cuda/emulation/races.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/cuda/emulation/emulation.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup.cuh"

namespace nibble {
namespace {

using emulation::run;

// Fails whatever test of this program ran kernels that race.
class NoRaces : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    for (const std::string& race : emulation::take_races()) ADD_FAILURE() << race;
  }
};
[[maybe_unused]] const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new NoRaces);
  return true;
}();

// A kernel that keeps its accesses in order, or leaves out one thing that does.
struct Case {
  const char* name;
  void (*kernel)(bool in_order);
  unsigned threads = 64, blocks = 1;
};

template <class T>
T touch(const T& word) {
  return static_cast<const volatile T&>(word);
}

int* shared_ints() { return reinterpret_cast<int*>(ptx::dynamic_shared()); }

alignas(16) const std::uint8_t source[1024] = {};
alignas(16) std::uint8_t target[1024];

// Threads 0 and 1 of the second warp hand places back to thread 0 for the next copy.
void overwrite(bool in_order) {
  __shared__ std::uint64_t full, empty;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init(&empty, 1);
  }
  __syncthreads();
  for (unsigned round = 0; round < 3; ++round) {
    if (threadIdx.x == 0) {
      if (round > 0) ptx::mbarrier_wait(&empty, (round - 1) & 1);
      ptx::mbarrier_arrive_expecting(&full, 64);
      ptx::bulk_copy_to_shared(ptx::dynamic_shared(), source, 64, &full);
    } else if (threadIdx.x >= 32) {
      ptx::mbarrier_wait(&full, round & 1);
      touch(shared_ints()[threadIdx.x % 16]);
      if (in_order) __syncwarp();
      if (threadIdx.x == 32) ptx::mbarrier_arrive(&empty);
    }
  }
}

const Case cases[] = {
    {"BlockBarrier",
     [](bool in_order) {
       __shared__ int words[64];
       words[threadIdx.x] = 1;
       if (in_order) __syncthreads();
       touch(words[63 - threadIdx.x]);
     }},
    {"NamedBarrierOfSome",
     [](bool in_order) {
       if (threadIdx.x < 32) {
         if (in_order) shared_ints()[threadIdx.x] = 1;
         ptx::named_barrier_arrive(1, 64);
         if (!in_order) shared_ints()[threadIdx.x] = 1;
       } else {
         ptx::named_barrier(1, 64);
         touch(shared_ints()[threadIdx.x - 32]);
       }
     }},
    {"WarpBarrierNotAShuffle",
     [](bool in_order) {
       shared_ints()[threadIdx.x] = 1;
       in_order ? __syncwarp() : static_cast<void>(__shfl_sync(~0u, 1, 0));
       touch(shared_ints()[31 - threadIdx.x]);
     },
     32},
    {"OneFlagForTwoReaders",
     [](bool in_order) {
       for (unsigned round = 0; round < 2; ++round) {
         if (threadIdx.x == 0) *shared_ints() = 1;
         __syncthreads();
         touch(*shared_ints());
         if (in_order) __syncthreads();
       }
     }},
    {"AtomicsAmongThemselves",
     [](bool in_order) {
       if (threadIdx.x == 0) *shared_ints() = 0;
       __syncthreads();
       in_order || threadIdx.x > 0 ? static_cast<void>(atomicAdd(shared_ints(), 1))
                                   : static_cast<void>(touch(*shared_ints()));
     }},
    {"BytesBesideEachOther",
     [](bool in_order) { ptx::dynamic_shared()[in_order ? threadIdx.x : threadIdx.x / 2] = 1; }},
    {"CopyThatIsWaitedFor",
     [](bool in_order) {
       __shared__ std::uint64_t full;
       if (threadIdx.x == 0) {
         ptx::mbarrier_init(&full, 1);
         ptx::mbarrier_arrive_expecting(&full, 64);
         ptx::bulk_copy_to_shared(ptx::dynamic_shared(), source, 64, &full);
       }
       __syncthreads();
       if (in_order || threadIdx.x == 0) ptx::mbarrier_wait(&full, 0);
       touch(shared_ints()[threadIdx.x % 16]);
     }},
    {"CopyOverWhatWasRead", overwrite},
    {"BarrierThatIsReady",
     [](bool in_order) {
       __shared__ std::uint64_t full;
       if (threadIdx.x == 0) ptx::mbarrier_init(&full, 32);
       in_order ? __syncwarp() : static_cast<void>(__shfl_sync(~0u, 1, 0));
       ptx::mbarrier_arrive(&full);
       ptx::mbarrier_wait(&full, 0);
     },
     32},
    {"CopyByAThread",
     [](bool in_order) {
       ptx::copy_to_shared(shared_ints() + 4 * threadIdx.x, source);
       if (in_order) ptx::await_copies_to_shared();
       __syncthreads();
       touch(shared_ints()[63 - threadIdx.x]);
     }},
    {"CopyByAThreadThatABarrierCounts",
     [](bool in_order) {
       __shared__ std::uint64_t full;
       if (threadIdx.x == 0) ptx::mbarrier_init(&full, 64);
       __syncthreads();
       ptx::copy_to_shared(shared_ints() + 4 * threadIdx.x, source);
       in_order ? ptx::mbarrier_arrive_after_copies(&full) : ptx::mbarrier_arrive(&full);
       ptx::mbarrier_wait(&full, 0);
       touch(shared_ints()[63 - threadIdx.x]);
     }},
    {"CopyToGlobalBehindAFence",
     [](bool in_order) {
       shared_ints()[threadIdx.x] = 1;
       if (in_order) ptx::fence_shared_writes();
       __syncthreads();
       if (threadIdx.x == 0) ptx::bulk_copy_to_global(target, ptx::dynamic_shared(), 256);
       ptx::await_bulk_reads();
     }},
    {"WriteOverWhatIsCopiedToGlobal",
     [](bool in_order) {
       if (threadIdx.x == 0) {
         ptx::bulk_copy_to_global(target, ptx::dynamic_shared(), 256);
         if (in_order) ptx::await_bulk_reads();
       }
       __syncthreads();
       shared_ints()[threadIdx.x] = 1;
     }},
    {"ProductThatIsWaitedFor",
     [](bool in_order) {
       float sums[4] = {};
       const std::uint64_t operand = ptx::wgmma_operand<256>(ptx::dynamic_shared());
       ptx::wgmma_bf16(sums, operand, operand, false);
       ptx::wgmma_commit();
       if (in_order) ptx::wgmma_wait(sums);
       __syncthreads();
       shared_ints()[threadIdx.x] = 1;
     },
     128},
    {"ProductBehindAFence",
     [](bool in_order) {
       for (unsigned i = threadIdx.x; i < 512; i += 128) shared_ints()[i] = 0;
       if (in_order) ptx::fence_shared_writes();
       __syncthreads();
       float sums[4] = {};
       const std::uint64_t operand = ptx::wgmma_operand<256>(ptx::dynamic_shared());
       ptx::wgmma_bf16(sums, operand, operand, false);
       ptx::wgmma_commit();
       ptx::wgmma_wait(sums);
     },
     128},
    {"CopyFromAnotherBlock",
     [](bool in_order) {
       __shared__ std::uint64_t full, empty;
       const int rank = ptx::cluster_rank();
       if (threadIdx.x == 0) {
         ptx::mbarrier_init(&full, 1);
         ptx::mbarrier_init(&empty, 2);
       }
       ptx::cluster_barrier();
       for (unsigned round = 0; round < 3 && threadIdx.x == 0; ++round) {
         if (rank == 0 && round > 0) ptx::mbarrier_wait(&empty, (round - 1) & 1);
         ptx::mbarrier_arrive_expecting(&full, 64);
         if (rank == 0) ptx::bulk_copy_to_blocks(ptx::dynamic_shared(), source, 64, &full, 3);
         ptx::mbarrier_wait(&full, round & 1);
         if (!in_order) ptx::mbarrier_arrive_at(&empty, 0);
         touch(*shared_ints());
         if (in_order) ptx::mbarrier_arrive_at(&empty, 0);
       }
       ptx::cluster_barrier();
     },
     32, 2},
    // Block 1 asks block 0 for what takes the place of what its other thread has read.
    {"PlaceThatAStoreFromAnotherBlockTakes",
     [](bool in_order) {
       __shared__ std::uint64_t asked, answered;
       float4* const places = reinterpret_cast<float4*>(ptx::dynamic_shared());
       const int rank = ptx::cluster_rank();
       if (threadIdx.x == 0) {
         ptx::mbarrier_init(&asked, 1);
         ptx::mbarrier_init(&answered, 1);
         if (rank == 0) ptx::mbarrier_arrive_expecting(&asked, sizeof(float4));
         if (rank == 1) ptx::mbarrier_arrive_expecting(&answered, sizeof(float4));
       }
       ptx::cluster_barrier();
       if (rank == 1) {
         if (in_order && threadIdx.x == 33) touch(places[1].x);
         __syncthreads();
         if (threadIdx.x == 0) ptx::store_to_block(&places[0], float4{}, &asked, 0);
         if (!in_order && threadIdx.x == 33) touch(places[1].x);
         ptx::mbarrier_wait(&answered, 0);
       } else if (threadIdx.x == 0) {
         ptx::mbarrier_wait(&asked, 0);
         ptx::store_to_block(&places[1], float4{}, &answered, 1);
       }
       ptx::cluster_barrier();
     },
     64, 2},
};

class Races : public testing::TestWithParam<Case> {};

TEST_P(Races, AreFoundWhereNothingOrders) {
  const auto count = [](bool in_order) {
    const Case& tried = GetParam();
    run({.blocks_x = tried.blocks, .threads = tried.threads, .cluster = tried.blocks, .shared_bytes = 2048},
        [&] { tried.kernel(in_order); });
    return emulation::take_races().size();
  };
  EXPECT_EQ(count(true), 0u);
  EXPECT_NE(count(false), 0u);
}

INSTANTIATE_TEST_SUITE_P(, Races, testing::ValuesIn(cases),
                         [](const auto& tried) { return tried.param.name; });

}  // namespace
}  // namespace nibble
