#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(NIBBLE_SOURCE_DIR) / "tests/data/tokenizers/kimi_k2";

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string replaced(std::string text, std::string_view part, std::string_view by) {
  const std::size_t at = text.find(part);
  EXPECT_NE(at, text.npos) << part;
  return text.replace(at, part.size(), by);
}

TEST(KimiTokenizer, NamesItsControlTokensFromTheConfigAndReservesTheOthers) {
  const Tokenizer tokenizer = Tokenizer::load(kFolder).value();
  const TokenId first = tokenizer.control_id("[BOS]").value();
  EXPECT_EQ(tokenizer.vocabulary_size(), first + 256);
  EXPECT_EQ(tokenizer.control_id("<|im_end|>"), first + 2);
  EXPECT_EQ(tokenizer.bytes(first + 5), "<|reserved_token_" + std::to_string(first + 5) + "|>");
  EXPECT_TRUE(tokenizer.is_control(first + 255));
  EXPECT_TRUE(tokenizer.is_hidden(first + 2));
  // What tool calls and reasoning are read by is no special token in the config.
  EXPECT_FALSE(tokenizer.is_hidden(tokenizer.control_id("<|tool_call_begin|>").value()));
  EXPECT_FALSE(tokenizer.is_hidden(tokenizer.control_id("<think>").value()));
}

TEST(KimiTokenizer, WhatContradictsItsRanksIsNamed) {
  const std::string ranks = read(kFolder / "tiktoken.model");
  const std::string config = read(kFolder / "tokenizer_config.json");
  const std::string first = std::to_string(Tokenizer::load(kFolder).value().control_id("[BOS]").value());
  const auto refusal = [&](std::string changed) {
    const Result<TokenizerParts> parts = read_kimi_tokenizer(ranks, std::move(changed));
    return parts.ok() ? "accepted" : parts.status().message();
  };
  EXPECT_EQ(
      refusal(replaced(config, "TikTokenTokenizer", "QWenTokenizer")),
      "tokenizer_config.json beside it: its tokenizer_class is not TikTokenTokenizer, Kimi's, so the pattern "
      "that splits text is not known; a tokenizer.json would say it");
  EXPECT_EQ(
      refusal(replaced(config, "\"" + first + "\"", "\"12\"")),
      "tokenizer_config.json beside it: added_tokens_decoder names token 12, which is none of the 256 behind "
      "the " +
          first + " ranks");
  EXPECT_EQ(refusal(replaced(config, "\"" + first + "\"", "\"-1\"")),
            "tokenizer_config.json beside it: added_tokens_decoder has the key \"-1\", which is no token id");
  EXPECT_EQ(refusal(replaced(config, "\"content\":\"[BOS]\"", "\"content\":\"\"")),
            "tokenizer_config.json beside it: added_tokens_decoder gives token " + first + " no content");
  EXPECT_EQ(refusal(replaced(config, "[BOS]", "[EOS]")),
            "tokenizer_config.json beside it: added_tokens_decoder spells tokens " + first + " and " +
                std::to_string(std::stoi(first) + 1) + " both \"[EOS]\"");
  EXPECT_EQ(refusal(replaced(config, "added_tokens_decoder", "added_tokens")),
            "tokenizer_config.json beside it: it has no added_tokens_decoder");
  EXPECT_EQ(refusal("[]"), "tokenizer_config.json beside it: it is no JSON object");
}

TEST(KimiTokenizer, WithoutItsConfigIsRefused) {
  const fs::path folder = fs::path(testing::TempDir()) / "kimi_without_config";
  fs::create_directories(folder);
  fs::copy_file(kFolder / "tiktoken.model", folder / "tiktoken.model", fs::copy_options::overwrite_existing);
  const Result<Tokenizer> tokenizer = Tokenizer::load(folder);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.status().message().find("tokenizer_config.json"), std::string::npos)
      << tokenizer.status().message();
}

}  // namespace
}  // namespace nibble
