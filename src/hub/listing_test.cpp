#include "hub/listing.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble {
namespace {

const std::string kSha1(40, 'a');
const std::string kSha256(64, 'b');

std::string entry(const std::string& path, const std::string& more = "") {
  return R"({"type":"file","oid":")" + kSha1 + R"(","size":7,"path":")" + path + "\"" + more + "}";
}

TEST(Listing, ASmallFileIsNamedByGitAndALargeOneByItsSha256) {
  const auto files =
      *parse_tree("[" + entry("config.json") + "," +
                  entry("model.safetensors", R"(,"lfs":{"oid":")" + kSha256 + R"(","size":9})") +
                  R"(,{"type":"directory","oid":"x","size":0,"path":"original"}])");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0], (HubFile{.path = "config.json", .size = 7, .blob = kSha1, .large = false}));
  EXPECT_EQ(files[1], (HubFile{.path = "model.safetensors", .size = 9, .blob = kSha256, .large = true}));
}

TEST(Listing, WhatCannotBeAFileIsRefused) {
  for (const std::string& bad :
       {entry("../x"), entry("/x"), entry("a//b"), entry("a/./b"), entry("a/"), entry("x\\u0000"),
        entry("\\u001b"), entry("a\\\\b"), entry("\\u00e4"), entry(std::string(600, 'x')), std::string("7"),
        std::string("{}"), std::string(R"({"type":"file","path":"a","size":1})"),
        std::string(R"({"type":"file","path":"a","oid":")") + kSha1 + "\"}",
        R"({"type":"file","path":"a","size":1.5,"oid":")" + kSha1 + "\"}",
        R"({"type":"file","path":"a","size":-1,"oid":")" + kSha1 + "\"}",
        R"({"type":"file","path":"a","size":1,"oid":")" + std::string(40, 'A') + "\"}",
        entry("a", R"(,"lfs":{"oid":")" + kSha1 + R"(","size":9})")}) {
    EXPECT_FALSE(parse_tree("[" + bad + "]").ok()) << bad;
  }
  EXPECT_FALSE(parse_tree("{}").ok());
  EXPECT_FALSE(parse_tree(std::string(100, '[')).ok());
}

TEST(Listing, ACommitHasFortyDigits) {
  EXPECT_EQ(*parse_revision(R"({"sha":")" + kSha1 + "\"}"), kSha1);
  for (const char* bad : {"{}", "[]", R"({"sha":1})", R"({"sha":"main"})",
                          R"({"sha":"../../aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})"})
    EXPECT_FALSE(parse_revision(bad).ok()) << bad;
}

TEST(Listing, TheNextPageIsTheLinkThatSaysSo) {
  EXPECT_EQ(next_page(R"(<http://a/1>; rel="next")"), "http://a/1");
  EXPECT_EQ(next_page(R"(<http://a/0>; rel="prev", <http://a/2>; rel="next")"), "http://a/2");
  for (const char* none : {"", "<", "<a", "a>", R"(<http://a>; rel="prev")", "rel=next", "<>"})
    EXPECT_FALSE(next_page(none)) << none;
}

HubFile file(const std::string& path) { return {.path = path, .size = 1, .blob = kSha1, .large = false}; }

std::vector<std::string> chosen(const std::vector<std::string>& paths) {
  std::vector<HubFile> files;
  for (const std::string& path : paths) files.push_back(file(path));
  const Result<std::vector<HubFile>> result = choose_files(files, "a/b");
  if (!result.ok()) return {result.status().message()};
  std::vector<std::string> names;
  for (const HubFile& each : *result) names.push_back(each.path);
  return names;
}

TEST(FileChoice, TakesTheTopFoldersCheckpointAndTokenizer) {
  EXPECT_EQ(chosen({".gitattributes",
                    "LICENSE",
                    "README.md",
                    "USAGE_POLICY",
                    "chat_template.jinja",
                    "config.json",
                    "generation_config.json",
                    "metal/model.bin",
                    "model-00000-of-00002.safetensors",
                    "model-00001-of-00002.safetensors",
                    "model.safetensors.index.json",
                    "original/config.json",
                    "original/model.safetensors",
                    "pytorch_model.bin",
                    "model.gguf",
                    "special_tokens_map.json",
                    "tokenizer.json",
                    "tokenizer_config.json",
                    "onnx/model.onnx",
                    "o200k.tiktoken"}),
            (std::vector<std::string>{"chat_template.jinja", "config.json", "generation_config.json",
                                      "model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors",
                                      "model.safetensors.index.json", "o200k.tiktoken",
                                      "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}));
}

TEST(FileChoice, LeavesASecondCopyOfTheWeights) {
  EXPECT_EQ(chosen({"config.json", "consolidated.safetensors", "model.safetensors"}),
            (std::vector<std::string>{"config.json", "model.safetensors"}));
  EXPECT_EQ(chosen({"config.json", "consolidated.safetensors"}),
            (std::vector<std::string>{"config.json", "consolidated.safetensors"}));
}

TEST(FileChoice, SaysWhatIsMissing) {
  EXPECT_NE(chosen({"model.safetensors"})[0].find("no config.json"), std::string::npos);
  EXPECT_NE(chosen({"config.json", "x.gguf"})[0].find("GGUF"), std::string::npos);
  EXPECT_NE(chosen({"config.json", "config.json", "a.safetensors"})[0].find("twice"), std::string::npos);
}

TEST(FileChoice, AnIndexDecidesWhichWeights) {
  const std::vector<HubFile> files = {file("config.json"), file("a.safetensors"), file("b.safetensors"),
                                      file("c.safetensors")};
  const auto kept =
      *keep_indexed(files, R"({"weight_map":{"x":"a.safetensors","y":"c.safetensors","z":"a.safetensors"}})");
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[1].path, "a.safetensors");
  EXPECT_EQ(kept[2].path, "c.safetensors");
  for (const char* bad : {R"({"weight_map":{"x":"d.safetensors"}})", R"({"weight_map":{"x":"../d"}})",
                          R"({"weight_map":{"x":"config.json"}})", R"({"weight_map":{"x":7}})",
                          R"({"weight_map":[]})", "{}", "", "7"})
    EXPECT_FALSE(keep_indexed(files, bad).ok()) << bad;
}

}  // namespace
}  // namespace nibble
