#include "base/cpu_claims.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace nibble {
namespace {

// Numbers that no machine has, and no other test at the same time.
std::vector<int> numbers(int count) {
  std::vector<int> all;
  for (int i = 0; i < count; ++i) all.push_back((1 << 20) + getpid() * 16 + i);
  return all;
}

bool is_claimed(int cpu) { return std::ranges::count(claimed_cpus(), cpu) != 0; }

TEST(CpuClaims, EachCpuIsOneHolders) {
  const std::vector<int> cpus = numbers(5);
  const CpuClaims first = CpuClaims::take(cpus, 2);
  ASSERT_EQ(first.cpus(), (std::vector<int>{cpus[0], cpus[1]}));
  {
    const CpuClaims second = CpuClaims::take(cpus, 2);
    EXPECT_EQ(second.cpus(), (std::vector<int>{cpus[2], cpus[3]}));
    EXPECT_TRUE(is_claimed(cpus[3]));
    EXPECT_FALSE(is_claimed(cpus[4]));
    EXPECT_TRUE(CpuClaims::take(cpus, 2).cpus().empty()) << "one is left";
    EXPECT_FALSE(is_claimed(cpus[4])) << "what is not enough is given back";
  }
  EXPECT_FALSE(is_claimed(cpus[3]));
  EXPECT_EQ(CpuClaims::take(cpus, 3).cpus().size(), 3u);
}

TEST(CpuClaims, AKilledProcessLeavesNone) {
  const std::vector<int> cpus = numbers(1);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const CpuClaims claims = CpuClaims::take(cpus, 1);
    (void)!write(ready[1], claims.cpus().empty() ? "n" : "y", 1);
    pause();
  }
  char took = 0;
  ASSERT_EQ(read(ready[0], &took, 1), 1);
  EXPECT_EQ(took, 'y');
  EXPECT_TRUE(CpuClaims::take(cpus, 1).cpus().empty());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(CpuClaims::take(cpus, 1).cpus(), cpus);
  close(ready[0]);
  close(ready[1]);
}

TEST(CpuClaims, AListThatIsNotThereHasNone) { EXPECT_TRUE(claimed_cpus("/nowhere").empty()); }

}  // namespace
}  // namespace nibble
