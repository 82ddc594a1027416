#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "text/answer_reader.h"
#include "text/thinking_test_util.h"

namespace nibble {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer made =
      thinking_tokenizer(std::filesystem::path(::testing::TempDir()) / "thinking_tokenizer");
  return made;
}

struct Read {
  std::string reasoning, answer, of_shares;
  bool reasons = false;  // at the end
};

Read read(std::string_view prompt, std::string_view spelled, const std::vector<std::string>& stop = {}) {
  AnswerReader reader(tokenizer(), answer_start(tokenizer(), tokenizer().encode_trusted(prompt)),
                      StopStrings::make(stop).value(), AnswerReader::Shares::kept);
  std::vector<AnswerPiece> pieces;
  std::vector<AnswerShare> shares;
  for (const TokenId token : tokenizer().encode_trusted(spelled)) {
    reader.push(token, pieces);
    reader.take_shares(shares);
  }
  Read found{.reasons = reader.reasoning()};
  reader.finish(pieces);
  reader.take_shares(shares);
  for (const AnswerPiece& piece : pieces) {
    EXPECT_FALSE(piece.text.empty());
    (piece.part == AnswerPart::answer ? found.answer : found.reasoning) += piece.text;
  }
  for (const AnswerShare& share : shares) {
    EXPECT_FALSE(share.bytes.empty()) << "a token without text in the answer";
    found.of_shares += share.bytes;
  }
  EXPECT_EQ(found.of_shares, found.answer);
  return found;
}

TEST(Thinking, WhatStandsBetweenTheMarkersIsReasoning) {
  const Read found = read("Hi", "<think>\nOf foxes,\n\nand dogs.\n</think>\n\nA fox.\n\nOr a dog.\n");
  EXPECT_EQ(found.reasoning, "Of foxes,\n\nand dogs.");
  EXPECT_EQ(found.answer, "A fox.\n\nOr a dog.\n");
}

TEST(Thinking, ThePromptMayHaveOpenedIt) {
  EXPECT_EQ(read("Hi<think>\n", "Of foxes.\n</think>\n\nA fox.").reasoning, "Of foxes.");
  EXPECT_EQ(read("Hi<think>\n", "Of foxes.\n</think>\n\nA fox.").answer, "A fox.");
}

TEST(Thinking, ThePromptMayHaveSwitchedItOff) {
  const Read found = read("Hi<think>\n\n</think>\n\n", "A fox.");
  EXPECT_EQ(found.reasoning, "");
  EXPECT_EQ(found.answer, "A fox.");
}

TEST(Thinking, WithoutMarkersAllIsAnswer) {
  EXPECT_EQ(read("Hi", "\n A fox.\n").answer, "\n A fox.\n");
  EXPECT_EQ(read("Hi", "A fox. <think> is a word </think> of mine.").answer,
            "A fox. <think> is a word </think> of mine.");
}

TEST(Thinking, OnlyTheFirstMarkersCount) {
  const Read found = read("Hi", "<think>a <think> b</think>c <think>d</think> e");
  EXPECT_EQ(found.reasoning, "a <think> b");
  EXPECT_EQ(found.answer, "c <think>d</think> e");
}

TEST(Thinking, AnAnswerThatEndsEarlyIsAllReasoning) {
  const Read found = read("Hi", "<think>\nOf foxes\n");
  EXPECT_TRUE(found.reasons);
  EXPECT_EQ(found.reasoning, "Of foxes");
  EXPECT_EQ(found.answer, "");
}

TEST(Thinking, StopStringsAreSoughtInTheAnswerOnly) {
  const Read found = read("Hi", "<think>a STOP b</think>\n\nc STOP d", {"STOP"});
  EXPECT_EQ(found.reasoning, "a STOP b");
  EXPECT_EQ(found.answer, "c ");
}

TEST(Thinking, SharesJoinToTheAnswerWhateverItIs) {
  std::mt19937 random(1);
  const std::string_view words[] = {"<think>",  "</think>",         "\n",   "\n\n", " a",
                                    "\xc3\xa9", "\xf0\x9f\xa6\x8a", "STOP", "  "};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (unsigned i = random() % 12; i > 0; --i) text += words[random() % std::size(words)];
    read(random() % 2 == 0 ? "Hi" : "Hi<think>", text, {"STOP"});
  }
}

}  // namespace
}  // namespace nibble
