#include "text/tokenizer_info.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "base/json.h"

namespace nibble {
namespace {

TEST(TokenizerInfo, IsTheModelsConfigWithItsTemplate) {
  const std::filesystem::path folder = NIBBLE_SOURCE_DIR "/models/demo";
  const JsonDocument info = JsonDocument::parse(tokenizer_info(folder).value()).value();
  EXPECT_EQ(info.root().find("tokenizer_class")->as_string(), "PreTrainedTokenizerFast");
  EXPECT_EQ(info.root().find("eos_token")->as_string(), "<|return|>");
  EXPECT_EQ(info.root().find("added_tokens_decoder")->find("6127")->find("content")->as_string(),
            "<|return|>");
  EXPECT_EQ(info.root().find("chat_template")->as_string(),
            read_file(folder / "chat_template.jinja", 1 << 20).value());
}

TEST(TokenizerInfo, AFolderWithoutAConfigHasAClassAndNothingElse) {
  const auto folder = std::filesystem::temp_directory_path() / "nibble_tokenizer_info_test";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(tokenizer_info(folder).value(), R"({"tokenizer_class":"PreTrainedTokenizerFast"})");
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"tokenizer_class":"T","vocab_file":"/home/x/vocab.json","chat_template":"{{ 1 }}","add_bos_token":null})";
  EXPECT_EQ(tokenizer_info(folder).value(),
            R"({"tokenizer_class":"T","chat_template":"{{ 1 }}","add_bos_token":null})");
  std::ofstream(folder / "tokenizer_config.json") << "[]";
  EXPECT_FALSE(tokenizer_info(folder).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace nibble
