#include "comm/process_links.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <random>

#include "comm/collectives.h"
#include "comm/comm_test_util.h"
#include "comm/process_test_util.h"
#include "comm/world.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;

// All of this process's ranks work, unless a test says otherwise.
struct Sight : PeerWatch {
  PeerSight look(int rank) const override {
    while (wait_in_look && beats > 0) std::this_thread::sleep_for(milliseconds(5));
    return {.rank = rank, .works = works, .beats = ++beats, .cpu = {milliseconds(5)}};
  }
  std::atomic<bool> works = true, wait_in_look = false;
  mutable std::atomic<std::uint64_t> beats = 0;
};

// What a process of a world has; here all of them are in one. It sees its own ranks itself.
struct Process : PeerWatch {
  PeerSight look(int rank) const override { return links->has(rank) ? sight.look(rank) : links->look(rank); }

  World world;
  Sight sight;
  std::unique_ptr<ProcessLinks> links;
  std::vector<Communicator> members;  // of the whole world; those of other processes are not used
};

std::vector<std::unique_ptr<Process>> processes_of(int count, int ranks, std::size_t slot_bytes = 4096,
                                                   milliseconds deadline = milliseconds(20000)) {
  std::vector<std::unique_ptr<Process>> processes;
  std::vector<Result<MetProcesses>> met =
      meet_all(meetings_of(count), std::vector<MeetingTerms>(static_cast<std::size_t>(count)));
  for (int i = 0; i < count; ++i) {
    auto& process = processes.emplace_back(std::make_unique<Process>());
    auto& sockets = met[static_cast<std::size_t>(i)];
    NIBBLE_CHECK(sockets.ok(), sockets.status().message());
    process->links =
        std::make_unique<ProcessLinks>(ProcessPlace{i, count}, ranks, std::move(sockets).value());
    process->members = members_of(whole_world(ranks), slot_bytes,
                                  {.deadline = deadline,
                                   .first_deadline = deadline,
                                   .watch = process.get(),
                                   .world = &process->world,
                                   .links = process->links.get()});
  }
  for (auto& each : processes) each->links->begin(each->sight, each->world.fault());
  return processes;
}

// Connected, without groups, a rank each. lost(i): process i has lost another one.
void begin_links(std::vector<Process>& processes, const std::function<void(int)>& lost) {
  const int count = static_cast<int>(processes.size());
  std::vector<Result<MetProcesses>> met =
      meet_all(meetings_of(count), std::vector<MeetingTerms>(processes.size()));
  for (int i = 0; i < count; ++i) {
    Process& process = processes[static_cast<std::size_t>(i)];
    process.links = std::make_unique<ProcessLinks>(ProcessPlace{i, count}, count,
                                                   std::move(met[static_cast<std::size_t>(i)]).value());
    process.links->when_lost([lost, i] { lost(i); });
    process.links->begin(process.sight, process.world.fault());
  }
}

