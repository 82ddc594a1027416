// What a tokenizer.json may not say, and the sentence that says so.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/utf8.h"
#include "text/tokenizer_parts.h"

namespace nibble {
namespace {

std::string example_json() {
  std::ifstream file(std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity/example/tokenizer.json");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The example with the first `from` replaced by `to`.
std::string changed(std::string_view from, std::string_view to) {
  std::string json = example_json();
  const std::size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return json.replace(at, from.size(), to);
}

void expect_refused(std::string json, std::string_view message) {
  const Result<TokenizerParts> parts = read_tokenizer_json(std::move(json));
  ASSERT_FALSE(parts.ok()) << message;
  EXPECT_EQ(parts.status().message(), message);
  EXPECT_EQ(parts.status().code(), StatusCode::broken_model);
}

TEST(TokenizerJson, TheExampleIsRead) { EXPECT_TRUE(read_tokenizer_json(example_json()).ok()); }

TEST(TokenizerJson, WhatStandsAroundATextIsKeptBesideIt) {
  const auto with = [](std::string_view processor) {
    return read_tokenizer_json(
        changed("\"post_processor\": {", "\"post_processor\": " + std::string(processor) + ", \"old\": {"));
  };
  const std::string example = example_json();
  const JsonDocument document = JsonDocument::parse(example).value();
  const JsonValue first = *document.root().find("added_tokens")->elements().begin();
  const std::string id = std::to_string(first.find("id")->as_integer());
  const std::string special = R"("special_tokens": {"<s>": {"id": "<s>", "ids": [)" + id + "]}}";
  const std::string text = R"({"Sequence": {"id": "A", "type_id": 0}})",
                    token = R"({"SpecialToken": {"id": "<s>"}})";
  const auto processing = [&](const std::string& single) {
    return R"({"type": "TemplateProcessing", "single": [)" + single + "], " + special + "}";
  };
  auto parts = with(processing(token + "," + text + "," + token + "," + token));
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  EXPECT_EQ(parts->before_text.size(), 1u);
  EXPECT_EQ(parts->behind_text.size(), 2u);
  parts = with(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, )" + processing(text) + "]}");
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  EXPECT_TRUE(parts->before_text.empty() && parts->behind_text.empty());
  EXPECT_FALSE(with(processing(text + "," + text)).ok());
  EXPECT_FALSE(
      with(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "</s>"}}], )" + special + "}")
          .ok());
  EXPECT_FALSE(with(R"({"type": "TemplateProcessing", "single": [{"Other": 1}]})").ok());
}

TEST(TokenizerJson, WhichControlTokensAreHiddenIsTheFilesWord) {
  const auto parts = read_tokenizer_json(changed("\"special\": true", "\"special\": false"));
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  int shown = 0;
  for (const ControlToken& control : parts->controls) shown += control.hidden ? 0 : 1;
  EXPECT_EQ(shown, 1);
}

TEST(TokenizerJson, TruncatedAnywhereIsRefused) {
  const std::string json = example_json();
  for (std::size_t size = 0; size < json.size(); size += 997) {
    EXPECT_FALSE(read_tokenizer_json(json.substr(0, size)).ok());
  }
}

TEST(TokenizerJson, NestingAndSizeHaveLimits) {
  EXPECT_FALSE(read_tokenizer_json(std::string(10000, '[')).ok());
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += R"({"normalizer":)";
  EXPECT_FALSE(read_tokenizer_json(deep).ok());
}

TEST(TokenizerJson, OtherKindsAreRefusedByName) {
  expect_refused("[]", "it is no JSON object");
  expect_refused("{}", "the pre_tokenizer has no ByteLevel step; byte-level BPE is supported");
  expect_refused(changed(R"("type": "BPE")", R"("type": "Unigram")"),
                 "model.type is \"Unigram\"; BPE is supported");
  expect_refused(changed(R"("type": "BPE")", R"("type": 7)"), "model.type is an integer, not a string");
  expect_refused(changed(R"("type": "BPE",)", ""), "model has no type");
  expect_refused(
      changed(R"("type": "Split")", R"("type": "Whitespace")"),
      "the pre_tokenizer \"Whitespace\" is not supported; Sequence, Split, Digits and ByteLevel are");
  expect_refused(changed(R"("behavior": "Isolated")", R"("behavior": "Sideways")"),
                 "Split has the unknown behavior \"Sideways\"");
  expect_refused(changed(R"("Regex": )", R"("Glob": )"),
                 "Split.pattern is neither a Regex nor a String of at least one byte");
  expect_refused(changed(R"("normalizer": null)", R"("normalizer": {"type": "Lowercase"})"),
                 "the normalizer \"Lowercase\" is not supported; NFC and a Sequence of it are");
  expect_refused(changed(R"("normalizer": null)", R"("normalizer": "NFC")"),
                 "normalizer is a string, not an object");
  expect_refused(changed(R"("decoder": {)", R"("ignored": {)"), "it has no decoder; ByteLevel is supported");
}

