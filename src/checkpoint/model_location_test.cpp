#include "checkpoint/model_location.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "checkpoint/test_checkpoint.h"

namespace nibble {
namespace {

constexpr const char* commit = "6cee5e81ee83917806bbde320786a8fb61efebee";

// A folder with a Hugging Face cache at hub/ holding openai/gpt-oss-20b.
class ModelLocationTest : public testing::Test {
 protected:
  ModelLocationTest() {
    add_model("hub");
    environment.hf_hub_cache = (root() / "hub").native();
    environment.executable = root() / "build" / "release" / "nibble";
  }

  void add_model(const std::string& hub) {
    const std::string repository = hub + "/models--openai--gpt-oss-20b/";
    folder.write(repository + "refs/main", commit);
    folder.write(repository + "snapshots/" + commit + "/config.json", "{}");
  }
  std::filesystem::path snapshot(const std::string& hub) const {
    return root() / hub / "models--openai--gpt-oss-20b" / "snapshots" / commit;
  }
  std::filesystem::path root() const { return folder.path(); }
  std::filesystem::path found() const {
    const Result<ModelLocation> location = locate_model("openai/gpt-oss-20b", environment);
    return location.ok() ? location->folder : std::filesystem::path(location.status().message());
  }
  std::string refused(const std::string& model) const {
    const Result<ModelLocation> location = locate_model(model, environment);
    EXPECT_FALSE(location.ok());
    return location.status().message();
  }

