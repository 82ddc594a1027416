#include "plan/digest.h"

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <thread>

#include "plan/plan_test_util.h"

namespace nibble {
namespace {

// Ranks as threads: each plans for itself, hands its digest over, and compares once all have.
std::vector<Status> agree(int ranks, const std::function<Plan(int rank)>& plan) {
  std::vector<RankDigest> digests(static_cast<std::size_t>(ranks));
  std::vector<Status> verdicts(static_cast<std::size_t>(ranks));
  std::latch all(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      digests[static_cast<std::size_t>(rank)] = digest_of(plan(rank), rank);
      all.arrive_and_wait();
      verdicts[static_cast<std::size_t>(rank)] = compare_ranks(digests);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return verdicts;
}

Plan planned(const EngineOptions& options, const std::string& nccl = "2.28.9") {
  Machine machine = declared_machine("h200x4").value();
  machine.libraries = {{"nccl", nccl, ""}};
  return resolve(options, machine, small_model()).value();
}

TEST(Ranks, ThatMadeTheSamePlanAgree) {
  for (const Status& verdict : agree(4, [](int) { return planned({.tensor_parallel = 4}); }))
    EXPECT_TRUE(verdict.ok()) << verdict.message();
}

TEST(Ranks, ADifferenceNamesTheRanksAndTheFields) {
  const auto verdicts = agree(4, [](int rank) {
    return planned({.max_num_seqs = rank == 2 ? 64 : 32, .tensor_parallel = 4},
                   rank == 3 ? "2.28.7" : "2.28.9");
  });
  for (const Status& verdict : verdicts) {
    ASSERT_FALSE(verdict.ok());
    EXPECT_NE(verdict.message().find("max_num_seqs is 32 on ranks 0, 1, 3 and 64 on rank 2"),
              std::string::npos)
        << verdict.message();
    EXPECT_NE(verdict.message().find("gate nccl is 2.28.9 (ok) on ranks 0, 1, 2 and 2.28.7 (ok) on rank 3"),
              std::string::npos)
        << verdict.message();
    EXPECT_EQ(verdict.message().find("tp is"), std::string::npos) << "all agree on it";
    EXPECT_EQ(verdict.message(), verdicts[0].message());
  }
}

}  // namespace
}  // namespace nibble
