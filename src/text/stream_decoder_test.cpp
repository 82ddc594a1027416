#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"

namespace nibble {
namespace {

Tokenizer example() {
  return Tokenizer::load(std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity/example").value();
}

TEST(StreamDecoder, KeepsBackACharacterUntilItIsWhole) {
  const Tokenizer tokenizer = example();
  StreamDecoder decoder(tokenizer);
  const std::vector<TokenId> ids = tokenizer.encode("\xF0\x9F\xA6\x8A");  // a fox, a token a byte
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.push(ids[1]), "");
  EXPECT_EQ(decoder.push(ids[2]), "");
  EXPECT_EQ(decoder.push(ids[3]), "\xF0\x9F\xA6\x8A");
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamDecoder, JoinsToWhatDecodeGivesForAnyTokens) {
  const Tokenizer tokenizer = example();
  std::mt19937 random(5);
  for (int round = 0; round < 4000; ++round) {
    const bool show_hidden = round % 2 == 0;
    std::vector<TokenId> ids;
    for (std::size_t length = random() % 20; length > 0; --length) {
      // Half of them tokens of one byte beyond ASCII, which make and break characters.
      const bool byte = random() % 2 == 0;
      ids.push_back(static_cast<TokenId>(
          byte ? 94 + random() % 162 : random() % static_cast<unsigned>(tokenizer.vocabulary_size())));
    }
    StreamDecoder decoder(tokenizer, show_hidden ? HiddenTokens::shown : HiddenTokens::left_out);
    std::string joined;
    for (const TokenId id : ids) {
      const std::string part = decoder.push(id);
      ASSERT_TRUE(is_valid_utf8(part));
      joined += part;
    }
    joined += decoder.flush();
    ASSERT_EQ(joined, tokenizer.decode(ids, show_hidden));
  }
}

TEST(StreamDecoder, ACharacterCutOffAtTheEndIsOneReplacement) {
  const Tokenizer tokenizer = example();
  StreamDecoder decoder(tokenizer);
  const std::vector<TokenId> ids = tokenizer.encode("\xF0\x9F\xA6\x8A");
  std::string text;
  for (std::size_t i = 0; i < 3; ++i) text += decoder.push(ids[i]);
  EXPECT_EQ(text, "");
  EXPECT_EQ(decoder.flush(), kReplacementCharacter);
  EXPECT_EQ(decoder.flush(), "");
}

}  // namespace
}  // namespace nibble
