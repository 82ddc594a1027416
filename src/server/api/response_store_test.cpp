#include "server/api/response_store.h"

#include <gtest/gtest.h>

namespace nibble::api {
namespace {

StoredResponse of(std::size_t bytes) { return {.json = std::string(bytes, 'a')}; }

TEST(ResponseStore, TheOldestGoesForWantOfRoomAndOfTime) {
  ManualClock clock;
  RequestMemory memory(100'000);
  ResponseStore store(memory, 10'000, clock);
  ASSERT_TRUE(store.put("a", of(4000)));
  ASSERT_TRUE(store.put("b", of(4000)));
  ASSERT_TRUE(store.put("c", of(4000)));
  EXPECT_EQ(store.find("a"), nullptr);
  EXPECT_NE(store.find("b"), nullptr);
  clock.advance(ResponseStore::kept_for / 2);
  ASSERT_TRUE(store.put("b", of(100)));  // younger again
  clock.advance(ResponseStore::kept_for / 2);
  EXPECT_EQ(store.find("c"), nullptr);
  EXPECT_NE(store.find("b"), nullptr);
  EXPECT_TRUE(store.erase("b"));
  EXPECT_FALSE(store.erase("b"));
  EXPECT_EQ(memory.held(), 0u);
}

TEST(ResponseStore, WhatItHoldsIsCountedAndGivesWayToItsOwnNewest) {
  ManualClock clock;
  RequestMemory memory(20'000);  // half of it for what stays
  ResponseStore store(memory, 1'000'000, clock);
  auto request = memory.admit(4000);
  ASSERT_TRUE(store.put("a", of(4000)));
  EXPECT_GT(memory.held(), 8000u);
  ASSERT_TRUE(store.put("b", of(4000)));
  EXPECT_EQ(store.find("a"), nullptr);
  EXPECT_FALSE(store.put("c", of(8000)));
  EXPECT_FALSE(store.put("d", of(2'000'000)));
}

}  // namespace
}  // namespace nibble::api
