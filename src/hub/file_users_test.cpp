#include "hub/file_users.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hub/hub_test_util.h"

namespace nibble {
namespace {

TEST(FileUsers, AMappedFileHasItsProcess) {
  const HubTestFolder folder;
  folder.write("mapped file", std::string(4096, 'x'));
  folder.write("other", "x");
  folder.link("link", "mapped file");
  const int fd = open((folder.path() / "mapped file").c_str(), O_RDONLY);
  void* const mapping = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  ASSERT_NE(mapping, MAP_FAILED);
  const std::string self = "(process " + std::to_string(getpid()) + ")";
  EXPECT_NE(process_that_maps({folder.path() / "absent", folder.path() / "link"}).value_or("").find(self),
            std::string::npos);
  EXPECT_FALSE(process_that_maps({folder.path() / "other"}));
  munmap(mapping, 4096);
  EXPECT_FALSE(process_that_maps({folder.path() / "mapped file"}));
}

}  // namespace
}  // namespace nibble
