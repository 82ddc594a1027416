#include "app/word_wrap.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

std::string wrapped(std::string_view text, int columns, std::size_t piece = 1) {
  WordWrapper wrapper;
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += piece)
    out += wrapper.push(text.substr(at, piece), columns);
  return out + wrapper.flush();
}

TEST(WordWrap, BreaksBetweenWordsHoweverTheTextArrives) {
  for (std::size_t piece = 1; piece < 30; ++piece) {
    EXPECT_EQ(wrapped("the fox and the bear", 8, piece), "the fox\nand the\nbear");
  }
}

TEST(WordWrap, AWordThatFitsExactlyStays) {
  EXPECT_EQ(wrapped("the foxes", 9), "the foxes");
  EXPECT_EQ(wrapped("the foxes run", 9), "the foxes\nrun");
}

TEST(WordWrap, LineBreaksAndIndentationStay) {
  EXPECT_EQ(wrapped("one\n\n  two  three", 20), "one\n\n  two  three");
  EXPECT_EQ(wrapped("one   \ntwo", 20), "one\ntwo");
}

TEST(WordWrap, ALineGoesOnAfterAFlush) {
  WordWrapper wrapper;
  std::string out;
  for (const char* text : {"once upon", ", then", "\nonce upon"}) {
    out += wrapper.push(text, 12);
    out += wrapper.flush();
  }
  EXPECT_EQ(out, "once upon,\nthen\nonce upon");
}

TEST(WordWrap, AWordWiderThanTheTerminalIsLeftToIt) {
  EXPECT_EQ(wrapped("a abcdefghij b", 4), "a\nabcdefghij b");
  EXPECT_EQ(wrapped("a abcdefgh b", 4), "a\nabcdefgh\nb");
}

TEST(WordWrap, WideCharactersBreakAnywhere) {
  EXPECT_EQ(wrapped("\xE5\x8C\x97\xE9\xA2\xA8\xE3\x81\xAF", 5, 3), "\xE5\x8C\x97\xE9\xA2\xA8\n\xE3\x81\xAF");
}

}  // namespace
}  // namespace nibble
