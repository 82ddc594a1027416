#include "server/http/places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nibble::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr Places::Time start{};
constexpr Places::Time later = start + seconds(1);

TEST(Places, WhoSentHalfARequestGoesBeforeWhoIsIdle) {
  Places places(4);
  const Places::Id body = places.enter("a", start), idle = places.enter("b", start),
                   half = places.enter("c", start), served = places.enter("d", start);
  places.move(body, Stage::body, start);
  places.move(idle, Stage::idle, start);
  places.move(served, Stage::served, start);
  EXPECT_TRUE(places.full());
  for (const Places::Id expected : {body, half, idle}) {
    ASSERT_EQ(places.first_to_go(later), expected);
    places.leave(expected);
  }
  EXPECT_FALSE(places.first_to_go(later)) << "whoever is served stays";
}

TEST(Places, WhoHasJustComeStays) {
  Places places(2);
  const Places::Id idle = places.enter("a", start);
  places.move(idle, Stage::idle, start);
  places.enter("a", later);
  EXPECT_EQ(places.first_to_go(later), idle);
  places.leave(idle);
  EXPECT_FALSE(places.first_to_go(later));
}

TEST(Places, ACrowdFromOneNetworkPushesOutItsOwn) {
  Places places(100);
  const Places::Id stranger = places.enter("other", start);
  const Places::Id first = places.enter("crowd", start), second = places.enter("crowd", start);
  EXPECT_EQ(places.first_to_go(later), first);
  places.leave(first);
  EXPECT_EQ(places.first_to_go(later), stranger) << "of networks with as many the one with the oldest";
  places.leave(stranger);
  EXPECT_EQ(places.first_to_go(later), second);
}

TEST(Places, AtMostHalfOfThePlacesHoldHalfARequest) {
  Places places(10);
  for (int i = 0; i < 5; ++i) places.enter("a", start);
  EXPECT_FALSE(places.too_many());
  const Places::Id newest = places.enter("b", start);
  ASSERT_TRUE(places.too_many());
  EXPECT_EQ(places.too_many(), 1u) << "the oldest of the network with most";
  places.move(newest, Stage::served, start);
  EXPECT_FALSE(places.too_many());
}

TEST(Places, AHeadHasLessTimeUnderPressure) {
  Places places(8);
  const Places::Id first = places.enter("a", start);
  places.enter("b", start + seconds(1));
  EXPECT_FALSE(places.overdue(start + seconds(20))) << "a quarter of the places may wait";
  places.enter("c", start + seconds(2));
  EXPECT_FALSE(places.overdue(start + milliseconds(4999)));
  EXPECT_EQ(places.overdue(start + seconds(5)), first);
  places.leave(first);
  EXPECT_FALSE(places.overdue(start + seconds(20)));
}

TEST(Places, WhoIsLeavingHasAMomentToReadTheAnswer) {
  Places places(2);
  const Places::Id leaving = places.enter("a", start), idle = places.enter("a", start);
  places.move(idle, Stage::idle, start - seconds(1));
  places.move(leaving, Stage::leaving, start);
  EXPECT_EQ(places.first_to_go(start + milliseconds(200)), idle);
  EXPECT_EQ(places.first_to_go(start + milliseconds(300)), leaving);
}

// Against counting anew, whatever comes and goes.
TEST(Places, TheOneToGoIsAlwaysTheOldestOfTheLargestNetwork) {
  std::mt19937 random(1);
  Places places(64);
  std::map<Places::Id, std::string> waiting;  // in order of age
  for (int step = 0; step < 20'000; ++step) {
    if (waiting.empty() || (random() % 2 == 0 && !places.full())) {
      std::string network(1, static_cast<char>('a' + random() % 6));
      const Places::Id id = places.enter(network, start);
      waiting.emplace(id, std::move(network));
    } else {
      auto gone = waiting.begin();
      std::advance(gone, random() % waiting.size());
      if (random() % 2 == 0) places.move(gone->first, Stage::served, start);
      places.leave(gone->first);
      waiting.erase(gone);
    }
    std::map<std::string, int> sizes;
    int largest = 0;
    for (const auto& [id, network] : waiting) largest = std::max(largest, ++sizes[network]);
    std::optional<Places::Id> expected;
    for (const auto& [id, network] : waiting) {
      if (!expected && sizes[network] == largest) expected = id;
    }
    ASSERT_EQ(places.first_to_go(later), expected) << step;
  }
}

}  // namespace
}  // namespace nibble::http
