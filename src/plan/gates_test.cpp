#include "plan/gates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plan.h"
#include "plan/plan_test_util.h"
#include "plan/version.h"

namespace nibble {
namespace {

// Four H200 on which these libraries were found.
Machine with(std::vector<FoundLibrary> libraries) {
  Machine machine = declared_machine("h200x4").value();
  machine.libraries = std::move(libraries);
  return machine;
}

TEST(Version, IsReadAndCompared) {
  EXPECT_EQ(parse_version("2.28.9")->parts, (std::array<int, 3>{2, 28, 9}));
  EXPECT_EQ(parse_version("13")->parts, (std::array<int, 3>{13, 0, 0}));
  EXPECT_LT(*parse_version("2.9.10"), *parse_version("2.10"));
  for (const char* text : {"", "a", "1.", "1..2", "1.2.3.4", "-1", "1.2rc1", "99999999999"})
    EXPECT_FALSE(parse_version(text)) << text;
}

TEST(Gates, AMaximumTakesItsPatches) {
  const VersionGate& nccl = *find_gate("nccl");
  const auto status = [&](const char* version) {
    return check_gate(nccl, {.name = "nccl", .version = version, .problem = {}}).status;
  };
  EXPECT_EQ(status("2.27.7"), GateStatus::ok);
  EXPECT_EQ(status("2.27.6"), GateStatus::too_old);
  EXPECT_EQ(status("2.28.99"), GateStatus::ok);
  EXPECT_EQ(status("2.29.0"), GateStatus::too_new);
  EXPECT_EQ(status("2.28.3"), GateStatus::known_bad);
  EXPECT_EQ(status("2.28.7"), GateStatus::ok);
  EXPECT_EQ(status("nightly"), GateStatus::incompatible);
}

// A user that is no choice would be a gate that never refuses anything.
TEST(Gates, EveryUserIsAChoiceThatAPlanCanMake) {
  const Plan plan = resolve({.tensor_parallel = 4, .expert_parallel = 4}, with({}), small_model()).value();
  const auto choices_of = [&](const Choice& choice) {
    std::vector<std::string> values = choice.alternatives;
    values.push_back(choice.value);
    for (const Rejected& rejected : choice.rejected) values.push_back(rejected.value);
    return values;
  };
  for (const VersionGate& gate : gates()) {
    for (const std::string_view user : gate.used_by) {
      const std::size_t space = user.find(' ');
      const VersionGate of_user{.name = gate.name, .used_by = {&user, 1}};
      const std::string field(user.substr(0, space));
      const std::vector<std::string> values = choices_of(plan.choice(field));
      EXPECT_TRUE(std::any_of(values.begin(), values.end(),
                              [&](const std::string& value) { return needs_gate(of_user, field, value); }))
          << gate.name << ": " << user;
    }
  }
}

TEST(Gates, WhateverNeedsAClosedGateIsRefusedByName) {
  const Machine machine = with({{"cuda_driver", "12.4.0", ""}});
  const Result<Plan> plan = resolve({.device = Device::cuda}, machine, small_model());
  EXPECT_EQ(
      plan.status().message(),
      "--device cuda: cuda_driver 12.4.0 is too old: it must be 13.0 or later, up to 13; install a driver of "
      "branch 580 or later; give cpu");
  EXPECT_EQ(resolve({}, machine, small_model())->device, DeviceKind::cpu) << "nobody asked for the GPU";

  const Machine apart = with({{"peer_access", "", "GPU 0 cannot reach GPU 2"}});
  const std::string refused =
      resolve({.all_reduce = "gather", .tensor_parallel = 4}, apart, small_model()).status().message();
  EXPECT_NE(refused.find("--all-reduce gather: peer_access cannot be used: GPU 0 cannot reach GPU 2"),
            std::string::npos)
      << refused;
}

TEST(Gates, PeerAccessIsWhatTheDriverSaid) {
  Machine machine = with({});
  machine.declared = false;
  ASSERT_GT(machine.gpu.count, 1);
  const auto status = [&] {
    for (const GateResult& result : check_gates(machine, "")) {
      if (result.name == "peer_access") return result.status;
    }
    return GateStatus::unprobed;
  };
  EXPECT_EQ(status(), GateStatus::incompatible) << "nobody asked";
  machine.gpu.peers_probed = true;
  machine.gpu.link_bandwidth = 0;
  EXPECT_EQ(status(), GateStatus::ok) << "over the bus";
  machine.gpu.peer_problem = "GPU 0 cannot reach GPU 1";
  EXPECT_EQ(status(), GateStatus::incompatible);
  machine.gpu.count = 1;
  EXPECT_EQ(status(), GateStatus::ok) << "there is no other";
  machine.gpu = {};
  EXPECT_EQ(status(), GateStatus::unprobed);
}

TEST(Gates, AnOverrideIsHonouredAndRemembered) {
  const Machine machine = with({{"cuda_driver", "14.0.0", ""}, {"nccl", "2.28.9", ""}});
  EXPECT_FALSE(resolve({.device = Device::cuda}, machine, small_model()).ok());
  const Result<Plan> plan =
      resolve({.device = Device::cuda, .override_gates = "cuda_driver,nccl"}, machine, small_model());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->degraded_by(), std::vector<std::string>{"cuda_driver"}) << "nccl is open anyway";
  EXPECT_TRUE(resolve({}, with({}), small_model())->degraded_by().empty());
  EXPECT_NE(
      resolve({.override_gates = "nickel"}, machine, small_model()).status().message().find("is no gate"),
      std::string::npos);
}

TEST(Gates, NobodyLookedIsNotMissingOnADeclaredMachine) {
  const Plan declared = resolve({}, with({}), small_model()).value();
  Machine real = with({});
  real.declared = false;
  for (const GateResult& gate : declared.gates) EXPECT_TRUE(gate.open()) << gate.name;
  const std::vector<GateResult> results = check_gates(real, "");
  const auto nccl =
      std::find_if(results.begin(), results.end(), [](const auto& each) { return each.name == "nccl"; });
  EXPECT_EQ(nccl->status, GateStatus::missing);
}

}  // namespace
}  // namespace nibble
