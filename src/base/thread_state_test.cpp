#include "base/thread_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/thread_name.h"

namespace nibble {
namespace {

TEST(ThreadState, TellsWhoComputesFromWhoSleeps) {
  enum { computes, sleeps, ends };
  std::atomic<int> order = computes;
  std::atomic<pid_t> id = 0;
  std::thread other([&] {
    name_this_thread("odd) R (name");
    id = ::gettid();
    while (order != ends) {
      if (order == sleeps) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  while (id == 0) std::this_thread::yield();
  const std::string_view names[] = {"nobody", "odd) R (name"}, nobody[] = {"nobody"};
  const auto sees = [&](bool works) {
    for (int look = 0; look < 2000; ++look) {
      if (state_of_thread(id).works == works && some_thread_works(names) == works) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  };
  EXPECT_TRUE(sees(true));
  EXPECT_FALSE(some_thread_works(nobody));
  const auto used = state_of_thread(id).cpu;
  for (int look = 0; look < 5000 && state_of_thread(id).cpu < used + std::chrono::milliseconds(100); ++look)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(state_of_thread(id).cpu, used + std::chrono::milliseconds(100)) << "it computes all the time";
  order = sleeps;
  EXPECT_TRUE(sees(false));
  order = ends;
  other.join();
  EXPECT_FALSE(state_of_thread(id).works);
}

}  // namespace
}  // namespace nibble
