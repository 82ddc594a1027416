#include "text/answer_reader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "text/thinking_test_util.h"

namespace nibble {
namespace {

class AnswerReaderTest : public ::testing::Test {
 protected:
  static const Tokenizer& tokenizer() {
    static const Tokenizer loaded = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/parity/example").value();
    return loaded;
  }

  static AnswerStart start_of(std::string_view prompt) {
    return answer_start(tokenizer(), tokenizer().encode_trusted(prompt));
  }
  // As a chat's prompt ends, and one that is no chat's.
  static AnswerStart harmony() { return start_of("<|start|>user<|message|>Hi<|end|><|start|>assistant"); }
  static AnswerStart plain() { return start_of("Once upon a time"); }

  struct Read {
    std::string answer;
    std::string reasoning;
    bool stopped = false;
  };
  static Read read(std::string_view spelled, const AnswerStart& start,
                   const std::vector<std::string>& stop = {}) {
    AnswerReader reader(tokenizer(), start, StopStrings::make(stop).value());
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
  const Read text = read("Hello<|channel|> world", plain());
  EXPECT_EQ(text.answer, "Hello world");
  EXPECT_EQ(text.reasoning, "");
}

TEST_F(AnswerReaderTest, OfAHarmonyAnswerTheFinalChannelIsTheAnswer) {
  const Read told = read(
      "<|channel|>analysis<|message|>Think of foxes.<|end|><|start|>assistant<|channel|>final<|message|>A "
      "fox.",
      harmony());
  EXPECT_EQ(told.answer, "A fox.");
  EXPECT_EQ(told.reasoning, "Think of foxes.");
}

TEST_F(AnswerReaderTest, ACallOfAToolThatNobodyOfferedIsText) {
  const Read call =
      read("<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"a\":1}", harmony());
  EXPECT_EQ(call.answer, "{\"a\":1}");
  EXPECT_EQ(call.reasoning, "");
}

TEST_F(AnswerReaderTest, WhatWasMeantAsAnAnswerAndHasNoHeaderSurfaces) {
  EXPECT_EQ(read("Hello world", harmony()).answer, "Hello world");
}

TEST_F(AnswerReaderTest, StopStringsAreSoughtInTheAnswerOnly) {
  const Read found = read(
      "<|channel|>analysis<|message|>the end<|end|><|start|>assistant<|channel|>final<|message|>It is the "
      "end of it",
      harmony(), {"the end"});
  EXPECT_EQ(found.reasoning, "the end");
  EXPECT_EQ(found.answer, "It is ");
  EXPECT_TRUE(found.stopped);
  EXPECT_EQ(read("one two", plain(), {"twofold"}).answer, "one two");  // held back, then not it
}

TEST_F(AnswerReaderTest, TextThatIsLetPastTheStopsEndsNothing) {
  AnswerReader reader(tokenizer(), plain(), StopStrings::make({"a"}).value());
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
  AnswerReader reader(tokenizer(), harmony(), {});
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

TEST_F(AnswerReaderTest, ThePromptsEndDecidesWhereReadingBegins) {
  const std::string turn = "<|start|>user<|message|>Hi<|end|>";
  // Nothing of the answer's message is there: the model writes its header itself.
  const Read whole = read("<|start|>assistant<|channel|>final<|message|>A fox.", start_of(turn));
  EXPECT_EQ(whole.answer, "A fox.");
  EXPECT_EQ(read("A fox.", start_of(turn)).answer, "A fox.");
  // The header is begun, complete but for its end, or complete.
  EXPECT_EQ(read("final<|message|>A fox.", start_of(turn + "<|start|>assistant<|channel|>")).answer,
            "A fox.");
  EXPECT_EQ(read("<|message|>A fox.", start_of(turn + "<|start|>assistant<|channel|>final")).answer,
            "A fox.");
  EXPECT_EQ(read(" fox.", start_of(turn + "<|start|>assistant<|channel|>final<|message|>A")).answer, " fox.");
  const Read thought = read("Hm.<|end|><|start|>assistant<|channel|>final<|message|>A fox.",
                            start_of(turn + "<|start|>assistant<|channel|>analysis<|message|>"));
  EXPECT_EQ(thought.reasoning, "Hm.");
  EXPECT_EQ(thought.answer, "A fox.");
  // What a user spells is no token, so it decides nothing.
  const std::string_view spelled = "<|start|>assistant";
  EXPECT_EQ(answer_start(tokenizer(), tokenizer().encode(spelled)).format, AnswerFormat::plain);
}

TEST_F(AnswerReaderTest, ACallThatThePromptLeavesOpenGoesOn) {
  AnswerStart start = start_of(
      "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>commentary to=functions.look "
      "<|constrain|>json<|message|>");
  const JsonDocument tools =
      JsonDocument::parse(R"([{"type": "function", "function": {"name": "look"}}])").value();
  for (const bool offered : {true, false}) {
    start.calls = CallForm::harmony;
    start.tools = offered ? std::make_shared<const OfferedTools>(OfferedTools::of(tools.root())) : nullptr;
    AnswerReader reader(tokenizer(), start, StopStrings::make({}).value());
    std::vector<AnswerPiece> pieces;
    for (const TokenId token : tokenizer().encode_trusted("{}<|call|>")) reader.push(token, pieces);
    reader.finish(pieces);
    std::string function, arguments, text;
    for (const AnswerPiece& piece : pieces)
      (piece.part == AnswerPart::call        ? function
       : piece.part == AnswerPart::arguments ? arguments
                                             : text) += piece.text;
    EXPECT_EQ(function, offered ? "look" : "");
    EXPECT_EQ(offered ? arguments : text, "{}");
    EXPECT_EQ(pieces.front().part, offered ? AnswerPart::call : AnswerPart::answer);
  }
}

TEST_F(AnswerReaderTest, NoAnswerShowsAControlTokenHoweverEarlyItEnds) {
  for (const std::string_view spelled :
       {"<|channel|>", "<|channel|>analysis", "<|channel|>analysis<|message|>", "<|channel|><|channel|>final",
        "<|constrain|>", "<|channel|>commentary <|constrain|>", "<|start|>", "<|channel|><|message|>",
        "<|channel|>final<|message|><|channel|>", "<|message|><|start|><|constrain|>", "<|endoftext|>"}) {
    for (const AnswerStart& start : {harmony(), plain(), start_of("<|start|>user<|message|>Hi<|end|>")})
      EXPECT_EQ(read(spelled, start).answer.find("<|"), std::string::npos) << spelled;
  }
}

// The answer that is read from the tokens, and that which their shares join to.
TEST_F(AnswerReaderTest, SharesJoinToTheAnswerWhateverItIs) {
  std::mt19937 random(11);
  const std::vector<TokenId> markers = tokenizer().encode_trusted(
      "<|start|><|channel|><|message|><|end|><|constrain|><|return|><|call|>analysisfinalcommentary "
      "to=functions.x json");
  const AnswerStart starts[] = {harmony(), plain(), start_of("<|start|>user<|message|>Hi<|end|>"),
                                start_of("<|start|>assistant<|channel|>final<|message|>")};
  const std::vector<std::string> stops[] = {{}, {"a", "e s"}, {"\xF0\x9F\xA6\x8A"}, {"n", "in"}};
  const std::vector<TokenId> words = tokenizer().encode("in an e see \xF0\x9F\xA6\x8A fin\xC3\xA4l");
  for (int round = 0; round < 20000; ++round) {
    const AnswerStart& start = starts[random() % std::size(starts)];
    AnswerReader reader(tokenizer(), start, StopStrings::make(stops[random() % std::size(stops)]).value(),
                        AnswerReader::Shares::kept);
    std::vector<AnswerPiece> pieces;
    std::vector<AnswerShare> shares;
    const std::size_t length = 1 + random() % 30;
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < length && !reader.stopped(); ++i) {
      const unsigned kind = random() % 4;
      tokens.push_back(kind == 0   ? markers[random() % markers.size()]
                       : kind == 1 ? static_cast<TokenId>(94 + random() % 162)
                                   : words[random() % words.size()]);
      reader.push(tokens.back(), pieces);
      reader.take_shares(shares);
    }
    reader.finish(pieces);
    reader.take_shares(shares);
    std::string answer, joined;
    for (const AnswerPiece& piece : pieces)
      if (piece.part == AnswerPart::answer) answer += piece.text;
    int last = -1;
    for (const AnswerShare& share : shares) {
      joined += share.bytes;
      ASSERT_GT(share.token, last);
      ASSERT_FALSE(tokenizer().is_hidden(tokens[static_cast<std::size_t>(share.token)]));
      last = share.token;
    }
    ASSERT_EQ(joined, answer);
  }
}

TEST_F(AnswerReaderTest, TheReplacementOfACharacterThatReasoningCutsIsItsTokens) {
  const Tokenizer thinking =
      thinking_tokenizer(std::filesystem::path(testing::TempDir()) / "nibble_cut_character");
  AnswerReader reader(thinking, answer_start(thinking, thinking.encode("Once")),
                      StopStrings::make({}).value(), AnswerReader::Shares::kept);
  std::vector<AnswerPiece> pieces;
  std::vector<AnswerShare> shares;
  const TokenId begun = thinking.encode("\xF0\x9F\xA6\x8A").front();
  for (const TokenId token : {begun, *thinking.control_id("<think>")}) {
    reader.push(token, pieces);
    reader.take_shares(shares);
  }
  reader.finish(pieces);
  reader.take_shares(shares);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].text, "\xEF\xBF\xBD");
  ASSERT_EQ(shares.size(), 1u);
  EXPECT_EQ(shares[0].token, 0);
  EXPECT_EQ(shares[0].bytes, "\xEF\xBF\xBD");
}

TEST_F(AnswerReaderTest, AShareIsTheTokensOwnBytesWhereTheTextIsSound) {
  AnswerReader reader(tokenizer(), harmony(), StopStrings::make({"zz"}).value(), AnswerReader::Shares::kept);
  const std::vector<TokenId> tokens = tokenizer().encode_trusted(
      "<|channel|>analysis<|message|>no<|end|><|start|>assistant<|channel|>final<|message|>a z "
      "\xF0\x9F\xA6\x8A.");
  std::vector<AnswerPiece> pieces;
  std::vector<AnswerShare> shares;
  for (const TokenId token : tokens) reader.push(token, pieces);
  reader.finish(pieces);
  reader.take_shares(shares);
  ASSERT_GE(shares.size(), 6u);
  for (const AnswerShare& share : shares)
    EXPECT_EQ(share.bytes, tokenizer().bytes(tokens[static_cast<std::size_t>(share.token)]));
  EXPECT_EQ(shares.back().token, static_cast<int>(tokens.size()) - 1);
}

}  // namespace
}  // namespace nibble
