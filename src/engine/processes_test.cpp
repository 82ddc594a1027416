#include "engine/processes.h"

#include <gtest/gtest.h>

#include <map>

namespace nibble {
namespace {

Result<EngineOptions> with(const std::map<std::string, std::string>& variables, EngineOptions options = {}) {
  return with_processes(std::move(options), [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

EngineOptions given(int count, int index, const std::string& first) {
  EngineOptions options;
  options.processes = count;
  options.process = index;
  options.first_process = first;
  options.given.processes = options.given.process = options.given.first_process = true;
  return options;
}

TEST(Processes, AreWhatTheOptionsSayOrWhatMpirunSays) {
  const Result<EngineOptions> alone = with({});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->processes, 1);
  EXPECT_FALSE(follows(*alone));
  EXPECT_TRUE(follows(*with({}, given(4, 3, "10.0.0.1:5000"))));
  EngineOptions met;
  met.first_process = "10.0.0.1:5000";
  met.given.first_process = true;
  const Result<EngineOptions> launched = with(
      {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
      met);
  ASSERT_TRUE(launched.ok()) << launched.status().message();
  EXPECT_EQ(launched->processes, 4);
  EXPECT_EQ(launched->process, 2);
  EXPECT_EQ(launched->processes_here, 2);
  EXPECT_EQ(with({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}, met)->process, 1);
  // mpirun of a single process, and variables that say nothing.
  EngineOptions none;
  EXPECT_EQ(with({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}, none)->processes, 1);
  EXPECT_EQ(with({{"OMPI_COMM_WORLD_SIZE", "x"}, {"OMPI_COMM_WORLD_RANK", "0"}}, none)->processes, 1);
}

TEST(Processes, WhatContradictsItselfIsRefusedWithWhatWorks) {
  const auto message = [](const Result<EngineOptions>& result) { return result.status().message(); };
  EXPECT_NE(message(with({}, given(2, 1, ""))).find("--dist-init-addr HOST:PORT"), std::string::npos);
  EXPECT_NE(message(with({}, given(2, 2, "a:1"))).find("goes from 0 to 1"), std::string::npos);
  EXPECT_NE(message(with({}, given(1, 1, ""))).find("give --nnodes too"), std::string::npos);
  EXPECT_NE(message(with({}, given(1, 0, "a:1"))).find("--dist-init-addr is for several processes"),
            std::string::npos);
  EXPECT_NE(message(with({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}}, given(2, 1, "a:1")))
                .find("mpirun started this as process 0 of 2"),
            std::string::npos);
}

TEST(Processes, HaveAPlaceToMeetThatNobodyElseReachesWithoutAKey) {
  const auto refusal = [](EngineOptions options) {
    EngineChoices choices;
    return join_processes(options, "/nowhere", choices).status().message();
  };
  EXPECT_NE(refusal(given(2, 0, "10.0.0.1:5000")).find("--dist-key-file"), std::string::npos);
  EXPECT_NE(refusal(given(2, 0, "nonsense")).find("is no address"), std::string::npos);
  EngineChoices alone;
  EXPECT_EQ(*join_processes(*with({}), "/nowhere", alone), nullptr);
}

}  // namespace
}  // namespace nibble