template <class Body>
void on_each_rank(std::vector<std::unique_ptr<Process>>& processes, const Body& body) {
  std::vector<std::thread> threads;
  for (auto& process : processes) {
    for (Communicator& member : process->members)
      if (process->links->has(member.member())) threads.emplace_back([&] { body(member); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ProcessLinks, CollectivesGiveTheBitsOfOneProcess) {
  constexpr int ranks = 4, width = 96, rows = 37;
  constexpr std::array<std::int64_t, ranks + 1> begins = {0, 16, 48, 48, width};
  struct Answer {
    std::vector<float> sums, twice, columns;
    std::vector<std::byte> gathered;
  };
  const auto body = [&](Communicator& member, Answer& answer) {
    const auto me = static_cast<std::size_t>(member.member());
    answer.sums = wide_floats(static_cast<unsigned>(me), 5000);  // more than a slot holds
    answer.twice = answer.sums;
    ASSERT_TRUE(all_reduce_one_shot(member, answer.sums).ok());
    ASSERT_TRUE(all_reduce_two_shot(member, answer.twice).ok());
    const std::vector<float> mine = wide_floats(
        static_cast<unsigned>(me) + 9, static_cast<std::size_t>(rows * (begins[me + 1] - begins[me])));
    answer.columns.resize(rows * width);
    ASSERT_TRUE(
        gather_columns(member,
                       {.rows = rows, .begins = begins, .mine = mine.data(), .all = answer.columns.data()})
            .ok());
    answer.gathered.resize(ranks * 100);
    const std::vector<float> bytes = wide_floats(static_cast<unsigned>(me) + 99, 25);
    ASSERT_TRUE(all_gather(member, std::as_bytes(std::span(bytes)), answer.gathered).ok());
  };
  std::array<Answer, ranks> alone;
  std::vector<Communicator> threads = members_of(whole_world(ranks), 4096);
  on_each(threads,
          [&](Communicator& member) { body(member, alone[static_cast<std::size_t>(member.member())]); });
  for (const int count : {2, 4}) {
    std::array<Answer, ranks> answers;
    std::vector<std::unique_ptr<Process>> processes = processes_of(count, ranks);
    on_each_rank(processes, [&](Communicator& member) {
      body(member, answers[static_cast<std::size_t>(member.member())]);
    });
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(same_bits(answers[rank].sums, alone[0].sums)) << count << " processes, rank " << rank;
      EXPECT_TRUE(same_bits(answers[rank].twice, alone[0].sums));
      EXPECT_TRUE(same_bits(answers[rank].columns, alone[0].columns));
      EXPECT_EQ(answers[rank].gathered, alone[0].gathered);
    }
  }
}

TEST(ProcessLinks, ManyCallsOfChangingSizeKeepTheirOrder) {
  constexpr int ranks = 4, calls = 2000;
  std::vector<std::unique_ptr<Process>> processes = processes_of(2, ranks, 1 << 16);
  on_each_rank(processes, [&](Communicator& member) {
    std::mt19937 random(7);  // the same in all
    for (int call = 0; call < calls; ++call) {
      std::vector<float> values(random() % 3000, static_cast<float>(member.member() + call));
      ASSERT_TRUE(all_reduce_one_shot(member, values).ok());
      for (const float value : values) ASSERT_EQ(value, static_cast<float>(4 * call + 6));
    }
  });
}

TEST(ProcessLinks, ALateRankOfTheSameProcessIsWaitedFor) {
  std::vector<std::unique_ptr<Process>> processes = processes_of(2, 4);
  on_each_rank(processes, [](Communicator& member) {
    if (member.member() == 1) std::this_thread::sleep_for(4 * Stillness::between_looks);
    std::vector<float> values(10, 1.0f);
    ASSERT_TRUE(all_reduce_one_shot(member, values).ok());
    EXPECT_EQ(values[0], 4.0f);
  });
}

TEST(ProcessLinks, StepsComeInOrderAndThenTheEnd) {
  std::vector<std::unique_ptr<Process>> processes = processes_of(3, 3);
  ProcessLinks& first = *processes[0]->links;
  std::vector<std::thread> others;
  for (const std::size_t i : {1u, 2u}) {
    others.emplace_back([&, i] {
      ProcessLinks& links = *processes[i]->links;
      links.announce_ready();
      std::vector<std::byte> step;
      for (int number = 0; number < 100; ++number) {
        const Result<bool> came = links.wait_for_step(step);
        ASSERT_TRUE(came.ok() && *came);
        ASSERT_EQ(step, std::vector<std::byte>(static_cast<std::size_t>(number), std::byte(number)));
      }
      const Result<bool> came = links.wait_for_step(step);
      ASSERT_TRUE(came.ok()) << came.status().message();
      EXPECT_FALSE(*came);
    });
  }
  ASSERT_TRUE(first.wait_until_all_are_ready().ok());
  for (int number = 0; number < 100; ++number)
    first.announce_step(std::vector<std::byte>(static_cast<std::size_t>(number), std::byte(number)));
  first.end();
  for (std::thread& other : others) other.join();
  for (const auto& each : processes) EXPECT_TRUE(each->members[0].failure().ok());
}

TEST(ProcessLinks, AProcessThatGoesIsNamedToWhoWaitsForIt) {
  std::vector<std::unique_ptr<Process>> processes = processes_of(2, 4, 4096, std::chrono::minutes(10));
  const auto begin = std::chrono::steady_clock::now();
  processes[1]->links->end();  // without being told to: it just goes
  std::vector<float> values(10);
  const Status status = all_reduce_one_shot(processes[0]->members[0], values);
  EXPECT_NE(status.message().find("the process of rank 2 has gone"), std::string::npos) << status.message();
  EXPECT_FALSE(processes[0]->links->wait_until_all_are_ready().ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(ProcessLinks, ALossIsToldAtOnceAndOnceThoughNoRankWaits) {
  std::atomic<int> told = 0;
  std::vector<Process> processes(3);
  begin_links(processes, [&](int process) { told += process == 2 ? 1 : 0; });
  EXPECT_EQ(told, 0);
  processes[1].links->end();  // without being told to: it just goes
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (told == 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  processes[0].links->end();
  processes[2].links->end();  // nothing arrives after it
  EXPECT_EQ(told, 1);
}

std::atomic<bool> holds = false, is_held = false;

// A thread is stopped wherever it is, as a debugger does it.
void hold(int) {
  is_held = true;
  while (holds) std::this_thread::sleep_for(milliseconds(1));
}

TEST(ProcessLinks, ALossIsToldThoughWhoRunsTheStepsStandsStillInItsWaitForOne) {
  std::atomic<int> told = 0;
  std::vector<Process> processes(2);
  begin_links(processes, [&](int process) { told += process == 1 ? 1 : 0; });
  constexpr milliseconds until_all_wait{300};
  std::thread runs_steps([&] {
    std::vector<std::byte> step;
    EXPECT_TRUE(processes[1].links->wait_for_step(step).value());
  });
  std::this_thread::sleep_for(until_all_wait);
  is_held = false;
  holds = true;
  const auto before = std::signal(SIGUSR1, hold);
  pthread_kill(runs_steps.native_handle(), SIGUSR1);
  while (!is_held) std::this_thread::sleep_for(milliseconds(1));
  const std::vector<std::byte> step(8);
  for (int i = 0; i < 2; ++i) {
    processes[0].links->announce_step(step);
    std::this_thread::sleep_for(until_all_wait);
  }
  note_fault(processes[0].world.fault(), {.kind = FaultNote::Kind::lost});
  processes[0].links->end();  // it has failed, so it just goes
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (told == 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(told, 1);
  holds = false;
  runs_steps.join();
  std::signal(SIGUSR1, before);
}

TEST(ProcessLinks, AnOrderlyEndIsNoLoss) {
  std::atomic<int> told = 0;
  std::vector<Process> processes(2);
  begin_links(processes, [&](int) { ++told; });
  processes[0].links->end();
  processes[1].links->end();
  EXPECT_EQ(told, 0);
}

TEST(ProcessLinks, AProcessThatLoadsForLongIsNotLostAndOneThatFallsSilentIs) {
  std::vector<Result<MetProcesses>> met = meet_all(meetings_of(2), std::vector<MeetingTerms>(2));
  std::vector<Process> processes(2);
  for (const int i : {0, 1}) {
    Process& process = processes[static_cast<std::size_t>(i)];
    process.links = std::make_unique<ProcessLinks>(
        ProcessPlace{i, 2}, 2, std::move(met[static_cast<std::size_t>(i)]).value(),
        ProcessSilence{.still = milliseconds(100), .lost = milliseconds(500)});
    process.members = members_of(whole_world(2), 4096,
                                 {.watch = &process, .world = &process.world, .links = process.links.get()});
  }
  processes[0].links->begin(processes[0].sight, processes[0].world.fault());
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_TRUE(processes[0].members[0].failure().ok()) << "the other has not loaded its weights yet";
  EXPECT_TRUE(processes[0].links->look(1).works);
  processes[1].sight.wait_in_look = true;  // it says something once, and then no more
  processes[1].links->begin(processes[1].sight, processes[1].world.fault());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (processes[0].members[0].failure().ok() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_NE(processes[0].members[0].failure().message().find("the process of rank 1 has gone"),
            std::string::npos);
  EXPECT_FALSE(processes[0].links->look(1).works);
  processes[1].sight.wait_in_look = false;
}

TEST(ProcessLinks, WhoIsSeenToStandStillIsGivenUp) {
  std::vector<std::unique_ptr<Process>> processes = processes_of(2, 2, 4096, std::chrono::minutes(10));
  processes[1]->sight.works = false;
  std::vector<float> values(10);
  const Status status = all_reduce_one_shot(processes[0]->members[0], values);
  EXPECT_NE(status.message().find("for rank 1, which did not come"), std::string::npos) << status.message();
}

TEST(ProcessLinks, TellHowRanksOfOtherProcessesGetOn) {
  std::vector<std::unique_ptr<Process>> processes = processes_of(2, 4);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  PeerSight sight;
  while (sight.beats < 5 && std::chrono::steady_clock::now() < end) {
    sight = processes[0]->links->look(3);
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_GE(sight.beats, 5u);
  EXPECT_EQ(sight.rank, 3);
  EXPECT_TRUE(sight.works);
  EXPECT_EQ(sight.cpu, std::vector<milliseconds>{milliseconds(5)});
}

TEST(ProcessLinks, WhatNoProcessSendsEndsTheConnection) {
  for (const std::uint32_t kind : {0u, 1u, 2u, 3u, 77u}) {
    std::vector<Result<MetProcesses>> met = meet_all(meetings_of(2), std::vector<MeetingTerms>(2));
    Process process;
    process.links = std::make_unique<ProcessLinks>(ProcessPlace{0, 2}, 2, std::move(met[0]).value());
    process.members =
        members_of(whole_world(2), 4096, {.world = &process.world, .links = process.links.get()});
    process.links->begin(process.sight, process.world.fault());
    std::array<std::uint32_t, 64> words{};
    words.fill(0xffffffff);
    words[0] = kind;
    static_cast<void>(met[1]->sockets[0].send(std::as_bytes(std::span(words))));
    std::vector<float> values(3);
    EXPECT_FALSE(all_reduce_one_shot(process.members[0], values).ok()) << kind;
  }
}

}  // namespace
}  // namespace nibble
