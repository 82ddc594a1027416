#include "hub/cache_contents.h"

#include <gtest/gtest.h>

#include <string>

#include "hub/hub_test_util.h"

namespace nibble {
namespace {

const std::string kOld(40, '1');
const std::string kNew(40, '2');
const std::string kModel = "models--org--name/";

// Two revisions that share the blob "shared": old has also "a", new has also "bb"; main names new, and the
// tag v1 old. One download was interrupted.
class CacheContents : public testing::Test {
 protected:
  CacheContents() {
    folder.write(kModel + "blobs/shared", "12345678");
    folder.write(kModel + "blobs/a", "1");
    folder.write(kModel + "blobs/bb", "22");
    folder.write(kModel + "blobs/c.nibble.incomplete", "333");
    folder.write(kModel + "refs/main", kNew);
    folder.write(kModel + "refs/tags/v1", kOld + "\n");
    for (const auto& [commit, own] : {std::pair(kOld, "a"), {kNew, "bb"}}) {
      folder.link(kModel + "snapshots/" + commit + "/config.json", std::string("../../blobs/") + own);
      folder.link(kModel + "snapshots/" + commit + "/deep/model.safetensors", "../../../blobs/shared");
    }
    folder.write(".locks/models--org--name/a.lock", "");
    folder.write("datasets--org--name/blobs/x", "x");
    folder.write("version.txt", "1");
  }

  CachedRepository scan() const { return **scan_repository(folder.path(), "org/name"); }
  bool has(const std::string& name) const { return folder.has(kModel + name); }

  HubTestFolder folder;
};

TEST_F(CacheContents, RevisionsKnowTheirReferencesAndBytes) {
  const std::vector<CachedRepository> found = *scan_cache(folder.path());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "org/name");
  ASSERT_EQ(found[0].revisions.size(), 2u);
  EXPECT_EQ(found[0].revisions[0].commit, kOld);
  EXPECT_EQ(found[0].revisions[0].refs, std::vector<std::string>{"tags/v1"});
  EXPECT_EQ(found[0].revisions[0].bytes, 9);
  EXPECT_EQ(found[0].revisions[1].refs, std::vector<std::string>{"main"});
  EXPECT_EQ(found[0].revisions[1].bytes, 10);
  EXPECT_EQ(found[0].bytes(), 11);
  EXPECT_EQ(found[0].unfinished_bytes(), 3);
}

TEST_F(CacheContents, ARevisionIsFoundByReferenceCommitOrItsBeginning) {
  const CachedRepository repository = scan();
  EXPECT_EQ(*find_revision(repository, "tags/v1"), &repository.revisions[0]);
  EXPECT_EQ(*find_revision(repository, kNew), &repository.revisions[1]);
  EXPECT_EQ(*find_revision(repository, "2222"), &repository.revisions[1]);
  EXPECT_EQ(*find_revision(repository, "222"), nullptr);
  EXPECT_EQ(*find_revision(repository, "v2"), nullptr);
}

TEST_F(CacheContents, ARemovedRevisionLeavesWhatOthersUse) {
  const CachedRepository repository = scan();
  const Removal removal = plan_removal(repository, &repository.revisions[0]);
  EXPECT_EQ(removal.bytes, 1);
  EXPECT_TRUE(removal.folder.empty());
  ASSERT_TRUE(remove(removal).ok());
  EXPECT_FALSE(has("refs/tags/v1") || has("snapshots/" + kOld) || has("blobs/a"));
  EXPECT_TRUE(has("refs/main") && has("snapshots/" + kNew + "/deep/model.safetensors") && has("blobs/bb"));
  EXPECT_TRUE(has("blobs/c.nibble.incomplete"));
}

TEST_F(CacheContents, TheLastRevisionTakesAllWithIt) {
  CachedRepository repository = scan();
  ASSERT_TRUE(remove(plan_removal(repository, &repository.revisions[0])).ok());
  repository = scan();
  const Removal removal = plan_removal(repository, &repository.revisions[0]);
  EXPECT_EQ(removal.bytes, 13);
  ASSERT_TRUE(remove(removal).ok());
  EXPECT_FALSE(folder.has("models--org--name") || folder.has(".locks"));
  EXPECT_TRUE(folder.has("datasets--org--name/blobs/x"));
}

TEST_F(CacheContents, ALinkThatLeadsNowhereIsAnIncompleteRevision) {
  std::filesystem::remove(folder.path() / (kModel + "blobs/bb"));
  const CachedRepository repository = scan();
  EXPECT_TRUE(repository.revisions[0].whole);
  EXPECT_FALSE(repository.revisions[1].whole);
}

TEST_F(CacheContents, ABlobInTheSharedStoreFreesNothing) {
  folder.write("blobs/ff/ffff", "55555");
  folder.link(kModel + "blobs/s", "../../blobs/ff/ffff");
  folder.link(kModel + "snapshots/" + kOld + "/model.safetensors", "../../blobs/s");
  const CachedRepository repository = scan();
  EXPECT_EQ(repository.revisions[0].bytes, 14);
  const Removal removal = plan_removal(repository, nullptr);
  EXPECT_EQ(removal.bytes, 14);
  EXPECT_EQ(removal.shared_bytes, 5);
  ASSERT_TRUE(remove(removal).ok());
  EXPECT_TRUE(folder.has("blobs/ff/ffff"));
}

// A snapshot's link is never followed out of the cache by a removal.
TEST_F(CacheContents, WhatALinkPointsToOutsideStays) {
  HubTestFolder outside;
  outside.write("precious", "x");
  folder.link(kModel + "snapshots/" + kOld + "/linked", outside.path().native());
  folder.link(kModel + "blobs/linked", outside.path() / "precious");
  ASSERT_TRUE(remove(plan_removal(scan(), nullptr)).ok());
  EXPECT_TRUE(outside.has("precious"));
}

TEST(CacheContentsOfNothing, IsEmpty) {
  EXPECT_TRUE(scan_cache("/no/such/cache")->empty());
  EXPECT_FALSE(*scan_repository("/no/such/cache", "a/b"));
}

}  // namespace
}  // namespace nibble
