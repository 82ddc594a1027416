#include "cache/page_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

namespace nibble {
namespace {

constexpr int page = 4;  // tokens

// A sequence of tokens with what a scheduler would keep of it.
struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<PageHash> hashes;
  Salt salt;
  SequencePages pages;
  int stored = 0;

  Sequence(const PageCache& cache, std::vector<TokenId> given, const std::string& salted = "")
      : tokens(std::move(given)),
        salt(salted.empty() ? nullptr : std::make_shared<const std::string>(salted)) {
    for (int i = 0; i < static_cast<int>(tokens.size()) / page; ++i)
      hashes.push_back(cache.hash(tokens, i, i == 0 ? cache.root_hash(salt) : hashes.back()));
  }
  TokenPrefix prefix() const { return {tokens, hashes, salt}; }
  int size() const { return static_cast<int>(tokens.size()); }

  int adopt(PageCache& cache) { return stored = cache.adopt(pages, prefix(), size() - 1); }
  bool compute(PageCache& cache, int end) {
    if (!cache.grow(pages, end, end)) return false;
    cache.store(pages, prefix(), end);
    cache.leave_window(pages, end);
    stored = end;
    return true;
  }
};

std::vector<TokenId> counting(int first, int count) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

PageCacheOptions small(int full, int windowed = 0) {
  return {.page_size = page, .page_count = {full, windowed}, .window = windowed > 0 ? 6 : 0, .key = {1, 2}};
}

TEST(PageCache, WholePagesServeWhoBeginsAlikeAndTheLastTokenIsAlwaysComputed) {
  PageCache cache(small(16));
  Sequence first(cache, counting(0, 11));
  EXPECT_EQ(first.adopt(cache), 0);
  ASSERT_TRUE(first.compute(cache, 11));
  EXPECT_EQ(first.pages.listed(), 2);

  Sequence longer(cache, counting(0, 20)), equal(cache, counting(0, 8)), other(cache, counting(1, 20));
  EXPECT_EQ(longer.adopt(cache), 8);
  EXPECT_EQ(longer.pages.tables()[full_pages][1], first.pages.tables()[full_pages][1]);
  EXPECT_EQ(equal.adopt(cache), 4) << "its eighth token is the one to compute";
  EXPECT_EQ(other.adopt(cache), 0);
  EXPECT_EQ(cache.used(full_pages), 3) << "shared pages count once";
}

TEST(PageCache, KeepsWhatNobodyHoldsUntilItsRoomIsNeededTheLongestIdleFirst) {
  PageCache cache(small(4));
  {
    Sequence old(cache, counting(0, 8)), recent(cache, counting(100, 8));
    ASSERT_TRUE(old.compute(cache, 8));
    ASSERT_TRUE(recent.compute(cache, 8));
    old.pages.release();
  }
  EXPECT_EQ(cache.used(full_pages), 0);
  EXPECT_EQ(cache.idle(full_pages), 4);
  Sequence taker(cache, counting(200, 4));
  ASSERT_TRUE(taker.compute(cache, 4));
  EXPECT_EQ(cache.evicted(), 1u);
  Sequence old(cache, counting(0, 9)), recent(cache, counting(100, 9));
  EXPECT_EQ(old.adopt(cache), 4) << "its second page went, the first is older by nothing but its child";
  EXPECT_EQ(recent.adopt(cache), 8);
}

TEST(PageCache, GrowsOrTakesNothing) {
  PageCache cache(small(4));
  Sequence first(cache, counting(0, 12)), second(cache, counting(50, 8));
  EXPECT_TRUE(first.compute(cache, 12));
  EXPECT_FALSE(second.compute(cache, 8));
  EXPECT_EQ(cache.available(full_pages), 1);
  first.pages.release();
  EXPECT_TRUE(second.compute(cache, 8));
}

TEST(PageCache, TwoThatComputeTheSameAtOnceEndUpWithOnePage) {
  PageCache cache(small(8, 8));
  Sequence first(cache, counting(0, 8)), second(cache, counting(0, 8));
  ASSERT_TRUE(cache.grow(first.pages, 8, 8) && cache.grow(second.pages, 8, 8));
  EXPECT_EQ(cache.used(full_pages), 4);
  cache.store(first.pages, first.prefix(), 8);
  cache.store(second.pages, second.prefix(), 8);
  EXPECT_EQ(cache.used(full_pages), 2);
  EXPECT_EQ(cache.used(window_pages), 2);
  for (const PageGroup group : {full_pages, window_pages}) {
    EXPECT_EQ(second.pages.tables()[group][0], first.pages.tables()[group][0]);
    EXPECT_EQ(second.pages.tables()[group][1], first.pages.tables()[group][1]);
  }
  const SequencePages* held[] = {&first.pages, &second.pages};
  cache.check(held);
}

// A window of 6 sees five positions before the query's: two pages behind a boundary.
TEST(PageCache, ALongSequenceHoldsWindowPagesForItsWindowOnly) {
  PageCache cache(small(64, 8));
  Sequence sequence(cache, counting(0, 200));
  for (int end = 1; end <= 200; ++end) {
    ASSERT_TRUE(sequence.compute(cache, end)) << end;
    EXPECT_LE(cache.used(window_pages), cache.pages_in_window() + 1);
    EXPECT_EQ(sequence.pages.window_begin(), std::max(0, end - 5) / page);
    const auto table = sequence.pages.tables()[window_pages];
    for (int i = 0; i < static_cast<int>(table.size()); ++i)
      EXPECT_EQ(table[static_cast<std::size_t>(i)] == no_page, i < sequence.pages.window_begin());
  }
  EXPECT_EQ(cache.used(full_pages), 50);
}

TEST(PageCache, APrefixIsReusedWhereItsWindowIsStillThere) {
  PageCache cache(small(64, 6));
  {
    Sequence sequence(cache, counting(0, 40));
    for (int end = page; end <= 40; end += page) ASSERT_TRUE(sequence.compute(cache, end));
  }
  // Six window pages for ten of the prompt: the first ones have been used again.
  EXPECT_EQ(cache.idle(full_pages), 10);
  EXPECT_EQ(cache.idle(window_pages), 6);
  Sequence all(cache, counting(0, 41)), begin(cache, counting(0, 13)), later(cache, counting(0, 26));
  EXPECT_EQ(all.adopt(cache), 40);
  EXPECT_EQ(all.pages.window_begin(), 8);
  EXPECT_EQ(begin.adopt(cache), 0) << "no window pages there";
  EXPECT_EQ(later.adopt(cache), 24);
  const SequencePages* held[] = {&all.pages, &begin.pages, &later.pages};
  cache.check(held);
}

TEST(PageCache, SaltsKeepTenantsApart) {
  PageCache cache(small(16));
  Sequence plain(cache, counting(0, 8)), salted(cache, counting(0, 8), "a");
  ASSERT_TRUE(plain.compute(cache, 8));
  ASSERT_TRUE(salted.compute(cache, 8));
  EXPECT_EQ(cache.used(full_pages), 4);
  Sequence again(cache, counting(0, 9), "a"), other(cache, counting(0, 9), "b");
  EXPECT_EQ(again.adopt(cache), 8);
  EXPECT_EQ(again.pages.tables()[full_pages][0], salted.pages.tables()[full_pages][0]);
  EXPECT_EQ(other.adopt(cache), 0);
}

// With a hash of few bits almost everything collides; only what has the same tokens and the same salt is
// given.
TEST(PageCache, CollidingHashesNeverGiveForeignPages) {
  for (const int bits : {0, 1, 3}) {
    PageCacheOptions options = small(24, 24);
    options.hash_bits = bits;
    PageCache cache(options);
    std::mt19937 random(7);
    const char* salts[] = {"", "a", "b"};
    std::vector<std::vector<TokenId>> owners(24);  // what the full page was computed from, salt first
    for (int round = 0; round < 3000; ++round) {
      std::vector<TokenId> tokens;
      for (unsigned i = 0, n = 1 + random() % 24; i < n; ++i)
        tokens.push_back(static_cast<TokenId>(random() % 2));
      const std::size_t salt = random() % 3;
      Sequence sequence(cache, tokens, salts[salt]);
      const auto owner_of = [&](int index) {
        std::vector<TokenId> owner{static_cast<TokenId>(salt)};
        owner.insert(owner.end(), tokens.begin(), tokens.begin() + (index + 1) * page);
        return owner;
      };
      const int adopted = sequence.adopt(cache);
      const auto table = [&] { return sequence.pages.tables()[full_pages]; };
      for (int i = 0; i < adopted / page; ++i)
        ASSERT_EQ(owners[static_cast<std::size_t>(table()[static_cast<std::size_t>(i)])], owner_of(i));
      ASSERT_TRUE(cache.grow(sequence.pages, sequence.size(), sequence.size()));
      for (int i = adopted / page; i < sequence.size() / page; ++i)
        owners[static_cast<std::size_t>(table()[static_cast<std::size_t>(i)])] = owner_of(i);
      cache.store(sequence.pages, sequence.prefix(), sequence.size());
    }
    EXPECT_GT(cache.evicted(), 0u);
  }
}

TEST(PageCache, WhatIsDistrustedServesNobodyElse) {
  PageCache cache(small(16, 16));
  Sequence spoilt(cache, counting(0, 12));
  ASSERT_TRUE(spoilt.compute(cache, 12));
  Sequence sharing(cache, counting(0, 16));
  EXPECT_EQ(sharing.adopt(cache), 12);
  cache.distrust(spoilt.pages);
  spoilt.pages.release();
  Sequence next(cache, counting(0, 16));
  EXPECT_EQ(next.adopt(cache), 0);
  ASSERT_TRUE(next.compute(cache, 16));
  EXPECT_NE(next.pages.tables()[full_pages][0], sharing.pages.tables()[full_pages][0]);
  ASSERT_TRUE(sharing.compute(cache, 16));
  const SequencePages* held[] = {&sharing.pages, &next.pages};
  cache.check(held);
}

TEST(PageCache, SwitchedOffItSharesAndKeepsNothing) {
  PageCacheOptions options = small(16, 16);
  options.keep_prefixes = false;
  PageCache cache(options);
  Sequence first(cache, counting(0, 8)), second(cache, counting(0, 8));
  ASSERT_TRUE(first.compute(cache, 8));
  EXPECT_EQ(second.adopt(cache), 0);
  first.pages.release();
  EXPECT_EQ(cache.idle(full_pages) + cache.idle(window_pages), 0);
  EXPECT_EQ(cache.used(full_pages) + cache.used(window_pages), 0);
}

TEST(PageCache, EveryPageIsAccountedForUnderRandomUse) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    PageCacheOptions options = small(12 + below(30), seed % 3 == 0 ? 0 : 8 + below(30));
    options.keep_prefixes = seed % 5 != 4;
    PageCache cache(options);
    std::vector<std::unique_ptr<Sequence>> live;
    for (int round = 0; round < 1500; ++round) {
      if (live.size() < 5 && below(3) == 0) {
        std::vector<TokenId> tokens;
        for (int i = 0, n = 1 + below(40); i < n; ++i) tokens.push_back(below(8) == 0 ? below(2) : 0);
        live.push_back(std::make_unique<Sequence>(cache, tokens, below(4) == 0 ? "s" : ""));
        live.back()->adopt(cache);
      } else if (!live.empty()) {
        const std::size_t chosen = static_cast<std::size_t>(below(static_cast<int>(live.size())));
        Sequence& sequence = *live[chosen];
        const bool done = sequence.stored == sequence.size() || below(6) == 0;
        if (done || !sequence.compute(cache, sequence.stored + 1 + below(sequence.size() - sequence.stored)))
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(chosen));
      }
      std::vector<const SequencePages*> held;
      for (const auto& sequence : live) held.push_back(&sequence->pages);
      cache.check(held);
    }
  }
}

