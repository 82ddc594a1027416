#include "base/container_limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// A folder with proc and sys as Linux would show them.
class FakeRoot : public testing::Test {
 protected:
  FakeRoot() : root_(fs::temp_directory_path() / ("nibble_limits_" + std::to_string(getpid()))) {
    fs::remove_all(root_);
  }
  ~FakeRoot() override { fs::remove_all(root_); }

  void put(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void second_version(const std::string& group, const std::string& shown = "/") {
    put("proc/self/cgroup", "0::" + group + "\n");
    put("proc/self/mountinfo", "24 1 0:22 / /proc rw - proc proc rw\n31 24 0:27 " + shown +
                                   " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }
  void first_version(const std::string& group, const std::string& shown) {
    put("proc/self/cgroup", "5:memory:" + group + "\n4:cpu,cpuacct:" + group + "\n3:cpuset:" + group +
                                "\n1:name=systemd:" + group + "\n0::/\n");
    put("proc/self/mountinfo",
        "31 24 0:27 " + shown + " /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n32 24 0:28 " +
            shown + " /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n33 24 0:29 " + shown +
            " /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n");
  }
  ContainerLimits limits() const { return container_limits(root_); }

  fs::path root_;
};

TEST_F(FakeRoot, NothingToReadLimitsNothing) {
  EXPECT_EQ(limits(), ContainerLimits{});
  second_version("/");
  EXPECT_EQ(limits(), ContainerLimits{});
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(limits(), ContainerLimits{});
  EXPECT_EQ(usable_threads(64, limits()), 64);
  put("sys/fs/cgroup/cpu.max", "lots of\n");
  put("sys/fs/cgroup/memory.max", "-5\n");
  put("sys/fs/cgroup/cpuset.cpus.effective", "3-1\n");
  EXPECT_EQ(limits(), ContainerLimits{});
}

TEST_F(FakeRoot, TheLeastOfAllGroupsCounts) {
  second_version("/pods/one/box");
  put("sys/fs/cgroup/pods/cpu.max", "800000 100000\n");
  put("sys/fs/cgroup/pods/one/cpu.max", "250000 100000\n");
  put("sys/fs/cgroup/pods/one/box/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/pods/memory.max", "8589934592\n");
  put("sys/fs/cgroup/pods/memory.current", "8000000000\n");
  put("sys/fs/cgroup/pods/memory.stat", "anon 5\ninactive_file 1000000000\nfile 9\n");
  put("sys/fs/cgroup/pods/one/box/memory.max", "4294967296\n");
  put("sys/fs/cgroup/pods/one/box/memory.current", "1000000000\n");
  put("sys/fs/cgroup/cpuset.cpus.effective", "0-63\n");
  put("sys/fs/cgroup/pods/one/box/cpuset.cpus.effective", "0-3,8,10-11\n");
  const ContainerLimits found = limits();
  EXPECT_EQ(found.cpu_quota, 2.5);
  EXPECT_EQ(found.cpu_quota_from, "/sys/fs/cgroup/pods/one/cpu.max");
  EXPECT_EQ(found.memory, 4294967296);
  EXPECT_EQ(found.memory_from, "/sys/fs/cgroup/pods/one/box/memory.max");
  EXPECT_EQ(found.memory_free, 8589934592 - 7000000000)
      << "the others in the pod leave less than the box may have";
  EXPECT_EQ(found.cpuset, 7);
  EXPECT_EQ(usable_threads(64, found), 2);
}

TEST_F(FakeRoot, AContainerSeesItsOwnGroupAsTheRoot) {
  second_version("/");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  put("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(limits().cpu_quota, 0.5);
  EXPECT_EQ(usable_threads(8, limits()), 1) << "half a CPU runs one thread";
  EXPECT_EQ(limits().memory, 1 << 30);
  EXPECT_EQ(limits().memory_free, 1 << 30);
}

TEST_F(FakeRoot, TheFirstVersionHasAHierarchyAController) {
  for (const std::string shown : {"/", "/docker/abc"}) {
    fs::remove_all(root_);
    first_version("/docker/abc", shown);
    const std::string group = shown == "/" ? "/docker/abc" : "";
    put("sys/fs/cgroup/cpu,cpuacct" + group + "/cpu.cfs_quota_us", "399999\n");
    put("sys/fs/cgroup/cpu,cpuacct" + group + "/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", "2147483648\n");
    put("sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", "147483648\n");
    put("sys/fs/cgroup/cpuset" + group + "/cpuset.effective_cpus", "2,4\n");
    const ContainerLimits found = limits();
    EXPECT_EQ(found.memory, std::int64_t{1} << 31);
    EXPECT_EQ(found.memory_free, 2000000000);
    EXPECT_EQ(found.cpuset, 2);
    EXPECT_NEAR(found.cpu_quota, 4, 0.001);
    EXPECT_EQ(usable_threads(8, found), 2);
    EXPECT_EQ(
        usable_threads(
            8, {.cpu_quota = found.cpu_quota, .cpu_quota_from = {}, .cpuset_from = {}, .memory_from = {}}),
        3);
  }
}

TEST_F(FakeRoot, TheFirstVersionsNoLimitIsNone) {
  first_version("/", "/");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limits(), ContainerLimits{});
}

TEST(ContainerLimits, OfThisProcessAreNoMoreThanTheMachine) {
  const ContainerLimits found = container_limits();
  EXPECT_GE(usable_threads(1, found), 1);
  EXPECT_GE(found.memory, found.memory_free);
}

}  // namespace
}  // namespace nibble
