#include "app/progress.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>

#include <cstdlib>

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

TEST(Progress, LinesOfOthersStandAboveTheBar) {
  int terminal = 0, program = 0;
  ASSERT_EQ(openpty(&terminal, &program, nullptr, nullptr, nullptr), 0);
  setenv("TERM", "xterm", 1);
  {
    ProgressBar bar("loading", program);
    bar.print_above("before\n");
    bar.announce();
    bar.print_above("while\n");
    bar.erase();
    bar.print_above("after\n");
  }
  constexpr std::string_view expected = "before\r\n\r\x1b[Kloading\r\x1b[Kwhile\r\nloading\r\x1b[Kafter\r\n";
  std::string shown;  // it comes in pieces
  pollfd more{.fd = terminal, .events = POLLIN, .revents = 0};
  while (shown.size() < expected.size() && poll(&more, 1, 5000) == 1) {
    char piece[200];
    const ssize_t size = read(terminal, piece, sizeof piece);
    ASSERT_GT(size, 0);
    shown.append(piece, static_cast<std::size_t>(size));
  }
  EXPECT_EQ(shown, expected);
  close(terminal);
  close(program);
}

}  // namespace
}  // namespace nibble