TEST(TokenizerJson, WhatItAsksOfTheModelIsHonouredOrRefused) {
  expect_refused(changed(R"("byte_fallback": false)", R"("byte_fallback": true)"),
                 "model.byte_fallback is on, which is not supported; byte-level BPE is");
  expect_refused(changed(R"("dropout": null)", R"("dropout": 0.1)"),
                 "model.dropout is on: it is for training");
  expect_refused(changed(R"("end_of_word_suffix": null)", R"("end_of_word_suffix": "</w>")"),
                 "model.end_of_word_suffix is \"</w>\", which is not supported");
  expect_refused(
      changed(R"("lstrip": false)", R"("lstrip": true)"),
      "added token \"<|startoftext|>\" has lstrip, which is not supported: control tokens are matched as "
      "they are spelled");
  EXPECT_TRUE(read_tokenizer_json(changed(R"("dropout": null)", R"("dropout": 0)")).ok());
}

TEST(TokenizerJson, IdsThatContradictAreRefused) {
  expect_refused(changed(R"("id": 401)", R"("id": 400)"),
                 "added token \"<|endoftext|>\": token id 400 is given to two tokens");
  expect_refused(changed(R"("id": 401)", R"("id": 5)"),
                 "token id 5 is \"<|endoftext|>\" in added_tokens but \"&\" in model.vocab");
  expect_refused(changed(R"("id": 401)", R"("id": -1)"),
                 "added token \"<|endoftext|>\": token id -1 is outside 0..2097150");
  expect_refused(changed(R"("id": 401)", R"("id": 9999999999)"),
                 "added token \"<|endoftext|>\": token id 9999999999 is outside 0..2097150");
  expect_refused(changed(R"("id": 401)", R"("id": 2000000)"),
                 "token id 2000000 is far beyond the vocabulary's 417 tokens");
  expect_refused(changed(R"("id": 401)", R"("id": "401")"), "an added token has no integer id");
  expect_refused(changed("\"content\": \"<|endoftext|>\"", "\"content\": \"<|startoftext|>\""),
                 "added tokens 400 and 401 are both spelled \"<|startoftext|>\"");
  expect_refused(changed("\"content\": \"<|endoftext|>\"", "\"content\": \"\""),
                 "added token 401 has no content");
}

TEST(TokenizerJson, VocabularyAndMergesMustFit) {
  expect_refused(changed(R"("!": 0)", R"("!": 1)"),
                 "model.vocab, token \"\\\"\": token id 1 is given to two tokens");
  expect_refused(changed(R"("!": 0)", R"("!": 0.5)"), "model.vocab gives \"!\" no integer id");
  expect_refused(changed(R"("!": 0)", R"("!x": 0)"),
                 "the vocabulary has no token for the byte 0x21, so some text could not be encoded");
}

// A whole small file: the alphabet, "ab", and these merges.
std::string with_merges(std::string_view merges) {
  std::string vocab;
  JsonWriter json(vocab);
  json.begin_object();
  int id = 0;
  // The alphabet in the order of bytes is not needed; all 256 characters are.
  for (char32_t c = 0x21; c < 0x144; ++c) {
    if ((c >= 0x7F && c <= 0xA0) || c == 0xAD) continue;
    std::string token;
    append_utf8(token, c);
    json.member(token, id++);
  }
  json.member("ab", id++);
  json.end_object();
  return R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},)"
         R"("model":{"type":"BPE","vocab":)" +
         vocab + R"(,"merges":)" + std::string(merges) + "}}";
}

TEST(TokenizerJson, BadMergesAreNamed) {
  EXPECT_TRUE(read_tokenizer_json(with_merges(R"([["a","b"]])")).ok());
  EXPECT_TRUE(read_tokenizer_json(with_merges(R"(["a b"])")).ok());
  EXPECT_TRUE(read_tokenizer_json(with_merges("[]")).ok());
  expect_refused(with_merges("7"), "model.merges is an integer, not an array");
  expect_refused(with_merges(R"([["a","zz"]])"),
                 "model.merges[0] merges \"zz\", which is no token of model.vocab that text may become");
  expect_refused(with_merges(R"([["a","b"],["b","a"]])"),
                 "model.merges[1] makes \"ba\", which is no token of model.vocab that text may become");
  expect_refused(with_merges(R"(["ab"])"), "model.merges[0] is neither \"left right\" nor [left, right]");
  expect_refused(with_merges(R"([["a"]])"), "model.merges[0] is neither \"left right\" nor [left, right]");
  expect_refused(with_merges(R"([["a",1]])"), "model.merges[0] is neither \"left right\" nor [left, right]");
  expect_refused(with_merges(R"(["a b", "a b"])"), "model.merges has the same pair twice");
}

}  // namespace
}  // namespace nibble