TEST(PageCacheDeathTest, PagesThatOutliveTheirCacheAreABrokenInvariant) {
  EXPECT_DEATH(
      {
        SequencePages pages;
        PageCache cache(small(2));
        (void)cache.grow(pages, 4, 4);
      },
      "gives its pages back");
}

TEST(PageCache, ASequenceHasASlotForItsStateUntilItGoes) {
  PageCacheOptions options = small(16);
  options.states = 2;
  options.keep_prefixes = false;
  PageCache cache(options);
  Sequence first(cache, counting(0, 5)), second(cache, counting(0, 5)), third(cache, counting(0, 5));
  EXPECT_EQ(first.pages.state(), -1);
  ASSERT_TRUE(first.compute(cache, 3));
  const PageId slot = first.pages.state();
  ASSERT_TRUE(first.compute(cache, 5));
  EXPECT_EQ(first.pages.state(), slot) << "it stays where it is";
  ASSERT_TRUE(second.compute(cache, 5));
  EXPECT_NE(second.pages.state(), slot);
  EXPECT_FALSE(cache.grow(third.pages, 5, 5)) << "there are pages, and no slot";
  EXPECT_EQ(third.pages.state(), -1);
  SequencePages moved = std::move(first.pages);
  EXPECT_EQ(first.pages.state(), -1);
  moved.release();
  ASSERT_TRUE(third.compute(cache, 5));
  EXPECT_EQ(third.pages.state(), slot);
}

