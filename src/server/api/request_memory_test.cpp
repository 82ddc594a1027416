#include "server/api/request_memory.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

namespace nibble::api {
namespace {

TEST(RequestMemory, HalfIsForRequestsAndAllForReadingThem) {
  RequestMemory memory(100);
  auto first = memory.admit(30), second = memory.admit(20);
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(memory.admit(1));
  EXPECT_TRUE(first->hold_to_read(80));
  EXPECT_FALSE(second->hold_to_read(21));
  EXPECT_EQ(memory.held(), 100u);
  EXPECT_TRUE(first->hold_to_run(5));
  EXPECT_TRUE(memory.admit(25));
  first.reset();
  second.reset();
  EXPECT_EQ(memory.held(), 0u);
}

TEST(RequestMemory, OneAloneIsServedWhateverItHolds) {
  RequestMemory memory(100);
  auto alone = memory.admit(1000);
  ASSERT_TRUE(alone);
  EXPECT_TRUE(alone->hold_to_read(5000));
  EXPECT_FALSE(memory.admit(1));
  EXPECT_TRUE(alone->hold_to_run(10));
  EXPECT_TRUE(memory.admit(40));
}

TEST(RequestMemory, AnAnswerGrowsAndLeavesLessForThoseThatCome) {
  RequestMemory memory(100);
  auto running = memory.admit(10);
  running->grow(60);
  EXPECT_EQ(memory.held(), 70u);
  EXPECT_FALSE(memory.admit(1));
  EXPECT_TRUE(running->hold_to_run(5));  // less is always possible
}

TEST(RequestMemory, NothingIsLostWhateverHappensOnManyThreads) {
  RequestMemory memory(1000);
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&memory, seed] {
      std::mt19937 random(seed);
      std::vector<RequestMemory::Share> shares;
      for (int i = 0; i < 20000; ++i) {
        const std::size_t bytes = random() % 200;
        if (random() % 2 == 0) {
          if (auto share = memory.admit(bytes)) shares.push_back(std::move(*share));
        } else if (!shares.empty()) {
          RequestMemory::Share& one = shares[random() % shares.size()];
          switch (random() % 4) {
            case 0: static_cast<void>(one.hold_to_read(bytes)); break;
            case 1: static_cast<void>(one.hold_to_run(bytes)); break;
            case 2: one.grow(bytes % 7); break;
            default: std::swap(one, shares.back()); shares.pop_back();
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.held(), 0u);
}

}  // namespace
}  // namespace nibble::api
