#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

using Pieces = std::vector<std::string>;

Pieces cut(std::vector<SplitStep> steps, std::string_view text) {
  const PreTokenizer pre_tokenizer(std::move(steps));
  PreTokenizer::Cutter cutter(pre_tokenizer);
  Pieces pieces;
  cutter.cut(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

// The expected pieces are those of PyPI tokenizers 0.23.3.
TEST(PreTokenizer, EveryBehaviourIsThatOfTheTokenizersLibrary) {
  const std::string text = "--a-b--c-";
  const auto dashes = [&](SplitBehavior behavior, bool invert) {
    return cut({SplitStep::literal("-", behavior, invert)}, text);
  };
  EXPECT_EQ(dashes(SplitBehavior::removed, false), (Pieces{"a", "b", "c"}));
  EXPECT_EQ(dashes(SplitBehavior::removed, true), (Pieces{"-", "-", "-", "-", "-", "-"}));
  EXPECT_EQ(dashes(SplitBehavior::isolated, false), (Pieces{"-", "-", "a", "-", "b", "-", "-", "c", "-"}));
  EXPECT_EQ(dashes(SplitBehavior::isolated, true), (Pieces{"-", "-", "a", "-", "b", "-", "-", "c", "-"}));
  EXPECT_EQ(dashes(SplitBehavior::merged_with_previous, false), (Pieces{"-", "-", "a-", "b-", "-", "c-"}));
  EXPECT_EQ(dashes(SplitBehavior::merged_with_previous, true), (Pieces{"-", "-a", "-b", "-", "-c", "-"}));
  EXPECT_EQ(dashes(SplitBehavior::merged_with_next, false), (Pieces{"-", "-a", "-b", "-", "-c", "-"}));
  EXPECT_EQ(dashes(SplitBehavior::merged_with_next, true), (Pieces{"-", "-", "a-", "b-", "-", "c-"}));
  EXPECT_EQ(dashes(SplitBehavior::contiguous, false), (Pieces{"--", "a", "-", "b", "--", "c", "-"}));
  EXPECT_EQ(dashes(SplitBehavior::contiguous, true), (Pieces{"--", "a", "-", "b", "--", "c", "-"}));
}

TEST(PreTokenizer, AStepWorksOnThePiecesOfTheOneBefore) {
  std::vector<SplitStep> steps;
  steps.push_back(SplitStep::pattern(kThreeDigitsPattern, SplitBehavior::isolated, false).value());
  steps.push_back(SplitStep::pattern(kCjkPattern, SplitBehavior::isolated, false).value());
  steps.push_back(SplitStep::pattern(kDeepSeekWordPattern, SplitBehavior::isolated, false).value());
  // The space before the number cannot be one with it, and stands at the end of its piece.
  EXPECT_EQ(cut(steps, "take  1234 \u5b57\u6d4b now"),
            (Pieces{"take", "  ", "123", "4", " ", "\u5b57\u6d4b", " now"}));
  EXPECT_EQ(cut(steps, "\x01\x02"), (Pieces{"\x01\x02"}));
  EXPECT_EQ(cut(steps, ""), Pieces{});
}

TEST(PreTokenizer, AnUnknownPatternIsLeftToTheRegularExpressionEngine) {
  std::vector<SplitStep> steps;
  steps.push_back(SplitStep::pattern(R"(\p{Lu}\p{Ll}*)", SplitBehavior::isolated, false).value());
  EXPECT_EQ(cut(std::move(steps), "anÉtéHi!"), (Pieces{"an", "Été", "Hi", "!"}));
}

TEST(Regex, RefusesWhatItCannotDoAsTheTokenizersLibraryDoes) {
  EXPECT_EQ(Regex::compile("(a").status().message(),
            "the split pattern \"(a\" is no regular expression: missing closing parenthesis at byte 2");
  EXPECT_EQ(Regex::compile("a*").status().message(),
            "the split pattern \"a*\" can match the empty text, which would split everywhere");
  EXPECT_EQ(Regex::compile("[a-z&&[^c]]").status().message(),
            "the split pattern \"[a-z&&[^c]]\" uses the set intersection &&, which nibble does not know");
  EXPECT_FALSE(Regex::compile("\\h+").ok());
  EXPECT_FALSE(Regex::compile("\\C").ok());
  EXPECT_FALSE(Regex::compile(std::string(100000, 'a')).ok());
  EXPECT_FALSE(Regex::compile(std::string(10000, '(')).ok());
  EXPECT_EQ(Regex::compile("(a").status().code(), StatusCode::broken_model);
}

TEST(Regex, APatternThatBacktracksForeverIsGivenUpAndTheTextStaysWhole) {
  std::vector<SplitStep> steps;
  steps.push_back(SplitStep::pattern("(?:a+)+b", SplitBehavior::isolated, false).value());
  const std::string text(5000, 'a');
  EXPECT_EQ(cut(std::move(steps), text), Pieces{text});
}

TEST(Regex, LineAnchorsMatchAtLineBreaks) {
  std::vector<SplitStep> steps;
  steps.push_back(SplitStep::pattern("b$", SplitBehavior::isolated, false).value());
  EXPECT_EQ(cut(std::move(steps), "ab\nab\n"), (Pieces{"a", "b", "\na", "b", "\n"}));
}

}  // namespace
}  // namespace nibble
