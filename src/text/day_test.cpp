#include "text/day.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble {
namespace {

TEST(Day, EveryDayOfFourHundredYearsIsReadAndNoOther) {
  std::tm time = {};
  time.tm_year = 1899 - 1900;
  time.tm_mon = 11;
  time.tm_mday = 31;
  for (int i = 0; i < 146097 + 2; ++i) {
    ++time.tm_mday;
    ::timegm(&time);
    char text[16];
    std::strftime(text, sizeof text, "%Y-%m-%d", &time);
    const Result<Day> day = parse_day(text);
    ASSERT_TRUE(day.ok()) << text;
    const std::tm begin = day->begin();
    ASSERT_EQ(begin.tm_wday, time.tm_wday) << text;
    ASSERT_EQ(begin.tm_yday, time.tm_yday) << text;
    ASSERT_EQ(begin.tm_hour, 0);
  }
}

TEST(Day, WhatIsNoDayIsSaidToBeNone) {
  for (const char* text :
       {"",           "2026",       "2026-02-29",  "2100-02-29",  "2026-13-01",       "2026-00-01",
        "2026-01-00", "2026-01-32", "2026-04-31",  "26-01-01",    "2026/01/01",       "2026-1-01",
        "+026-01-01", "2026-01-1 ", "2026-01-01 ", " 2026-01-01", "2026-01-01T00:00", "0000-01-01",
        "tomorrow",   "2026-0a-01"}) {
    const Result<Day> day = parse_day(text);
    ASSERT_FALSE(day.ok()) << text;
    EXPECT_NE(day.status().message().find("YYYY-MM-DD"), std::string::npos);
  }
  EXPECT_EQ(parse_day("2024-02-29").value(), (Day{2024, 2, 29}));
}

}  // namespace
}  // namespace nibble
