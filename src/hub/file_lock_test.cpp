#include "hub/file_lock.h"

#include <gtest/gtest.h>

#include "hub/hub_test_util.h"

namespace nibble {
namespace {

TEST(FileLockOfAFile, ExcludesOthersUntilItIsGivenBack) {
  const HubTestFolder folder;
  const std::filesystem::path path = folder.path() / "locks" / "a.lock";
  std::optional<FileLock> first = *FileLock::try_file(path);
  ASSERT_TRUE(first && first->held());
  EXPECT_FALSE(*FileLock::try_file(path));
  first.reset();
  EXPECT_TRUE(*FileLock::try_file(path));
}

TEST(FileLockOfAFile, OneThatWasDeletedIsNoLock) {
  const HubTestFolder folder;
  const std::filesystem::path path = folder.path() / "a.lock";
  const std::optional<FileLock> first = *FileLock::try_file(path);
  std::filesystem::remove(path);
  EXPECT_TRUE(*FileLock::try_file(path));
}

TEST(FileLockOfAFile, ALinkIsNotFollowed) {
  const HubTestFolder folder;
  folder.write("target", "x");
  folder.link("a.lock", "target");
  EXPECT_FALSE(FileLock::try_file(folder.path() / "a.lock").ok());
}

TEST(FileLockOfAFolder, UsersShareItAndARemovalDoesNot) {
  const HubTestFolder folder;
  std::optional<FileLock> one = FileLock::try_folder(folder.path(), true);
  std::optional<FileLock> two = FileLock::try_folder(folder.path(), true);
  ASSERT_TRUE(one && two && one->held());
  EXPECT_FALSE(FileLock::try_folder(folder.path(), false));
  one.reset();
  two.reset();
  std::optional<FileLock> removal = FileLock::try_folder(folder.path(), false);
  ASSERT_TRUE(removal);
  EXPECT_FALSE(FileLock::try_folder(folder.path(), true));
}

}  // namespace
}  // namespace nibble
