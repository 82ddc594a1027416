#include "app/progress.h"

#include <gtest/gtest.h>

#include "app/display_text.h"

namespace nibble {
namespace {

TEST(Progress, ShowsTheShareAndTheTimeLeft) {
  EXPECT_EQ(progress_line("scoring", 50, 200, 10, 80),
            "scoring  [======                  ]   25 %  30 s left");
  EXPECT_EQ(progress_line("scoring", 1, 100, 10, 80),
            "scoring  [                        ]    1 %  17 min left");
  EXPECT_EQ(progress_line("scoring", 0, 0, 0, 80), "scoring  [                        ]    0 %");
  EXPECT_EQ(progress_line("scoring", 200, 200, 10, 80),
            "scoring  [========================]  100 %  0 s left");
}

TEST(Progress, NeverFillsTheWholeWidth) {
  for (int columns = 8; columns < 90; ++columns) {
    EXPECT_LT(text_columns(progress_line("reading the prompt", 77, 100, 50, columns)), columns);
  }
}

}  // namespace
}  // namespace nibble
