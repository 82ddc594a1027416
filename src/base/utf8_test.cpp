#include "base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace nibble {
namespace {

// Decodes by the bit patterns alone and encodes again: only the one right spelling survives.
bool well_formed_by_round_trip(std::string_view bytes) {
  char32_t code = 0;
  const auto lead = static_cast<unsigned char>(bytes[0]);
  const std::size_t length = lead < 0x80             ? 1
                             : (lead & 0xe0) == 0xc0 ? 2
                             : (lead & 0xf0) == 0xe0 ? 3
                             : (lead & 0xf8) == 0xf0 ? 4
                                                     : 0;
  if (length != bytes.size()) return false;
  code = length == 1 ? lead : lead & (0x7fu >> length);
  for (const char c : bytes.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
  std::string again;
  append_utf8(again, code);
  return again == bytes;
}

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t code = 0; code <= 0x10ffff; ++code) {
    if (code >= 0xd800 && code <= 0xdfff) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_TRUE(is_valid_utf8(text)) << std::hex << std::uint32_t{code};
    const CodePoint decoded = decode_valid_utf8(text.data());
    ASSERT_TRUE(decoded.value == code) << std::hex << std::uint32_t{code};
    ASSERT_EQ(decoded.length, text.size());
  }
}

TEST(Utf8, EverySequenceOfUpToThreeBytesIsJudgedRight) {
  for (unsigned bits = 0; bits < 1u << 24; ++bits) {
    const char bytes[3] = {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8),
                           static_cast<char>(bits)};
    if ((bits & 0xffff) == 0) {
      ASSERT_EQ(read_utf8({bytes, 1}).kind == Utf8Sequence::Kind::complete,
                well_formed_by_round_trip({bytes, 1}));
    }
    const Utf8Sequence sequence = read_utf8({bytes, 3});
    const bool complete = sequence.kind == Utf8Sequence::Kind::complete;
    if (complete) {
      ASSERT_TRUE(well_formed_by_round_trip({bytes, sequence.length})) << std::hex << bits;
    } else {
      for (std::size_t length = 1; length <= 3; ++length) {
        ASSERT_FALSE(well_formed_by_round_trip({bytes, length})) << std::hex << bits;
      }
    }
  }
}

TEST(Utf8, FourByteSequencesEndAtTheLastCodePoint) {
  EXPECT_TRUE(is_valid_utf8("\xf4\x8f\xbf\xbf"));
  EXPECT_FALSE(is_valid_utf8("\xf4\x90\x80\x80"));
  EXPECT_FALSE(is_valid_utf8("\xf0\x8f\xbf\xbf")) << "overlong";
  EXPECT_FALSE(is_valid_utf8("\xf5\x80\x80\x80"));
}

TEST(Utf8, ValidPrefixStopsAtTheFirstBadByteWhereverItStands) {
  for (std::size_t at = 0; at < 40; ++at) {
    std::string text(40, 'a');
    text[at] = '\xff';
    EXPECT_EQ(valid_utf8_prefix(text), at);
  }
}

// The example of the Unicode Standard, table 3-8 and those beside it.
TEST(Utf8, EachMaximalIllFormedPartIsOneReplacementCharacter) {
  EXPECT_EQ(to_valid_utf8("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(to_valid_utf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(to_valid_utf8("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(to_valid_utf8("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(to_valid_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(to_valid_utf8("cut \xf0\x9f\x98"), "cut \uFFFD");
}

}  // namespace
}  // namespace nibble
