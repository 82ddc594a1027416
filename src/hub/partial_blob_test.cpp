#include "hub/partial_blob.h"

#include <gtest/gtest.h>

#include <string>

#include "hub/digest.h"
#include "hub/hub_test_util.h"

namespace nibble {
namespace {

constexpr std::int64_t kBlock = PartialBlob::kBlock;

HubFile file_of(const std::string& content) {
  Digest digest = Digest::sha256();
  digest.update(content.data(), content.size());
  return {
      .path = "x", .size = static_cast<std::int64_t>(content.size()), .blob = digest.hex(), .large = true};
}

// As `printf 'hello\n' | sha256sum` and `printf 'hello\n' | git hash-object --stdin` have them.
TEST(Digest, IsWhatOthersCompute) {
  Digest sha256 = Digest::sha256();
  sha256.update("hello\n", 6);
  EXPECT_EQ(sha256.hex(), "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
  Digest git = Digest::git_blob(6);
  git.update("hel", 3);
  git.update("lo\n", 3);
  EXPECT_EQ(git.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(Digest::git_blob(0).hex(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

class PartialBlobs : public testing::Test {
 protected:
  PartialBlobs() : content(static_cast<std::size_t>(2 * kBlock + 10), 'x'), file(file_of(content)) {}

  PartialBlob open() const { return *PartialBlob::open(folder.path(), file); }
  void put(const PartialBlob& blob, std::int64_t block) const {
    const std::int64_t at = block * kBlock;
    ASSERT_TRUE(blob.write(at, std::string_view(content).substr(static_cast<std::size_t>(at), kBlock)).ok());
    ASSERT_TRUE(blob.mark(block).ok());
  }

  HubTestFolder folder;
  std::string content;
  HubFile file;
};

TEST_F(PartialBlobs, RememberTheirBlocksOverRuns) {
  {
    const PartialBlob blob = open();
    EXPECT_FALSE(blob.resumed());
    put(blob, 1);
    ASSERT_TRUE(blob.write(0, "unmarked").ok());
  }
  PartialBlob blob = open();
  EXPECT_TRUE(blob.resumed());
  EXPECT_EQ(blob.done(), (std::vector<char>{0, 1, 0}));
  EXPECT_FALSE(has_blob(folder.path(), file));
  put(blob, 0);
  put(blob, 2);
  EXPECT_TRUE(*blob.is_right());
  ASSERT_TRUE(blob.finish().ok());
  EXPECT_TRUE(has_blob(folder.path(), file) && *blob_is_right(folder.path(), file));
  EXPECT_EQ(folder.read(file.blob), content);
  EXPECT_FALSE(folder.has(file.blob + ".nibble.incomplete"));
}

TEST_F(PartialBlobs, OfAnotherShapeBeginAnew) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, content.size() + 2, content.size() + 4}) {
    folder.write(file.blob + ".nibble.incomplete", std::string(size, '\1'));
    const PartialBlob blob = open();
    EXPECT_FALSE(blob.resumed()) << size;
    EXPECT_EQ(blob.done(), (std::vector<char>{0, 0, 0})) << size;
  }
}

// Killed behind the cut and before the new name.
TEST_F(PartialBlobs, ThatLackTheirNameAloneAreWhole) {
  folder.write(file.blob + ".nibble.incomplete", content);
  PartialBlob blob = open();
  EXPECT_EQ(blob.done(), (std::vector<char>{1, 1, 1}));
  EXPECT_TRUE(*blob.is_right());
}

TEST_F(PartialBlobs, WithOneWrongByteAreNotRight) {
  PartialBlob blob = open();
  for (std::int64_t block = 0; block < 3; ++block) put(blob, block);
  ASSERT_TRUE(blob.write(kBlock + 3, "y").ok());
  EXPECT_FALSE(*blob.is_right());
  ASSERT_TRUE(blob.restart().ok());
  EXPECT_EQ(open().done(), (std::vector<char>{0, 0, 0}));
}

TEST_F(PartialBlobs, OfNoBytesAreRightAtOnce) {
  file = file_of("");
  PartialBlob blob = open();
  EXPECT_TRUE(blob.done().empty() && *blob.is_right());
  ASSERT_TRUE(blob.finish().ok());
  EXPECT_TRUE(has_blob(folder.path(), file));
}

TEST_F(PartialBlobs, AreNoLinksToElsewhere) {
  folder.write("elsewhere", "precious");
  folder.link(file.blob + ".nibble.incomplete", "elsewhere");
  EXPECT_FALSE(PartialBlob::open(folder.path(), file).ok());
  EXPECT_EQ(folder.read("elsewhere"), "precious");
}

}  // namespace
}  // namespace nibble
