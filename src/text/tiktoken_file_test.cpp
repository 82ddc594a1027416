#include <gtest/gtest.h>

#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

namespace nibble {
namespace {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      word = word << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      out.push_back(at + i > bytes.size() ? '=' : kDigits[word >> (18 - 6 * i) & 63]);
    }
  }
  return out;
}

// All bytes and then these tokens, ranked in order.
std::string rank_file(const std::vector<std::string>& tokens) {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    text += base64({&c, 1}) + " " + std::to_string(rank++) + "\n";
  }
  for (const std::string& token : tokens) text += base64(token) + " " + std::to_string(rank++) + "\n";
  return text;
}

TEST(TiktokenFile, RanksAreRead) {
  const TokenizerParts parts = read_tiktoken(rank_file({"ab", "abc", " abc"}), "o200k_base").value();
  EXPECT_EQ(parts.vocabulary->bytes(258), " abc");
  EXPECT_EQ(parts.vocabulary->bytes(199999), "<|endoftext|>");
  EXPECT_EQ(parts.vocabulary->size(), 200019);
  EXPECT_EQ(parts.bpe.merges.ranks.find('a', 'b'), 256u);
  EXPECT_EQ(parts.bpe.merges.ranks.find(256, 'c'), 257u);
  EXPECT_EQ(parts.bpe.merges.ranks.find(' ', 257), 258u);
}

TEST(TiktokenFile, HarmonyHasAllItsControlTokens) {
  const TokenizerParts parts = read_tiktoken(rank_file({}), "o200k_harmony").value();
  EXPECT_EQ(parts.controls.size(), 1090u);
  EXPECT_EQ(parts.vocabulary->bytes(200005), "<|channel|>");
  EXPECT_EQ(parts.vocabulary->bytes(200013), "<|reserved_200013|>");
  EXPECT_EQ(parts.vocabulary->bytes(200018), "<|endofprompt|>");
  EXPECT_EQ(parts.vocabulary->size(), 201088);
}

void expect_refused(std::string_view text, std::string_view message) {
  const Result<TokenizerParts> parts = read_tiktoken(text, "o200k_base");
  ASSERT_FALSE(parts.ok()) << message;
  EXPECT_EQ(parts.status().message(), message);
}

TEST(TiktokenFile, BrokenLinesAreNamed) {
  expect_refused("IQ== 0\nIg==\n", "line 2 is not a base64 token and its rank");
  expect_refused("!!!! 0\n", "line 1 does not begin with base64");
  expect_refused("IQ= 0\n", "line 1 does not begin with base64");
  expect_refused("I=Q= 0\n", "line 1 does not begin with base64");
  expect_refused("IQ== zero\n", "line 1 does not end with a rank");
  expect_refused("IQ== 1 \n", "line 1 does not end with a rank");
  expect_refused("IQ== -1\n", "line 1 is refused: token id -1 is outside 0..2097150");
  expect_refused("IQ== 99999999999999999999\n", "line 1 does not end with a rank");
  expect_refused("IQ== 0\nIg== 0\n", "line 2 is refused: token id 0 is given to two tokens");
  expect_refused(base64(std::string(513, 'a')) + " 0\n", "line 1 has a token of more than 512 bytes");
  expect_refused(rank_file({"ab", "ab"}), "ranks 256 and 257 are of the same token");
  expect_refused("IQ== 0\n",
                 "the vocabulary has no token for the byte 0x00, so some text could not be encoded");
  expect_refused(
      "IQ== 199999\n",
      "these are not the ranks of o200k_base: its control token <|endoftext|> has the id of a rank");
}

TEST(TiktokenFile, NeedsAKnownEncoding) {
  EXPECT_EQ(read_tiktoken("", "").status().message(),
            "a rank file needs --encoding o200k_base or o200k_harmony");
  EXPECT_EQ(read_tiktoken("", "p50k_base").status().message(),
            "a rank file needs --encoding o200k_base or o200k_harmony, not \"p50k_base\"");
  EXPECT_EQ(read_tiktoken("", "").status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace nibble
