#include "runtime/gpu_processes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/process_test_util.h"

namespace nibble {
namespace {

using Call = GpuProcesses::Call;

// So many with a rank each, which know each other.
std::vector<std::unique_ptr<GpuProcesses>> processes_of(int count) {
  std::vector<Result<MetProcesses>> met =
      meet_all(meetings_of(count), std::vector<MeetingTerms>(static_cast<std::size_t>(count)));
  std::vector<std::unique_ptr<GpuProcesses>> processes;
  for (int i = 0; i < count; ++i) {
    processes.push_back(std::make_unique<GpuProcesses>(std::make_unique<ProcessLinks>(
        ProcessPlace{i, count}, count, std::move(met[static_cast<std::size_t>(i)]).value())));
    processes.back()->begin();
  }
  return processes;
}

Batch batch_of(TokenId token) {
  Batch batch;
  batch.tokens = {token};
  batch.sequences = {{.row_count = 1, .logit_count = 1}};
  batch.logit_rows = {{.row = 0}};
  return batch;
}

TEST(GpuProcesses, NoneGoesOnBeforeAllHaveComeAndAllMakeTheCallsOfTheFirst) {
  std::vector<std::unique_ptr<GpuProcesses>> processes = processes_of(4);
  std::atomic<int> come = 0;
  const auto starts = [&](GpuProcesses& own) {
    if (!own.is_first()) std::this_thread::sleep_for(std::chrono::milliseconds(20 * own.first_rank()));
    ++come;
    ASSERT_TRUE(own.meet().ok());
    EXPECT_EQ(come, 4);
    ASSERT_TRUE(own.become_ready().ok());
  };
  std::vector<std::thread> others;
  for (int i = 1; i < 4; ++i) {
    others.emplace_back([&, i] {
      GpuProcesses& own = *processes[static_cast<std::size_t>(i)];
      starts(own);
      std::vector<Call> calls;
      std::vector<TokenId> tokens;
      while (true) {
        const Result<std::optional<Call>> call = own.next();
        ASSERT_TRUE(call.ok()) << call.status().message();
        if (!*call) break;
        calls.push_back(**call);
        if (**call == Call::forward) tokens.push_back(own.batch().tokens[0]);
      }
      EXPECT_EQ(calls, (std::vector<Call>{Call::forward, Call::choose, Call::forward, Call::finish,
                                          Call::choose, Call::finish}));
      EXPECT_EQ(tokens, (std::vector<TokenId>{5, 6}));
    });
  }
  starts(*processes[0]);
  const Batch first = batch_of(5), second = batch_of(6);
  processes[0]->tell(Call::forward, &first);
  processes[0]->tell(Call::choose);
  processes[0]->tell(Call::forward, &second);
  for (const Call call : {Call::finish, Call::choose, Call::finish}) processes[0]->tell(call);
  processes[0]->end();
  for (std::thread& other : others) other.join();
  EXPECT_TRUE(processes[0]->failure().ok());
}

TEST(GpuProcesses, OneThatEndsBeforeAllAreThereIsAFailureOfAll) {
  std::vector<std::unique_ptr<GpuProcesses>> processes = processes_of(3);
  std::thread other([&] { EXPECT_FALSE(processes[2]->meet().ok()); });
  processes[1].reset();
  EXPECT_FALSE(processes[0]->meet().ok());
  other.join();
  EXPECT_NE(processes[0]->failure().message().find("the process of rank 1 has gone"), std::string::npos)
      << processes[0]->failure().message();
}

TEST(GpuProcesses, WhatAStepHasComeToIsThatAProcessHasGoneOrElseItsOwnError) {
  std::vector<std::unique_ptr<GpuProcesses>> processes = processes_of(2);
  const Status own = processes[1]->failed(internal_error("a graph has other bits"));
  EXPECT_EQ(own.message(), "a graph has other bits");
  // It has failed, so it does not end as one that was told to.
  processes[1].reset();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (processes[0]->failure().ok() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  const Status why = processes[0]->failed(internal_error("rank 0 waited 2000 ms for rank 1"));
  EXPECT_NE(why.message().find("the process of rank 1 has gone"), std::string::npos) << why.message();
}

}  // namespace
}  // namespace nibble
