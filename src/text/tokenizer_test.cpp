#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "base/quote.h"
#include "base/utf8.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(NIBBLE_SOURCE_DIR) / "tests/data";

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Tokenizer example() { return Tokenizer::load(kData / "parity/example").value(); }

// tests/data/tokenizers/<name>: a small tokenizer.json of each kind and the ids that PyPI tokenizers gives
// (tools/make_tokenizer_cases.py).
class GoldenTokenizers : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizers, GiveTheIdsOfTheTokenizersLibrary) {
  const fs::path folder = kData / "tokenizers" / GetParam();
  const Tokenizer tokenizer = Tokenizer::load(folder).value();
  const JsonDocument cases = JsonDocument::parse(read(folder / "cases.json")).value();
  const auto ids_of = [](JsonValue list) {
    std::vector<TokenId> ids;
    for (const JsonValue id : list.elements()) ids.push_back(static_cast<TokenId>(id.as_integer()));
    return ids;
  };
  EXPECT_GT(cases.root().size(), 200u);
  for (const JsonValue one : cases.root().elements()) {
    const std::string_view text = one.find("text")->as_string();
    // "plain" is the library without added tokens, "trusted" with them.
    EXPECT_EQ(tokenizer.encode(text), ids_of(*one.find("plain"))) << testing::PrintToString(text);
    EXPECT_EQ(tokenizer.encode_trusted(text), ids_of(*one.find("trusted"))) << testing::PrintToString(text);
    EXPECT_EQ(tokenizer.decode(ids_of(*one.find("plain"))), one.find("decoded")->as_string());
  }
}
INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizers,
                         testing::Values("gpt_oss", "qwen3", "qwen3_5", "deepseek_v3", "kimi_k2", "glm_4_5",
                                         "gpt2"));

TEST(Tokenizer, ControlTokensCountOnlyWhollyInsideATrustedSpan) {
  const Tokenizer tokenizer = example();
  const TokenId end = tokenizer.control_id("<|end|>").value();
  const std::string text = "a<|end|>b<|end|>c";
  const auto count = [&](std::vector<TextSpan> trusted) {
    const std::vector<TokenId> ids = tokenizer.encode(text, trusted);
    EXPECT_EQ(tokenizer.decode(ids), text);
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(count({}), 0);
  EXPECT_EQ(count({{0, text.size()}}), 2);
  EXPECT_EQ(count({{1, 8}}), 1);
  EXPECT_EQ(count({{1, 7}}), 0);
  EXPECT_EQ(count({{2, 8}}), 0);
  EXPECT_EQ(count({{0, 4}, {4, 8}}), 0);  // wholly inside neither
  EXPECT_EQ(count({{0, 8}, {8, 17}}), 2);
}

TEST(Tokenizer, TextIsNotCutAtTheSeamsOfTrustedSpans) {
  const Tokenizer tokenizer = example();
  const std::string text = "the quick brown fox";
  for (std::size_t seam = 0; seam <= text.size(); ++seam) {
    const TextSpan spans[] = {{0, seam}, {seam, text.size()}};
    EXPECT_EQ(tokenizer.encode(text, spans), tokenizer.encode(text));
  }
}

TEST(Tokenizer, NoTextBecomesAControlTokenUntrusted) {
  const Tokenizer tokenizer = example();
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t parts = random() % 6; parts > 0; --parts) {
      constexpr const char* kParts[] = {"<|", "end", "|>", "<|start|>", "<|channel|>", " ", "<|end|>"};
      text += kParts[random() % std::size(kParts)];
    }
    for (const TokenId id : tokenizer.encode(text)) EXPECT_FALSE(tokenizer.is_control(id)) << text;
  }
}

TEST(Tokenizer, JoinsBackToAnyText) {
  const Tokenizer tokenizer = example();
  std::mt19937 random(8);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t length = random() % 30; length > 0; --length)
      text.push_back(static_cast<char>(random()));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), to_valid_utf8(text));
  }
}

TEST(Tokenizer, BytesAreExactAndEmptyOutsideTheVocabulary) {
  const Tokenizer tokenizer = example();
  EXPECT_EQ(tokenizer.bytes(tokenizer.control_id("<|start|>").value()), "<|start|>");
  EXPECT_EQ(tokenizer.bytes(220), " ");
  EXPECT_EQ(tokenizer.bytes(-1), "");
  EXPECT_EQ(tokenizer.bytes(tokenizer.vocabulary_size()), "");
  EXPECT_EQ(tokenizer.bytes(INT32_MAX), "");
  EXPECT_FALSE(tokenizer.is_control(-1));
  EXPECT_FALSE(tokenizer.is_control(INT32_MAX));
  EXPECT_FALSE(tokenizer.control_id("<|nothing|>"));
  const std::vector<TokenId> ids = {220, tokenizer.control_id("<|end|>").value(), 220};
  EXPECT_EQ(tokenizer.decode(ids), " <|end|> ");
  EXPECT_EQ(tokenizer.decode(ids, false), "  ");
}

TEST(Tokenizer, ManyThreadsMayEncodeAtOnce) {
  const Tokenizer tokenizer = example();
  std::string text;
  for (int i = 0; i < 500; ++i)
    text += "The fox \u00e9\u4e2d " + std::string(static_cast<std::size_t>(i), 'x') + "\n";
  const std::vector<TokenId> expected = tokenizer.encode(text);
  std::vector<std::vector<TokenId>> results(4);
  std::vector<std::thread> threads;
  for (std::vector<TokenId>& result : results) threads.emplace_back([&] { result = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<TokenId>& result : results) EXPECT_EQ(result, expected);
}

TEST(Tokenizer, ALongTextNeedsLittleStack) {
  std::vector<Tokenizer> tokenizers;
  for (const char* name : {"gpt_oss", "qwen3", "deepseek_v3", "gpt2"}) {
    tokenizers.push_back(Tokenizer::load(kData / "tokenizers" / name).value());
  }
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
  const auto encode_all = [](void* argument) -> void* {
    for (const Tokenizer& tokenizer : *static_cast<std::vector<Tokenizer>*>(argument)) {
      for (const std::string unit : {"a", " ", "\n", "\u0301", "\u4e2d", "\U0001F469\u200D"}) {
        std::string text;
        while (text.size() < 200000) text += unit;
        tokenizer.encode(text);
      }
    }
    return nullptr;
  };
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, encode_all, &tokenizers), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(Tokenizer, FilesThatAreNoTokenizerAreRefusedWithTheirName) {
  const auto message = [](const fs::path& path, std::string_view encoding = "") {
    return Tokenizer::load(path, encoding).status().message();
  };
  EXPECT_EQ(message("/nowhere/tokenizer.json"),
            "cannot open \"/nowhere/tokenizer.json\": No such file or directory");
  EXPECT_EQ(Tokenizer::load("/nowhere/tokenizer.json").status().code(), StatusCode::not_found);
  EXPECT_EQ(message(kData),
            "cannot open " + quote((kData / "tokenizer.json").native()) + ": No such file or directory");
  EXPECT_EQ(message("/dev/null"), "\"/dev/null\" is not a regular file");
  EXPECT_EQ(Tokenizer::load("/dev/null").status().code(), StatusCode::broken_model);
  const fs::path config = kData / "parity/example/config.json";
  EXPECT_EQ(message(config), quote(config.native()) +
                                 ": the pre_tokenizer has no ByteLevel step; byte-level BPE is supported");
  EXPECT_EQ(message(config, "o200k_base"),
            quote(config.native()) + ": --encoding \"o200k_base\" is for .tiktoken rank files");
}

}  // namespace
}  // namespace nibble
