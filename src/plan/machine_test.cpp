#include "plan/machine.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

std::string json_of(const Machine& machine) {
  std::string text;
  JsonWriter json(text);
  write_machine(machine, json);
  return text;
}

TEST(Machine, NamesAreDeclaredMachines) {
  for (const char* name : {"cpu", "h100x1", "h100x8", "h200x4", "b200x2"}) {
    const Result<Machine> machine = declared_machine(name);
    ASSERT_TRUE(machine.ok()) << name;
    EXPECT_TRUE(machine->declared);
    EXPECT_EQ(machine->name, name);
  }
  EXPECT_EQ(declared_machine("h200x4")->gpu.count, 4);
  EXPECT_EQ(declared_machine("b200x1")->gpu.compute_capability, 100);
}

TEST(Machine, OthersAreRefusedWithWhatThereIs) {
  for (const char* name :
       {"h200", "h200x0", "h200x9", "h200x16", "h200x", "h200y1", "a100x1", "", "H200X1"}) {
    const Status refused = declared_machine(name).status();
    EXPECT_EQ(refused.exit_code(), 2) << name;
    EXPECT_NE(refused.message().find("h200xN"), std::string::npos) << refused.message();
  }
}

TEST(Machine, IsReadBackAsItWasWritten) {
  for (Machine machine :
       {declared_machine("cpu").value(), declared_machine("h200x4").value(), probe_machine()}) {
    const std::string text = json_of(machine);
    const JsonDocument document = JsonDocument::parse(text).value();
    const Result<Machine> back = read_machine(document.root());
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->libraries, machine.libraries);
    machine.declared = true;  // what a file says was not probed
    EXPECT_EQ(*back, machine) << text;
  }
}

TEST(Machine, AFilesMistakeIsNamed) {
  const auto refusal = [](const char* text) {
    const JsonDocument document = JsonDocument::parse(text).value();
    const Result<Machine> machine = read_machine(document.root());
    return machine.ok() ? std::string() : machine.status().message();
  };
  EXPECT_EQ(refusal(R"({"name":"m","cpu":{"threads":2}})"), "");
  EXPECT_NE(refusal(R"({"cpus":{}})").find("unknown member \"cpus\""), std::string::npos);
  EXPECT_NE(refusal(R"({"cpu":{"threads":"two"}})").find("machine.cpu.threads must be a whole number"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"cpu":{"threads":2},"gpu":{"count":9}})").find("machine.gpu.count"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"cpu":{"features":[1]}})").find("machine.cpu.features"), std::string::npos);
  EXPECT_NE(refusal(R"({"gpu":[]})").find("must be an object"), std::string::npos);
  EXPECT_NE(refusal(R"([])").find("must be an object"), std::string::npos);
}

TEST(Machine, AContainersLimitsLeaveFewerThreadsAndLessMemory) {
  CpuFacts cpu{
      .cpus = 64, .memory_bytes = std::int64_t{256} << 30, .available_bytes = std::int64_t{200} << 30};
  CpuFacts unlimited = cpu;
  limit(unlimited, {});
  EXPECT_EQ(unlimited.threads, 64);
  EXPECT_EQ(unlimited.memory_bytes, cpu.memory_bytes);
  EXPECT_EQ(unlimited.memory_limit_from, "");
  limit(cpu, {.cpu_quota = 2.5,
              .cpu_quota_from = "/sys/fs/cgroup/cpu.max",
              .cpuset_from = {},
              .memory = std::int64_t{8} << 30,
              .memory_from = "/sys/fs/cgroup/memory.max",
              .memory_free = std::int64_t{7} << 30});
  EXPECT_EQ(cpu.threads, 2);
  EXPECT_EQ(cpu.memory_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(cpu.available_bytes, std::int64_t{7} << 30);
  EXPECT_EQ(cpu.memory_limit_from, "/sys/fs/cgroup/memory.max");
}

TEST(Machine, TheRateOfLinksIsTheModelsOnlyWhereNvlinkJoinsAllGpus) {
  GpuFacts four;
  four.model = "NVIDIA H100 80GB HBM3";
  four.count = 4;
  four.compute_capability = 90;
  const auto probed = [&](const std::function<PeerLink(int, int)>& link) {
    GpuFacts gpu = four;
    add_known_rates(gpu);
    EXPECT_EQ(gpu.link_bandwidth, 0) << "a name says nothing of what joins two of them";
    add_peers(gpu, link);
    return gpu;
  };
  const GpuFacts joined = probed([](int, int) { return PeerLink{true, true}; });
  EXPECT_GT(joined.link_bandwidth, 0);
  EXPECT_EQ(joined.peer_problem, "");
  const GpuFacts by_bus = probed([](int from, int to) { return PeerLink{true, from + to != 3}; });
  EXPECT_EQ(by_bus.link_bandwidth, 0);
  EXPECT_EQ(by_bus.peer_problem, "");
  const GpuFacts apart = probed([](int from, int to) { return PeerLink{!(from == 1 && to == 2), true}; });
  EXPECT_EQ(apart.link_bandwidth, 0);
  EXPECT_EQ(apart.peer_problem, "GPU 1 cannot reach GPU 2");
}

TEST(Machine, ThisOneHasThreadsAndMemory) {
  const Machine here = probe_machine();
  EXPECT_FALSE(here.declared);
  EXPECT_GE(here.cpu.threads, 1);
  EXPECT_GT(here.cpu.memory_bytes, here.cpu.available_bytes);
  EXPECT_GT(here.cpu.available_bytes, 0);
}

}  // namespace
}  // namespace nibble
