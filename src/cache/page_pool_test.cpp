#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace nibble {
namespace {

TEST(PagePool, GrowsALeaseOrTakesNothing) {
  PagePool pool(4, 16);
  PageLease first, second;
  EXPECT_TRUE(pool.grow(first, 3));
  EXPECT_FALSE(pool.grow(second, 2));
  EXPECT_EQ(pool.free_count(), 1);
  EXPECT_TRUE(pool.grow(first, 2)) << "a lease that is large enough stays as it is";
  EXPECT_EQ(first.pages().size(), 3u);
  first.release();
  EXPECT_TRUE(pool.grow(second, 4));
}

TEST(PagePool, PagesForTokensRoundsUp) {
  PagePool pool(1, 16);
  EXPECT_EQ(pool.pages_for(0), 0);
  EXPECT_EQ(pool.pages_for(1), 1);
  EXPECT_EQ(pool.pages_for(16), 1);
  EXPECT_EQ(pool.pages_for(17), 2);
}

TEST(PagePool, NoPageIsHeldTwiceUnderRandomUse) {
  std::mt19937 random(7);
  PagePool pool(50, 16);
  std::vector<PageLease> leases(8);
  for (int step = 0; step < 5000; ++step) {
    PageLease& lease = leases[random() % leases.size()];
    if (random() % 3 == 0) {
      lease = PageLease();
    } else if (random() % 5 == 0) {
      lease = std::move(leases[random() % leases.size()]);
    } else {
      (void)pool.grow(lease, static_cast<int>(lease.pages().size() + random() % 5));
    }
    std::set<PageId> held;
    for (const PageLease& each : leases)
      for (PageId page : each.pages()) EXPECT_TRUE(held.insert(page).second) << page;
    ASSERT_EQ(static_cast<int>(held.size()) + pool.free_count(), 50);
  }
}

TEST(PagePoolDeathTest, ALeaseThatOutlivesItsPoolIsABrokenInvariant) {
  EXPECT_DEATH(
      {
        PageLease lease;
        PagePool pool(2, 16);
        (void)pool.grow(lease, 1);
      },
      "every lease is gone");
}

}  // namespace
}  // namespace nibble
