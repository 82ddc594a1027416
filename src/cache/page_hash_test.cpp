#include "cache/page_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace nibble {
namespace {

// The vectors that SipHash's authors publish for 128 bits: key 00 01 .. 0f, inputs 00 01 02 ...
TEST(PageHash, IsSipHashOf128Bits) {
  const HashKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  EXPECT_EQ(keyed_hash(key, ""), (PageHash{0xe6a825ba047f81a3, 0x930255c71472f66d}));
  EXPECT_EQ(keyed_hash(key, std::string_view("\0", 1)), (PageHash{0x44af996bd8c187da, 0x45fc229b11597634}));
}

TEST(PageHash, APageIsHashedLikeTheBytesOfItsParentAndTokens) {
  const HashKey key{1, 2};
  const PageHash parent{0x1122334455667788, 0x99aabbccddeeff00};
  for (const std::size_t count : {1u, 2u, 5u, 16u}) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(i * 70'001));
    std::string bytes;
    const auto add = [&](std::uint64_t word, int width) {
      for (int i = 0; i < width; ++i) bytes.push_back(static_cast<char>(word >> (8 * i)));
    };
    add(parent.low, 8);
    add(parent.high, 8);
    for (const TokenId token : tokens) add(static_cast<std::uint32_t>(token), 4);
    EXPECT_EQ(page_hash(key, parent, tokens), keyed_hash(key, bytes)) << count;
  }
}

TEST(PageHash, KeyParentTokensAndTheirOrderAllCount) {
  const std::vector<TokenId> tokens{1, 2, 3, 4}, swapped{2, 1, 3, 4};
  const std::set<PageHash> hashes{page_hash({1, 2}, {3, 4}, tokens), page_hash({1, 3}, {3, 4}, tokens),
                                  page_hash({1, 2}, {3, 5}, tokens), page_hash({1, 2}, {3, 4}, swapped)};
  EXPECT_EQ(hashes.size(), 4u);
}

}  // namespace
}  // namespace nibble
