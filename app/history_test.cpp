#include "app/history.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

namespace nibble {
namespace {

class HistoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "nibble_history_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path file() const { return folder_ / "state/nibble/history"; }

  std::filesystem::path folder_;
};

History open_history(const std::filesystem::path& file) {
  Result<History> history = History::open(file);
  EXPECT_TRUE(history.ok()) << history.status().message();
  return std::move(history).value();
}

TEST_F(HistoryTest, KeepsEntriesBetweenSessionsLineBreaksIncluded) {
  {
    History history = open_history(file());
    ASSERT_TRUE(history.add("tell me a story").ok());
    ASSERT_TRUE(history.add("two\nlines \\n and a backslash \\").ok());
  }
  EXPECT_EQ(open_history(file()).entries(),
            (std::vector<std::string>{"tell me a story", "two\nlines \\n and a backslash \\"}));
}

TEST_F(HistoryTest, OnlyTheOwnerMayReadTheFile) {
  History history = open_history(file());
  ASSERT_TRUE(history.add("secret").ok());
  struct stat status = {};
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(HistoryTest, BlankAndRepeatedEntriesAreNotKept) {
  History history = open_history(file());
  for (const char* entry : {"a", "a", "", "  ", "b", "a"}) ASSERT_TRUE(history.add(entry).ok());
  EXPECT_EQ(history.entries(), (std::vector<std::string>{"a", "b", "a"}));
}

TEST_F(HistoryTest, StaysBounded) {
  std::filesystem::create_directories(file().parent_path());
  {
    std::ofstream out(file());
    for (std::size_t i = 0; i < 3 * History::kMost; ++i) out << "entry " << i << "\n";
  }
  History history = open_history(file());
  EXPECT_EQ(history.entries().size(), History::kMost);
  EXPECT_EQ(history.entries().back(), "entry " + std::to_string(3 * History::kMost - 1));
  // Opening it again reads what the first opening trimmed.
  std::size_t lines = 0;
  std::ifstream in(file());
  for (std::string line; std::getline(in, line);) ++lines;
  EXPECT_EQ(lines, History::kMost);
}

TEST_F(HistoryTest, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_ / "state") << "a file in the way";
  const Result<History> history = History::open(file());
  ASSERT_FALSE(history.ok());
  EXPECT_NE(history.status().message().find("history file"), std::string::npos);
}

}  // namespace
}  // namespace nibble
