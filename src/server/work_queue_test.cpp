#include "server/work_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <utility>
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

// Destroyed on the thread that lets go of it last.
struct Token {
  std::thread::id& destroyed_on;
  ~Token() { destroyed_on = std::this_thread::get_id(); }
};

TEST(WorkQueue, WhoeverAResultIsForIsLetGoOfOnItsOwnThread) {
  std::thread::id destroyed_on;
  std::promise<std::function<void()>> posted;
  std::promise<void> done;
  WorkQueue queue(1, 3);
  int found = 0;
  {
    const auto token = std::make_shared<Token>(Token{destroyed_on});
    ASSERT_TRUE(queue.add<int>([] { return 7; },
                               [&](std::function<void()> finish) {
                                 posted.set_value(std::move(finish));
                                 done.get_future().wait();  // the queue's thread has what it has for so long
                               },
                               [&found, token](int made) { found = made; }));
  }
  std::function<void()> finish = posted.get_future().get();
  finish();
  finish = nullptr;
  EXPECT_EQ(found, 7);
  EXPECT_EQ(destroyed_on, std::this_thread::get_id());
  done.set_value();
}

}  // namespace
}  // namespace nibble
