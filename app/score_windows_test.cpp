#include "app/score_windows.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(ScoreWindows, AShortTextIsOneWindow) {
  const auto windows = score_windows(5, 8);
  ASSERT_EQ(windows.size(), 1u);
  EXPECT_EQ(windows[0].begin, 0u);
  EXPECT_EQ(windows[0].scored, 1u);
  EXPECT_EQ(windows[0].end, 5u);
}

TEST(ScoreWindows, ATextWithoutASecondTokenHasNothingToScore) {
  EXPECT_TRUE(score_windows(0, 8).empty());
  EXPECT_TRUE(score_windows(1, 8).empty());
}

TEST(ScoreWindows, EveryTokenButTheFirstIsScoredOnceWithHalfAWindowBehindIt) {
  for (std::size_t width = 2; width < 20; ++width) {
    for (std::size_t tokens = 2; tokens < 100; ++tokens) {
      std::size_t next = 1;
      for (const ScoreWindow& window : score_windows(tokens, width)) {
        ASSERT_EQ(window.scored, next);
        ASSERT_GT(window.end, window.scored);
        ASSERT_LE(window.end - window.begin, width);
        ASSERT_GE(window.scored - window.begin, window.begin == 0 ? 1 : width / 2)
            << tokens << " in windows of " << width;
        next = window.end;
      }
      ASSERT_EQ(next, tokens);
    }
  }
}

}  // namespace
}  // namespace nibble