PageCacheOptions with_snapshots(int full, int snapshots) {
  PageCacheOptions options = small(full);
  options.states = 4;
  options.snapshots = snapshots;
  options.snapshot_step = 2 * page;
  return options;
}

// Computes `sequence` to its end and leaves a snapshot at each of these positions.
void compute_with(PageCache& cache, Sequence& sequence, std::initializer_list<int> positions) {
  for (const int position : positions) EXPECT_GE(cache.take_snapshot(sequence.pages, position), 0);
  ASSERT_TRUE(sequence.compute(cache, sequence.size()));
}

TEST(Snapshots, APrefixIsAdoptedUpToTheDeepestOne) {
  PageCache cache(with_snapshots(32, 4));
  Sequence first(cache, counting(0, 40));
  EXPECT_EQ(first.adopt(cache), 0);
  compute_with(cache, first, {8, 24});
  const auto expect = [&](int shared, int adopted, int branch) {
    std::vector<TokenId> tokens = counting(0, 40);
    for (int i = shared; i < 40; ++i) tokens[static_cast<std::size_t>(i)] = 900;
    Sequence other(cache, tokens);
    EXPECT_EQ(other.adopt(cache), adopted) << shared;
    EXPECT_EQ(other.pages.listed() * page, adopted);
    EXPECT_EQ(other.pages.branch(), branch) << shared;
    EXPECT_EQ(other.pages.resumes() >= 0, adopted > 0);
  };
  expect(7, 0, 0);
  expect(8, 8, 0);
  expect(15, 8, 0);
  expect(16, 8, 16);
  expect(23, 8, 16);
  expect(24, 24, 0);
  expect(39, 24, 32);
}

