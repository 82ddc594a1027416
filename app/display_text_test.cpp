#include "app/display_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble {
namespace {

TEST(DisplayText, CountsColumnsNotBytes) {
  EXPECT_EQ(text_columns("fox"), 3);
  EXPECT_EQ(text_columns("caf\xC3\xA9"), 4);
  EXPECT_EQ(text_columns("cafe\xCC\x81"), 4);                                  // e and a combining acute
  EXPECT_EQ(text_columns("\xE5\x8C\x97\xE9\xA2\xA8"), 4);                      // two CJK characters
  EXPECT_EQ(text_columns("\xF0\x9F\xA6\x8A"), 2);                              // fox emoji
  EXPECT_EQ(text_columns("\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB"), 2);  // woman + joiner + computer
}

TEST(DisplayText, WalksByUserPerceivedCharacters) {
  const std::string_view text =
      "ae\xCC\x81\xF0\x9F\x87\xA9\xF0\x9F\x87\xAA\n\xFFz";  // a, e with acute, a flag, newline, a bad byte, z
  std::vector<std::size_t> stops;
  for (std::size_t at = 0; at < text.size();) stops.push_back(at = next_character(text, at));
  EXPECT_EQ(stops, (std::vector<std::size_t>{1, 4, 12, 13, 14, 15}));
  std::vector<std::size_t> back;
  for (std::size_t at = text.size(); at > 0;) back.push_back(at = previous_character(text, at));
  EXPECT_EQ(back, (std::vector<std::size_t>{14, 13, 12, 4, 1, 0}));
}

TEST(DisplayText, ControlCharactersBecomeVisible) {
  EXPECT_EQ(visible_text("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(visible_text("\x1b[2J\x07\r\x7f"), "^[[2J^G^M^?");
  EXPECT_EQ(visible_text(std::string_view("\0", 1)), "^@");
  EXPECT_EQ(visible_text("\xC2\x9B"
                         "2J"),
            "<U+009B>2J");  // the one-character form of ESC [
  EXPECT_EQ(visible_text("\xE2\x80\xAE"
                         "x"),
            "<U+202E>x");  // right-to-left override
  EXPECT_EQ(visible_text("\x9B"), "\xEF\xBF\xBD");
  EXPECT_EQ(visible_text("na\xC3\xAFve \xF0\x9F\xA6\x8A"), "na\xC3\xAFve \xF0\x9F\xA6\x8A");
}

}  // namespace
}  // namespace nibble
