#include "server/gate_keys.h"

#include <gtest/gtest.h>

#include <fstream>

namespace nibble {
namespace {

TEST(GateKeys, AFileNamesItsKeys) {
  const Result<ApiKeys> keys =
      ApiKeys::parse("# ours\r\n\nalice: sk-1\r\n  team.b_2-x :\tsk-2  \nsk-3\n#sk-4", "keys");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->size(), 3u);
  EXPECT_EQ(keys->find("sk-1"), "alice");
  EXPECT_EQ(keys->find("sk-2"), "team.b_2-x");
  EXPECT_EQ(keys->find("sk-3"), "line-5");
  for (const char* wrong : {"", "sk-4", "sk-", "sk-11", "sk-1sk-1", "alice", "alice: sk-1", "SK-1"})
    EXPECT_FALSE(keys->find(wrong)) << wrong;
}

TEST(GateKeys, AnErrorNamesItsLineAndShowsNoKey) {
  for (const auto& [text, line] :
       std::vector<std::pair<std::string, std::string>>{{"a: sk-secret\nb: sk secret", "line 2"},
                                                        {"a:", "line 1"},
                                                        {"\n\n: sk-secret", "line 3"},
                                                        {"a b: sk-secret", "line 1"},
                                                        {"a: sk-secret\na: sk-other", "line 2"},
                                                        {"a: sk-secret\nb: sk-secret", "line 2"},
                                                        {"a: sk-secret:x", "line 1"},
                                                        {"a: sk-secret\xff", "line 1"},
                                                        {std::string("sk-secret\0", 10), "line 1"},
                                                        {std::string(65, 'a') + ": sk-secret", "line 1"}}) {
    const Result<ApiKeys> keys = ApiKeys::parse(text, "keys");
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_NE(keys.status().message().find(line), std::string::npos) << keys.status().message();
    EXPECT_EQ(keys.status().message().find("sk-secret"), std::string::npos) << keys.status().message();
  }
}

TEST(GateKeys, AFileWithoutKeysIsNoOpenDoor) {
  for (const char* text : {"", "\n", "# nothing\n"}) EXPECT_FALSE(ApiKeys::parse(text, "keys").ok()) << text;
}

TEST(GateKeys, MoreThanEveryRequestShouldBeComparedWithAreRefused) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "key-" + std::to_string(i) + "\n";
  EXPECT_TRUE(ApiKeys::parse(text, "keys").ok());
  EXPECT_FALSE(ApiKeys::parse(text + "one-more\n", "keys").ok());
}

TEST(GateKeys, TheSingleKeyStandsBesideThoseOfTheFile) {
  const std::string file = testing::TempDir() + "/keys";
  std::ofstream(file) << "alice: sk-1\n";
  const Result<ApiKeys> both = ApiKeys::load("mine", file);
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->find("mine"), "api-key");
  EXPECT_EQ(both->find("sk-1"), "alice");
  EXPECT_FALSE(ApiKeys::load("", "").value().asked_for());
  EXPECT_FALSE(ApiKeys::load("mine", file + "-not-there").ok());
}

}  // namespace
}  // namespace nibble