TEST(Snapshots, MakeRoomAloneTheLongestIdleFirstButNotWhileOneIsHeld) {
  PageCache cache(with_snapshots(32, 2));
  Sequence one(cache, counting(0, 17)), two(cache, counting(100, 17));
  compute_with(cache, one, {8});
  compute_with(cache, two, {8});
  Sequence resumed(cache, counting(0, 9));
  EXPECT_EQ(resumed.adopt(cache), 8);
  Sequence three(cache, counting(200, 17));
  compute_with(cache, three, {8});
  EXPECT_EQ(cache.evicted_snapshots(), 1u);
  EXPECT_EQ(cache.evicted(), 0u) << "pages stay";
  Sequence of_two(cache, counting(100, 9)), of_three(cache, counting(200, 9));
  EXPECT_EQ(of_two.adopt(cache), 0) << "the first one's was held";
  EXPECT_EQ(of_two.pages.branch(), 8);
  EXPECT_EQ(of_three.adopt(cache), 8);
  Sequence four(cache, counting(300, 17));
  EXPECT_EQ(cache.take_snapshot(four.pages, 8), -1) << "both are held";
  cache.resumed(resumed.pages);
  EXPECT_EQ(resumed.pages.resumes(), -1);
  EXPECT_GE(cache.take_snapshot(four.pages, 8), 0);
  cache.check(std::vector<const SequencePages*>{&one.pages, &two.pages, &three.pages, &four.pages,
                                                &resumed.pages, &of_two.pages, &of_three.pages});
}

TEST(Snapshots, GoWithTheirPageAndBackWhereThereIsOneAlready) {
  PageCache cache(with_snapshots(4, 2));
  {
    Sequence one(cache, counting(0, 8)), twin(cache, counting(0, 8));
    compute_with(cache, one, {8});
    EXPECT_GE(cache.take_snapshot(twin.pages, 8), 0);
    EXPECT_EQ(cache.used(snapshot_room), 1) << "only what is not stored yet is in use";
    ASSERT_TRUE(twin.compute(cache, 8));
    EXPECT_EQ(cache.idle(snapshot_room), 1);
    Sequence dropped(cache, counting(50, 8));
    EXPECT_GE(cache.take_snapshot(dropped.pages, 8), 0);
    dropped.pages.release();
    EXPECT_EQ(cache.available(snapshot_room), 2);
  }
  Sequence other(cache, counting(100, 16));
  ASSERT_TRUE(other.compute(cache, 16));
  EXPECT_EQ(cache.idle(snapshot_room), 0);
  EXPECT_EQ(cache.evicted_snapshots(), 1u);
}

}  // namespace
}  // namespace nibble