  TestFolder folder;
  LocationEnvironment environment;
};

TEST_F(ModelLocationTest, ADirectoryIsItself) {
  folder.write("mine/config.json", "{}");
  const ModelLocation location = *locate_model((root() / "mine").native() + "/", environment);
  EXPECT_EQ(location.folder, root() / "mine/");
  EXPECT_EQ(location.name, "mine");
}

TEST_F(ModelLocationTest, AFileIsNoModel) {
  folder.write("mine/model.safetensors", "");
  EXPECT_EQ(refused((root() / "mine/model.safetensors").native()),
            "\"" + (root() / "mine/model.safetensors").native() +
                "\" is a file; MODEL is the folder that holds config.json and the weights");
}

TEST_F(ModelLocationTest, ANameIsTheSnapshotThatRefsMainNames) {
  const ModelLocation location = *locate_model("openai/gpt-oss-20b", environment);
  EXPECT_EQ(location.folder, snapshot("hub"));
  EXPECT_EQ(location.name, "openai/gpt-oss-20b");
}

// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub
TEST_F(ModelLocationTest, TheCacheIsWhereHuggingFacePutsIt) {
  add_model("old");
  add_model("hf/hub");
  add_model("xdg/huggingface/hub");
  add_model("home/.cache/huggingface/hub");
  environment.huggingface_hub_cache = (root() / "old").native();
  environment.hf_home = (root() / "hf").native();
  environment.xdg_cache_home = (root() / "xdg").native();
  environment.home = (root() / "home").native();
  EXPECT_EQ(found(), snapshot("hub"));
  environment.hf_hub_cache.reset();
  EXPECT_EQ(found(), snapshot("old"));
  environment.huggingface_hub_cache.reset();
  EXPECT_EQ(found(), snapshot("hf/hub"));
  environment.hf_home.reset();
  EXPECT_EQ(found(), snapshot("xdg/huggingface/hub"));
  environment.xdg_cache_home.reset();
  EXPECT_EQ(found(), snapshot("home/.cache/huggingface/hub"));
  environment.hf_home = "~/.cache/huggingface";
  EXPECT_EQ(found(), snapshot("home/.cache/huggingface/hub"));
  environment.hf_home.reset();
  environment.home.reset();
  EXPECT_EQ(refused("openai/gpt-oss-20b"),
            "there is no model \"openai/gpt-oss-20b\" here, and no Hugging Face cache to look in: none of "
            "HF_HUB_CACHE, "
            "HF_HOME, XDG_CACHE_HOME and HOME is set; set one, or give a directory");
}

TEST_F(ModelLocationTest, ADirectoryWinsOverACachedName) {
  folder.write("openai/gpt-oss-20b/config.json", "{}");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(root());
  EXPECT_EQ(found(), "openai/gpt-oss-20b");
  std::filesystem::current_path(before);
}

TEST_F(ModelLocationTest, AMissingModelSaysWhereItLookedAndWhatWouldWork) {
  EXPECT_EQ(refused("openai/gpt-oss-120b"),
            "model \"openai/gpt-oss-120b\" is neither a directory nor in the Hugging Face cache \"" +
                (root() / "hub").native() +
                "\"; get it with \"nibble pull openai/gpt-oss-120b\", or give a directory");
  environment.hf_hub_offline = true;
  EXPECT_NE(refused("openai/gpt-oss-120b").find("(with HF_HUB_OFFLINE unset)"), std::string::npos);
}

TEST_F(ModelLocationTest, AnIncompleteDownloadIsNamed) {
  folder.write("hub/models--a--b/refs/main", commit);
  EXPECT_TRUE(
      refused("a/b").starts_with("the download of \"a/b\" is incomplete: there is no config.json in "));
}

TEST_F(ModelLocationTest, WithoutRefsMainTheOnlySnapshotIsTaken) {
  std::filesystem::remove(root() / "hub/models--openai--gpt-oss-20b/refs/main");
  EXPECT_EQ(found(), snapshot("hub"));
  folder.write("hub/models--openai--gpt-oss-20b/snapshots/0123/config.json", "{}");
  EXPECT_EQ(refused("openai/gpt-oss-20b"),
            "the cache of \"openai/gpt-oss-20b\" at \"" +
                (root() / "hub/models--openai--gpt-oss-20b").native() +
                "\" has no refs/main and 2 snapshots; give the folder of a snapshot as MODEL");
}

TEST_F(ModelLocationTest, ARevisionIsAReferenceOrACommit) {
  const std::string other(40, '7');
  const std::string repository = "hub/models--openai--gpt-oss-20b/";
  folder.write(repository + "refs/refs/pr/3", other);
  folder.write(repository + "snapshots/" + other + "/config.json", "{}");
  for (const std::string& revision : {std::string("refs/pr/3"), other}) {
    const ModelLocation location = *locate_model("openai/gpt-oss-20b@" + revision, environment);
    EXPECT_EQ(location.folder, root() / repository / "snapshots" / other);
    EXPECT_EQ(location.name, "openai/gpt-oss-20b@" + revision);
  }
  EXPECT_EQ(refused("openai/gpt-oss-20b@v2"),
            "the cache has no revision \"v2\" of \"openai/gpt-oss-20b\"; get it with \"nibble pull "
            "openai/gpt-oss-20b@v2\", or give a directory");
}

TEST_F(ModelLocationTest, NamesAndReferencesCannotLeaveTheCache) {
  folder.write("hub/models--a--b/refs/main", "../../../../etc");
  EXPECT_EQ(refused("a/b"), "\"" + (root() / "hub/models--a--b/refs/main").native() +
                                "\" holds \"../../../../etc\", not a commit");
  for (const char* name : {"../nibble-has-no-such-model", "a/b@../x", "a/b@", "a/b@x/.lock", "a--b/c", "a/..",
                           "a/b/c", "a/", "/b", "a/b\x1b[31m", "nothing"}) {
    EXPECT_TRUE(refused(name).starts_with("there is no model at ")) << name;
  }
  EXPECT_NE(refused("a\x1b[31m").find("\"a\\x1b[31m\""), std::string::npos);
}

TEST_F(ModelLocationTest, TheDemoLiesBesideTheProgramInASourceTreeAndInstalled) {
  EXPECT_EQ(refused("demo"), "the bundled model is in none of \"" +
                                 (root() / "build/release/models/demo").native() + "\", \"" +
                                 (root() / "build/share/nibble/models/demo").native() + "\", \"" +
                                 (root() / "models/demo").native() +
                                 "\"; run nibble from its build or installation folder, or give the model's "
                                 "directory");
  folder.write("models/demo/config.json", "{}");
  EXPECT_EQ(locate_model("demo", environment)->folder, root() / "models/demo");
  environment.executable = root() / "usr/bin/nibble";
  folder.write("usr/share/nibble/models/demo/config.json", "{}");
  EXPECT_EQ(locate_model("demo", environment)->folder, root() / "usr/share/nibble/models/demo");
  EXPECT_EQ(locate_model("demo", environment)->name, "demo");
  environment.executable = root() / "bundle/nibble";
  folder.write("bundle/models/demo/config.json", "{}");
  EXPECT_EQ(locate_model("demo", environment)->folder, root() / "bundle/models/demo");
}

TEST(LocationEnvironment, ReadsTheVariablesAndTakesEmptyOnesAsUnset) {
  setenv("HF_HOME", "/some/where", 1);
  setenv("HF_HUB_CACHE", "", 1);
  setenv("HF_HUB_OFFLINE", "true", 1);
  LocationEnvironment environment = LocationEnvironment::of_this_process();
  EXPECT_EQ(environment.hf_home, "/some/where");
  EXPECT_EQ(environment.hf_hub_cache, std::nullopt);
  EXPECT_TRUE(environment.hf_hub_offline);
  EXPECT_EQ(environment.executable.filename(), program_invocation_short_name);
  setenv("HF_HUB_OFFLINE", "0", 1);
  EXPECT_FALSE(LocationEnvironment::of_this_process().hf_hub_offline);
  unsetenv("HF_HOME");
  unsetenv("HF_HUB_CACHE");
  unsetenv("HF_HUB_OFFLINE");
}

}  // namespace
}  // namespace nibble
