#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace nibble {
namespace {

struct Outcome {
  std::string shown;
  std::string matched;
};

Outcome stream(const std::vector<std::string>& stops, const std::vector<std::string>& parts) {
  StopStrings strings = StopStrings::make(stops).value();
  Outcome outcome;
  for (const std::string& part : parts) outcome.shown += strings.push(part);
  if (!strings.stopped()) outcome.shown += strings.flush();
  outcome.matched = strings.matched();
  return outcome;
}

TEST(StopStrings, AreFoundAcrossPartsAndNeverPartlyShown) {
  StopStrings strings = StopStrings::make({"STOP"}).value();
  EXPECT_EQ(strings.push("go S"), "go ");
  EXPECT_EQ(strings.push("TO"), "");
  EXPECT_EQ(strings.push("RE ST"), "STORE ");
  EXPECT_EQ(strings.push("OP and more"), "");
  EXPECT_TRUE(strings.stopped());
  EXPECT_EQ(strings.matched(), "STOP");
  EXPECT_EQ(strings.push("later"), "");
  EXPECT_EQ(strings.flush(), "");
}

TEST(StopStrings, WhatWasHeldBackIsFlushedAtTheEnd) {
  EXPECT_EQ(stream({"STOP"}, {"a ST", "O"}).shown, "a STO");
}

TEST(StopStrings, TheOneThatIsCompleteFirstWins) {
  EXPECT_EQ(stream({"bcd", "cdef", "d"}, {"abcdef"}).matched,
            "bcd");  // the longest of those that end together
  EXPECT_EQ(stream({"bcd", "cdef", "d"}, {"abcdef"}).shown, "a");
  EXPECT_EQ(stream({"abcde", "bc"}, {"abcde"}).shown, "a");
  EXPECT_EQ(stream({"aab"}, {"a", "a", "a", "b"}).shown, "a");
}

TEST(StopStrings, HowTheTextIsCutChangesNothing) {
  std::mt19937 random(6);
  const auto word = [&random](std::size_t most) {
    std::string text;
    for (std::size_t length = 1 + random() % most; length > 0; --length) text.push_back("ab"[random() % 2]);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t count = 1 + random() % 3; count > 0; --count) stops.push_back(word(6));
    const std::string text = word(30);
    // By definition: the first end of any stop string, of those that end there the longest.
    std::string shown = text, matched;
    for (std::size_t end = 1; end <= text.size() && matched.empty(); ++end) {
      for (const std::string& stop : stops) {
        const bool ends_here = end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0;
        if (ends_here && stop.size() > matched.size()) matched = stop;
      }
      if (!matched.empty()) shown = text.substr(0, end - matched.size());
    }
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < text.size(); at += parts.back().size())
      parts.push_back(text.substr(at, random() % 5));
    const Outcome outcome = stream(stops, parts);
    ASSERT_EQ(outcome.shown, shown) << text;
    ASSERT_EQ(outcome.matched, matched) << text;
  }
}

TEST(StopStrings, OnlyTheLongestPossibleBeginningIsHeldBack) {
  StopStrings strings = StopStrings::make({"abab", "bx"}).value();
  EXPECT_EQ(strings.push("aba"), "");    // aba
  EXPECT_EQ(strings.push("c"), "abac");  // nothing
  EXPECT_EQ(strings.push("ab"), "");     // ab
  EXPECT_EQ(strings.push("b"), "ab");    // b
}

TEST(StopStrings, WithoutAnyAllTextPasses) {
  StopStrings strings;
  EXPECT_EQ(strings.push("text"), "text");
  EXPECT_FALSE(strings.stopped());
}

TEST(StopStrings, EmptyTooManyAndIllFormedOnesAreRefused) {
  EXPECT_EQ(StopStrings::make({"a", ""}).status().message(),
            "stop has an empty string; each needs at least one character");
  EXPECT_EQ(StopStrings::make(std::vector<std::string>(17, "a")).status().message(),
            "stop has 17 strings; at most 16 are allowed");
  EXPECT_EQ(StopStrings::make({"\xFF"}).status().message(), "stop has a string that is not UTF-8");
  EXPECT_EQ(StopStrings::make({"\xFF"}).status().code(), StatusCode::invalid_argument);
  EXPECT_TRUE(StopStrings::make(std::vector<std::string>(16, "a")).ok());
}

}  // namespace
}  // namespace nibble
