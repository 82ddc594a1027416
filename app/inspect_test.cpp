#include <gtest/gtest.h>

#include <string>

#include "app/cli_test_util.h"
#include "app/commands.h"
#include "base/json.h"
#include "checkpoint/test_checkpoint.h"

namespace nibble {
namespace {

Outcome inspect(const std::filesystem::path& folder, bool json) {
  const Command* const commands[] = {&inspect_command};
  const std::string& model = folder.native();
  std::vector<std::string_view> arguments = {"inspect", model};
  if (json) arguments.emplace_back("--json");
  return run_caught(commands, arguments);
}

TEST(InspectCommand, ShowsAModelAndWhatATokenReads) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  const Outcome outcome = inspect(checkpoint.path(), false);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* line : {
           "\nlayers         2 of width 64\n",
           "\nattention      4 heads of 16, 2 key-value heads; a window of 8 on 1 of 2 layers\n",
           "\nexperts        4 of width 32, 2 a token\n",
           "\nparameters     88.3 thousand\n",
           "\nbytes          104 kB\n",
           "\na token reads  ",
           "\nmxfp4                 8            49152            26112\n",
           "mlp.experts.down_proj_scales    mxfp4 scales [4, 64, 1]                          256\n",
           "\nproblems       none\n",
       }) {
    EXPECT_NE(outcome.out.find(line), std::string::npos) << line << outcome.out;
  }
}

TEST(InspectCommand, JsonHoldsTheSame) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  const Outcome outcome = inspect(checkpoint.path(), true);
  EXPECT_EQ(outcome.code, 0);
  const JsonDocument document = *JsonDocument::parse(outcome.out);
  const JsonValue root = document.root();
  EXPECT_EQ(root.find("config")->find("num_local_experts")->as_integer(), 4);
  EXPECT_EQ(root.find("config")->find("yarn")->find("factor")->as_double(), 32);
  EXPECT_EQ(root.find("tensors")->size(), checkpoint.tensors.size());
  EXPECT_EQ(root.find("formats")->size(), 2u);
  EXPECT_EQ(root.find("total")->find("parameters")->as_integer(), 88272);
  EXPECT_EQ(root.find("problem_count")->as_integer(), 0);
  EXPECT_EQ(root.find("problems")->size(), 0u);
  EXPECT_TRUE(root.find("active_bytes_per_token")->is_integer());
}

TEST(InspectCommand, ABrokenModelExitsWith3AndListsEveryProblem) {
  TestCheckpoint checkpoint;
  checkpoint.remove_tensor("model.norm.weight");
  checkpoint.tensors.push_back({"a\\u001b[2J", "BF16", {1}, std::string(2, '\0')});
  checkpoint.write();
  const Outcome human = inspect(checkpoint.path(), false);
  EXPECT_EQ(human.code, 3);
  EXPECT_EQ(human.err, "error: 2 problems, the first: tensor \"model.norm.weight\" is missing\n");
  EXPECT_NE(
      human.out.find(
          "\nproblems       2\n  tensor \"model.norm.weight\" is missing\n  tensor \"a\\x1b[2J\" is extra"),
      std::string::npos);
  EXPECT_EQ(human.out.find('\x1b'), std::string::npos) << "a name cannot drive the terminal";
  const Outcome json = inspect(checkpoint.path(), true);
  EXPECT_EQ(json.code, 3);
  const JsonDocument document = *JsonDocument::parse(json.out);
  EXPECT_EQ(document.root().find("problem_count")->as_integer(), 2);
}

TEST(InspectCommand, AFolderWithoutAModelExitsWith3) {
  const TestFolder folder;
  const Outcome outcome = inspect(folder.path(), true);
  EXPECT_EQ(outcome.code, 3);
  EXPECT_TRUE(JsonDocument::parse(outcome.out)->root().find("config")->is_null());
  const Outcome missing = inspect(folder.path() / "none", false);
  EXPECT_EQ(missing.code, 3);
  EXPECT_EQ(missing.out, "");
  EXPECT_TRUE(missing.err.starts_with("error: there is no model at ")) << missing.err;
}

}  // namespace
}  // namespace nibble
