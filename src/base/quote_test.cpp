#include "base/quote.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Quote, KeepsPrintableAsciiAndEscapesTheQuotes) {
  EXPECT_EQ(quote("a b~"), R"("a b~")");
  EXPECT_EQ(quote(R"(say "hi" \n)"), R"("say \"hi\" \\n")");
}

TEST(Quote, LetsNoByteReachTheTerminalThatCouldSteerIt) {
  EXPECT_EQ(quote("\x1b[2J\a"), R"("\x1b[2J\x07")");
  EXPECT_EQ(quote("one\ntwo\r\tthree"), R"("one\ntwo\r\tthree")");
  EXPECT_EQ(quote(std::string_view("\0\x7f", 2)), R"("\x00\x7f")");
  // A C1 control and a right-to-left override, as UTF-8; then bytes that are no UTF-8.
  EXPECT_EQ(quote("\xc2\x9b\xe2\x80\xae\xff"), R"("\xc2\x9b\xe2\x80\xae\xff")");
  for (int byte = 0; byte < 256; ++byte) {
    for (const char c : quote(std::string(1, static_cast<char>(byte)))) {
      EXPECT_TRUE(c >= 0x20 && c <= 0x7e) << byte;
    }
  }
}

TEST(Escape, KeepsAWholeTextOnOneLineOfPrintableAscii) {
  EXPECT_EQ(escape("say \"hi\"\n\x1b[2J\xc3"), R"(say "hi"\n\x1b[2J\xc3)");
  EXPECT_EQ(escape(std::string(1000, 'x')).size(), 1000u);
}

TEST(Quote, CutsALongText) {
  EXPECT_EQ(quote("abcdef", 3), R"("abc"...)");
  EXPECT_EQ(quote("abc", 3), R"("abc")");
}

}  // namespace
}  // namespace nibble
