#include "server/suspects.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace nibble {
namespace {

using Verdict = Suspects::Verdict;

TEST(Suspects, FingerprintsAreOfPathAndBodyAndOfThisProcessAlone) {
  const auto suspects = std::make_unique<Suspects>(), others = std::make_unique<Suspects>();
  EXPECT_EQ(suspects->fingerprint("/a", "body"), suspects->fingerprint("/a", "body"));
  EXPECT_NE(suspects->fingerprint("/a", "body"), suspects->fingerprint("/b", "body"));
  EXPECT_NE(suspects->fingerprint("/a", "body"), suspects->fingerprint("/abo", "dy"));
  EXPECT_NE(suspects->fingerprint("/a", std::string_view("12345678\0", 9)),
            suspects->fingerprint("/a", std::string_view("12345678", 8)));
  EXPECT_NE(suspects->fingerprint("/a", "body"), others->fingerprint("/a", "body"));
}

// Hashed one after the other these would be the same words: the path's end stands where the body's words do.
TEST(Suspects, WhereAPathEndsCounts) {
  const auto suspects = std::make_unique<Suspects>();
  const std::string first("x\0\0\0\0\0\0\1", 8), rest(31 * 8, 'a');
  EXPECT_NE(suspects->fingerprint("x", rest + std::string(8, '\0') + "t"),
            suspects->fingerprint(first + rest, "t"));
}

TEST(Suspects, WhoWasThereAtTwoDeathsIsRefused) {
  const auto suspects = std::make_unique<Suspects>();
  const Fingerprint poison = suspects->fingerprint("/", "poison");
  for (int death = 0; death < Suspects::most_deaths; ++death) {
    EXPECT_EQ(suspects->enter(poison).verdict, Verdict::enters);
    EXPECT_EQ(suspects->blame(), 1);
  }
  EXPECT_EQ(suspects->enter(poison).verdict, Verdict::refused);
  EXPECT_EQ(suspects->enter(suspects->fingerprint("/", "other")).verdict, Verdict::enters);
}

TEST(Suspects, OneDeathCountsOnceHoweverOftenTheSameRequestWasThere) {
  const auto suspects = std::make_unique<Suspects>();
  const Fingerprint popular = suspects->fingerprint("/", "hello");
  for (int i = 0; i < 64; ++i) EXPECT_EQ(suspects->enter(popular).verdict, Verdict::enters);
  EXPECT_EQ(suspects->blame(), 1);
  EXPECT_EQ(suspects->enter(popular).verdict, Verdict::enters);
}

TEST(Suspects, RunOneAtATimeSoThatADeathBlamesOne) {
  const auto suspects = std::make_unique<Suspects>();
  const Fingerprint poison = suspects->fingerprint("/", "poison"),
                    bystander = suspects->fingerprint("/", "bystander");
  suspects->enter(poison);
  suspects->enter(bystander);
  EXPECT_EQ(suspects->blame(), 2);
  const Suspects::Entry first = suspects->enter(bystander);
  EXPECT_EQ(first.verdict, Verdict::enters);
  EXPECT_EQ(suspects->enter(poison).verdict, Verdict::waits);
  EXPECT_EQ(suspects->enter(bystander).verdict, Verdict::waits);
  suspects->leave(first.slot, true);
  EXPECT_EQ(suspects->enter(poison).verdict, Verdict::enters);
  EXPECT_EQ(suspects->enter(bystander).verdict, Verdict::enters) << "an answer cleared it";
  EXPECT_EQ(suspects->blame(), 2);
  EXPECT_EQ(suspects->enter(poison).verdict, Verdict::refused);
  EXPECT_EQ(suspects->enter(bystander).verdict, Verdict::enters);
}

TEST(Suspects, WhoLeftBeforeADeathIsNotBlamed) {
  const auto suspects = std::make_unique<Suspects>();
  const Suspects::Entry entry = suspects->enter(suspects->fingerprint("/", "a"));
  suspects->leave(entry.slot, false);
  EXPECT_EQ(suspects->blame(), 0);
}

TEST(Suspects, MoreRequestsThanSlotsRunUnnoted) {
  const auto suspects = std::make_unique<Suspects>();
  for (int i = 0; i < 5000; ++i) {
    const Suspects::Entry entry = suspects->enter(suspects->fingerprint("/", std::to_string(i)));
    EXPECT_EQ(entry.verdict, Verdict::enters);
    EXPECT_EQ(entry.slot >= 0, i < 4096);
    if (entry.slot < 0) suspects->leave(entry.slot, true);
  }
}

}  // namespace
}  // namespace nibble
