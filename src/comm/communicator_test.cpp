#include "comm/communicator.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "comm/collectives.h"
#include "comm/comm_test_util.h"

namespace nibble {
namespace {

constexpr Communicator::Options quick{.deadline = std::chrono::milliseconds(100),
                                      .first_deadline = std::chrono::milliseconds(100)};

TEST(Communicator, AMemberThatStandsStillIsGivenUpLongBeforeTheDeadline) {
  struct : PeerWatch {
    PeerSight look(int member) const override {
      return PeerSight{.works = member != 1, .beats = 0, .cpu = {}};
    }
  } const watch;
  std::vector<Communicator> members = members_of(Group{{0, 1, 2}}, 4096,
                                                 {.deadline = std::chrono::minutes(10),
                                                  .first_deadline = std::chrono::minutes(10),
                                                  .watch = &watch,
                                                  .stillness = {.idle = std::chrono::milliseconds(200)}});
  std::vector<Status> statuses(3);
  on_each(members, [&](Communicator& member) {
    std::vector<float> values(10);
    // Member 2 is late, which is no reason to give it up.
    if (member.member() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (member.member() != 1)
      statuses[static_cast<std::size_t>(member.member())] = all_reduce_one_shot(member, values);
  });
  for (const std::size_t member : {0u, 2u})
    EXPECT_NE(statuses[member].message().find("for rank 1, which did not come"), std::string::npos);
}

TEST(Communicator, SaysWhoWaitedForWhomWhenARankDoesNotCome) {
  std::vector<Communicator> members = members_of(Group{{1, 2, 5}}, 4096, quick);
  std::vector<Status> statuses(3);
  const auto begin = std::chrono::steady_clock::now();
  on_each(members, [&](Communicator& member) {
    std::vector<float> values(10);
    for (int call = 0; call < 3 && statuses[static_cast<std::size_t>(member.member())].ok(); ++call) {
      if (member.member() == 2 && call == 2) return;
      statuses[static_cast<std::size_t>(member.member())] = all_reduce_one_shot(member, values);
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  for (const int member : {0, 1}) {
    const std::string& message = statuses[static_cast<std::size_t>(member)].message();
    EXPECT_NE(message.find(" ms in all_reduce, step 3, for rank 5, which did not come"), std::string::npos)
        << message;
  }
  EXPECT_EQ(statuses[0].message(), statuses[1].message()) << "one failure, told by all";
}

TEST(Communicator, StaysFailed) {
  std::vector<Communicator> members = members_of(whole_world(2), 4096, quick);
  std::vector<float> values(10);
  const Status first = all_reduce_one_shot(members[0], values);
  EXPECT_FALSE(first.ok());
  // The late rank learns of it at once, without waiting for its own deadline.
  EXPECT_EQ(all_reduce_two_shot(members[1], values).message(), first.message());
  EXPECT_EQ(members[1].failure().message(), first.message());
  EXPECT_EQ(all_reduce_one_shot(members[0], values).message(), first.message());
}

TEST(Communicator, AllowsTheFirstStepLonger) {
  std::vector<Communicator> members = members_of(
      whole_world(2), 4096,
      {.deadline = std::chrono::milliseconds(100), .first_deadline = std::chrono::milliseconds(20000)});
  on_each(members, [&](Communicator& member) {
    if (member.member() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    std::vector<float> values(10);
    EXPECT_TRUE(all_reduce_one_shot(member, values).ok());
  });
}

TEST(Communicator, NamesRanksThatMakeAnotherCall) {
  struct Case {
    std::size_t first, second;
    bool two_shot;
    const char* said;
  };
  for (const Case& c :
       {Case{10, 11, false, "one-shot all_reduce of 10"}, Case{10, 10, true, "two-shot all_reduce of 10"}}) {
    std::vector<Communicator> members = members_of(whole_world(2), 4096);
    std::vector<Status> statuses(2);
    on_each(members, [&](Communicator& member) {
      std::vector<float> values(member.member() == 0 ? c.first : c.second);
      statuses[static_cast<std::size_t>(member.member())] = c.two_shot && member.member() == 1
                                                                ? all_reduce_two_shot(member, values)
                                                                : all_reduce_one_shot(member, values);
    });
    for (const Status& status : statuses) {
      EXPECT_NE(status.message().find("ranks disagree in step 1: rank "), std::string::npos)
          << status.message();
      EXPECT_NE(status.message().find(c.said), std::string::npos) << status.message();
    }
  }
}

TEST(Communicator, VotesAndNamesWhoDiffers) {
  std::vector<Communicator> members = members_of(whole_world(4), 4096);
  on_each(members, [&](Communicator& member) {
    EXPECT_TRUE(vote(member, "plans", 7).ok());
    const Status status = vote(member, "plans", member.member() % 2 == 0 ? 7u : 8u);
    EXPECT_EQ(status.message(),
              "rank 0 and ranks 1, 3 hold different plans; start all ranks from the same program, model and "
              "options");
    EXPECT_TRUE(vote(member, "plans", 7).ok()) << "a lost vote is no failure of the group";
  });
}

TEST(Communicator, RefusesAGroupThatIsTooLarge) {
  EXPECT_FALSE(communicators_of(whole_world(9), 4096, {}).ok());
  EXPECT_FALSE(communicators_of(Group{}, 4096, {}).ok());
}

// The memory holds no pointers: ranks may be processes.
TEST(Communicator, WorksOverForkedProcesses) {
  std::vector<Communicator> members = members_of(whole_world(3), 4096);
  const auto run = [](Communicator& member) {
    std::vector<float> values(3000);
    for (int call = 0; call < 50; ++call) {
      std::fill(values.begin(), values.end(), static_cast<float>(member.member() + call));
      if (!all_reduce_two_shot(member, values).ok()) return false;
      for (const float value : values) {
        if (value != static_cast<float>(3 + 3 * call)) return false;
      }
    }
    return true;
  };
  std::vector<pid_t> children;
  for (const int i : {1, 2}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(run(members[static_cast<std::size_t>(i)]) ? 0 : 1);
    children.push_back(child);
  }
  EXPECT_TRUE(run(members[0]));
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace
}  // namespace nibble
