#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "text/stop_strings.h"
#include "text/stream_decoder.h"

namespace nibble {
namespace {

const std::filesystem::path kExample = std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity/example";

Tokenizer example() { return Tokenizer::load(kExample).value(); }

TEST(Tokenizer, JoinsBackToTheText) {
  const Tokenizer tokenizer = example();
  for (const std::string text :
       {"", "The fox.", "  na\xC3\xAFve \xF0\x9F\xA6\x8A\r\n\r\n 12345", "<|end|>"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, ControlTokensCountOnlyWhereTheyAreTrusted) {
  const Tokenizer tokenizer = example();
  const TokenId end = tokenizer.control_id("<|end|>").value();
  const std::string text = "<|end|>";
  EXPECT_EQ(tokenizer.encode_trusted(text), std::vector<TokenId>{end});
  for (const TokenId id : tokenizer.encode(text)) EXPECT_FALSE(tokenizer.is_control(id));
}

}  // namespace
}  // namespace nibble
