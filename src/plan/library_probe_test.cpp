#include "plan/library_probe.h"

#include <gtest/gtest.h>

#include "plan/gates.h"

namespace nibble {
namespace {

LibrarySpec stand_in(const std::string& way) {
  return {.name = "nccl",
          .files = {std::string(NIBBLE_STAND_INS) + "/libstand_in_" + way + ".so"},
          .version_symbol = "ncclGetVersion",
          .version_call = VersionCall::ten_thousands,
          .symbols = {"ncclAllReduce"},
          .size_symbol = "stand_in_config_size",
          .size = 64,
          .probe_symbol = "stand_in_probe"};
}

GateResult gate_of(const std::string& way) {
  return check_gate(*find_gate("nccl"), probe_library(stand_in(way)));
}

TEST(LibraryProbe, OneThatIsAsItShouldBeIsOpen) {
  const FoundLibrary found = probe_library(stand_in("good"));
  EXPECT_EQ(found.version, "2.28.9");
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(gate_of("good").status, GateStatus::ok);
}

TEST(LibraryProbe, EachWayToBeWrongIsNamedWithWhatToDo) {
  const struct {
    const char* way;
    GateStatus status;
    const char* words;
  } cases[] = {
      {"too_old", GateStatus::too_old, "2.18.5 is too old: it must be 2.27.7 or later, up to 2.28"},
      {"too_new", GateStatus::too_new, "2.30.1 is newer than what nibble was tested with"},
      {"known_bad", GateStatus::known_bad,
       "2.28.3 is known to be bad: its symmetric kernels can corrupt small messages"},
      {"missing_symbol", GateStatus::incompatible, "it has no symbol ncclAllReduce"},
      {"other_size", GateStatus::incompatible,
       "its struct has 72 bytes (stand_in_config_size), this program's 64"},
      {"other_signature", GateStatus::incompatible, "wrote no version: its signature is another one"},
      {"crashes", GateStatus::incompatible, "it crashed when probed (signal 11)"},
      {"exits", GateStatus::incompatible, "it ended the process when probed (code 3)"},
      {"fails", GateStatus::incompatible, "stand_in_probe failed with code 7"},
      {"not_there", GateStatus::missing, "nccl is missing"},
  };
  for (const auto& each : cases) {
    const GateResult result = gate_of(each.way);
    EXPECT_EQ(result.status, each.status) << each.way << ": " << gate_status_name(result.status);
    EXPECT_NE(result.why.find(each.words), std::string::npos) << each.way << ": " << result.why;
    EXPECT_NE(result.why.find("install NCCL"), std::string::npos) << each.way << ": " << result.why;
    EXPECT_FALSE(result.open());
  }
}

TEST(LibraryProbe, OneThatHangsCostsItsTimeAndIsIncompatible) {
  using namespace std::chrono_literals;
  const FoundLibrary works = probe_library(stand_in("hangs"), {.cpu = 100ms, .wall = 1h});
  EXPECT_EQ(works.problem, "it did not answer within 100 ms of a CPU's time");
  const FoundLibrary waits = probe_library(stand_in("waits"), {.cpu = 1h, .wall = 100ms});
  EXPECT_EQ(waits.problem, "it did not answer within 100 ms");
  EXPECT_EQ(check_gate(*find_gate("nccl"), waits).status, GateStatus::incompatible);
}

// As on a machine whose CPUs are busy with something else: the clock runs on, and the library had none of it.
TEST(LibraryProbe, OneThatHadToWaitForItsTurnIsNoneThatHangs) {
  using namespace std::chrono_literals;
  const FoundLibrary found = probe_library(stand_in("late"), {.cpu = 200ms, .wall = 1min});
  EXPECT_EQ(found.version, "2.28.9") << found.problem;
}

TEST(LibraryProbe, AFileThatIsNoLibraryIsNotMissing) {
  LibrarySpec spec = stand_in("good");
  spec.files = {std::string(NIBBLE_SOURCE_DIR) + "/README.md"};
  EXPECT_NE(probe_library(spec).problem.find("it does not open"), std::string::npos);
}

TEST(LibraryProbe, EveryLibraryHasAGate) {
  for (const LibrarySpec& spec : library_specs()) EXPECT_NE(find_gate(spec.name), nullptr) << spec.name;
}

}  // namespace
}  // namespace nibble
