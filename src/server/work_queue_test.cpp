#include "server/work_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

namespace nibble {
namespace {

TEST(WorkQueue, WhatDoesNotFitIsRefusedAndWhatDoesIsDoneInOrder) {
  std::promise<void> begun, go;
  std::vector<int> done;
  std::promise<void> over;
  WorkQueue queue(1, 3);
  ASSERT_TRUE(queue.add([&, may = go.get_future().share()] {
    begun.set_value();
    may.wait();
  }));
  begun.get_future().wait();  // it runs, and waits no more
  for (const int i : {1, 2}) ASSERT_TRUE(queue.add([&done, i] { done.push_back(i); }));
  ASSERT_TRUE(queue.add([&] { over.set_value(); }));
  EXPECT_FALSE(queue.add([&] { done.push_back(9); }));
  go.set_value();
  over.get_future().wait();
  EXPECT_EQ(done, (std::vector<int>{1, 2}));
  std::promise<void> again;
  while (!queue.add([&] { again.set_value(); })) std::this_thread::yield();
  again.get_future().wait();
}

}  // namespace
}  // namespace nibble
