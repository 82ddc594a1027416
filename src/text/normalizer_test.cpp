#include "text/normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>

#include "base/utf8.h"

namespace nibble {
namespace {

std::string nfc(std::string_view text) {
  std::string storage;
  return std::string(to_nfc(text, storage));
}

std::string utf8proc_nfc(const std::string& text) {
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> normal(
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str())), std::free);
  return reinterpret_cast<const char*>(normal.get());
}

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(nfc("\u2126"), "\u03a9");
}

TEST(Nfc, LeavesAloneWhatTheReferenceDoesNotKnow) {
  // U+1ABF has combining class 220 since Unicode 13, which would put it before the acute accent.
  EXPECT_EQ(nfc("a\u0301\u1abf"), "\u00e1\u1abf");
  EXPECT_EQ(nfc("\u0301\u1abf\u0316"), "\u0301\u1abf\u0316");
}

TEST(Nfc, AgreesWithUtf8procOnRandomText) {
  // Blocks that both know alike.
  constexpr std::pair<char32_t, char32_t> kBlocks[] = {{0x20, 0x7E},     {0xA0, 0x24F},    {0x300, 0x36F},
                                                       {0x1100, 0x11FF}, {0x1E00, 0x1FFE}, {0xAC00, 0xAD00},
                                                       {0x915, 0x94D},   {0xF900, 0xFA20}, {0x591, 0x5F4}};
  std::mt19937 random(4);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t length = random() % 12; length > 0; --length) {
      const auto& [first, last] = kBlocks[random() % std::size(kBlocks)];
      append_utf8(text, first + static_cast<char32_t>(random() % (last - first + 1)));
    }
    ASSERT_EQ(nfc(text), utf8proc_nfc(text)) << testing::PrintToString(text);
  }
}

TEST(Nfc, TakesTimeLinearInARunOfMarks) {
  std::string marks = "e", sorted = "e";
  constexpr int kMarks = 300000;
  for (int i = 0; i < kMarks; ++i) marks += "\u0327\u0301\u0316";  // classes 202, 230, 220
  const std::string normal = nfc(marks);
  // The first cedilla joins the e; the others, the graves below and the acutes follow in the order of
  // classes.
  EXPECT_EQ(normal.substr(0, 4), "\u0229\u0327");
  EXPECT_EQ(normal.substr(normal.size() - 4), "\u0301\u0301");
  EXPECT_EQ(normal.size(), marks.size() - 1);
}

}  // namespace
}  // namespace nibble
