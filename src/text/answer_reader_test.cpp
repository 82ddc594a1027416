#include "text/answer_reader.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

class AnswerReaderTest : public ::testing::Test {
 protected:
  static const Tokenizer& tokenizer() {
    static const Tokenizer loaded = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/parity/example").value();
    return loaded;
  }

  struct Read {
    std::string answer;
    std::string reasoning;
    bool stopped = false;
  };
  static Read read(std::string_view spelled, AnswerFormat format, const std::vector<std::string>& stop = {}) {
    AnswerReader reader(tokenizer(), format, StopStrings::make(stop).value());
    std::vector<AnswerPiece> pieces;
    for (const TokenId token : tokenizer().encode_trusted(spelled)) reader.push(token, pieces);
    reader.finish(pieces);
    Read read{.stopped = reader.stopped()};
    for (const AnswerPiece& piece : pieces) {
      EXPECT_FALSE(piece.text.empty());
      (piece.part == AnswerPart::answer ? read.answer : read.reasoning) += piece.text;
    }
    return read;
  }
};

TEST_F(AnswerReaderTest, PlainTextIsAllAnswerWithoutItsControlTokens) {
  const Read plain = read("Hello<|channel|> world", AnswerFormat::plain);
  EXPECT_EQ(plain.answer, "Hello world");
  EXPECT_EQ(plain.reasoning, "");
}

TEST_F(AnswerReaderTest, OfAHarmonyAnswerTheFinalChannelIsTheAnswer) {
  const Read harmony = read(
      "<|channel|>analysis<|message|>Think of foxes.<|end|><|start|>assistant<|channel|>final<|message|>A "
      "fox.",
      AnswerFormat::harmony);
  EXPECT_EQ(harmony.answer, "A fox.");
  EXPECT_EQ(harmony.reasoning, "Think of foxes.");
}

TEST_F(AnswerReaderTest, ACallOfAToolThatNobodyOfferedIsText) {
  const Read call = read("<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"a\":1}",
                         AnswerFormat::harmony);
  EXPECT_EQ(call.answer, "{\"a\":1}");
  EXPECT_EQ(call.reasoning, "");
}

TEST_F(AnswerReaderTest, WhatWasMeantAsAnAnswerAndHasNoHeaderSurfaces) {
  EXPECT_EQ(read("Hello world", AnswerFormat::harmony).answer, "Hello world");
}

TEST_F(AnswerReaderTest, StopStringsAreSoughtInTheAnswerOnly) {
  const Read found = read(
      "<|channel|>analysis<|message|>the end<|end|><|start|>assistant<|channel|>final<|message|>It is the "
      "end of it",
      AnswerFormat::harmony, {"the end"});
  EXPECT_EQ(found.reasoning, "the end");
  EXPECT_EQ(found.answer, "It is ");
  EXPECT_TRUE(found.stopped);
  EXPECT_EQ(read("one two", AnswerFormat::plain, {"twofold"}).answer, "one two");  // held back, then not it
}

TEST_F(AnswerReaderTest, TextThatIsLetPastTheStopsEndsNothing) {
  AnswerReader reader(tokenizer(), AnswerFormat::plain, StopStrings::make({"a"}).value());
  std::vector<AnswerPiece> pieces;
  for (const TokenId token : tokenizer().encode("banana"))
    reader.push(token, pieces, AnswerReader::Stops::pass);
  EXPECT_FALSE(reader.stopped());
  for (const TokenId token : tokenizer().encode(" cat")) reader.push(token, pieces);
  EXPECT_TRUE(reader.stopped());
  std::string text;
  for (const AnswerPiece& piece : pieces) text += piece.text;
  EXPECT_EQ(text, "banana c");
}

TEST_F(AnswerReaderTest, ReasoningIsWhatStandsBetweenItsMessagesEnds) {
  AnswerReader reader(tokenizer(), AnswerFormat::harmony, {});
  std::vector<AnswerPiece> pieces;
  std::string course;
  for (const TokenId token : tokenizer().encode_trusted(
           "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>final<|message|>c")) {
    reader.push(token, pieces);
    course += reader.reasoning() ? 'r' : '.';
  }
  EXPECT_TRUE(course.find("rr") != std::string::npos && course.ends_with('.') && course.starts_with('.'))
      << course;
  EXPECT_EQ(course.find('r', course.find_last_of('r') + 1), std::string::npos);
}

}  // namespace
}  // namespace nibble
