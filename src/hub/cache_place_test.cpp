#include "hub/cache_place.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace nibble {
namespace {

TEST(CachePlace, VariablesAndTheHomeFolderAreExpandedAsPythonDoes) {
  setenv("NIBBLE_TEST_DISK", "/mnt/disk", 1);
  HubEnvironment environment;
  environment.home = "/home/me";
  for (const auto& [given, expected] : {std::pair("$NIBBLE_TEST_DISK/hf", "/mnt/disk/hf"),
                                        {"${NIBBLE_TEST_DISK}2/hf", "/mnt/disk2/hf"},
                                        {"/a/$NIBBLE_TEST_UNSET/b", "/a/$NIBBLE_TEST_UNSET/b"},
                                        {"/a/${NIBBLE_TEST_DISK", "/a/${NIBBLE_TEST_DISK"},
                                        {"/a$", "/a$"},
                                        {"~/hf", "/home/me/hf"},
                                        {"~other/hf", "~other/hf"}}) {
    environment.hf_hub_cache = given;
    EXPECT_EQ(hub_cache(environment), expected) << given;
    environment.hf_hub_cache.reset();
    environment.hf_home = given;
    EXPECT_EQ(hub_cache(environment), std::string(expected) + "/hub") << given;
    environment.hf_home.reset();
  }
  unsetenv("NIBBLE_TEST_DISK");
}

TEST(CachePlace, ANameHasAnOwnerAndMayHaveARevision) {
  EXPECT_EQ(parse_hub_name("openai/gpt-oss-20b")->revision, "main");
  EXPECT_EQ(parse_hub_name("openai/gpt-oss-20b")->text(), "openai/gpt-oss-20b");
  EXPECT_EQ(parse_hub_name("a/b@refs/pr/1")->revision, "refs/pr/1");
  EXPECT_EQ(parse_hub_name("a/b@v1.0+x")->text(), "a/b@v1.0+x");
  for (const char* text : {"",         "/",        "a",      "a/",        "/b",       "a/b/c",      "a/..",
                           "../b",     "a/b--c",   "-a/b",   "a/b.",      "a b/c",    "a/b@",       "a/b@-x",
                           "a/b@x//y", "a/b@/x",   "a/b@x/", "a/b@..",    "a/b@x..y", "a/b@x.lock", "a/b@x@y",
                           "a/b@x y",  "a/b@x%2f", "a/b\n",  "a/\xc3\xa4"}) {
    EXPECT_FALSE(parse_hub_name(text)) << text;
  }
  EXPECT_FALSE(parse_hub_name("a/" + std::string(95, 'b')));
  EXPECT_FALSE(parse_hub_name("a/b@" + std::string(201, 'b')));
}

TEST(CachePlace, AFoldersNameAndAModelsNameAreOneToOne) {
  for (const char* name : {"openai/gpt-oss-20b", "a-b/c_d.e", "a/b"}) {
    EXPECT_EQ(name_of_folder(RepositoryPaths("/cache", name).folder.filename().native()), name);
  }
  for (const char* folder : {"models--a", "models--a--b--c", "datasets--a--b", "models----b", "blobs", ""})
    EXPECT_FALSE(name_of_folder(folder)) << folder;
}

}  // namespace
}  // namespace nibble
