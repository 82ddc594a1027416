#include "text/split_scanners.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"
#include "text/unicode_class.h"

namespace nibble {
namespace {

using Pieces = std::vector<std::string>;

// All matches of a scanner, as a regular expression engine finds them one after the other.
Pieces matches_of(const SplitScanner& scanner, std::string_view text) {
  Pieces pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = scanner.match_at(text, at);
    if (end == at) {
      at += decode_valid_utf8(text.data() + at).length;
      continue;
    }
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

Pieces matches_of(Regex::Matcher& matcher, std::string_view text) {
  Pieces pieces;
  for (std::size_t at = 0; at < text.size();) {
    const Regex::Matcher::Match match = matcher.find(text, at);
    if (!match.found) break;
    pieces.emplace_back(text.substr(match.begin, match.end - match.begin));
    at = match.end;
  }
  return pieces;
}

// Code points that PCRE2, whose Unicode is older than our table, puts into the same classes as we do.
std::vector<char32_t> code_points_known_alike() {
  constexpr char32_t kLimit = 0x20000;
  std::string all;
  for (char32_t c = 0; c < kLimit; ++c) {
    if (c < 0xD800 || c > 0xDFFF) append_utf8(all, c);
  }
  std::vector<CharClass> theirs(kLimit, 0);
  constexpr std::pair<std::string_view, CharClass> kClasses[] = {
      {R"([\p{Lu}\p{Lt}])", kUpper}, {R"(\p{Ll})", kLower}, {R"([\p{Lm}\p{Lo}])", kOtherLetter},
      {R"(\p{M})", kMark},           {R"(\p{N})", kNumber}, {R"(\s)", kSpace},
      {R"(\p{P})", kPunctuation},    {R"(\p{S})", kSymbol},
  };
  std::vector<bool> han(kLimit, false);
  const Regex of_han = Regex::compile(R"(\p{sc:Han})").value();
  Regex::Matcher han_matcher(of_han);
  for (const std::string& match : matches_of(han_matcher, all))
    han[decode_valid_utf8(match.data()).value] = true;
  for (const auto& [pattern, bit] : kClasses) {
    const Regex regex = Regex::compile(pattern).value();
    Regex::Matcher matcher(regex);
    for (const std::string& match : matches_of(matcher, all))
      theirs[decode_valid_utf8(match.data()).value] |= bit;
  }
  std::vector<char32_t> alike;
  for (char32_t c = 0; c < kLimit; ++c) {
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    if (!surrogate && theirs[c] == UnicodeClasses::get().of(c) && han[c] == is_han(c)) alike.push_back(c);
  }
  return alike;
}

// As PCRE2 spells it: it has no &&, and its \p{Han} goes by script extensions.
std::string as_pcre(std::string_view pattern) {
  std::string spelled(pattern);
  const auto replace_all = [&](std::string_view part, std::string_view by) {
    for (std::size_t at = 0; (at = spelled.find(part, at)) != spelled.npos; at += by.size())
      spelled.replace(at, part.size(), by);
  };
  for (const std::string set : {R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})", R"(\p{Ll}\p{Lm}\p{Lo}\p{M})"})
    replace_all("[" + set + R"(&&[^\p{Han}]])", R"((?:(?!\p{sc:Han})[)" + set + "])");
  replace_all(R"(\p{Han})", R"(\p{sc:Han})");
  return spelled;
}

class SplitScanners : public testing::TestWithParam<const SplitScanner*> {};

// One or two of every class that a pattern can tell apart; of Han a letter, a sign and a number.
const std::vector<std::string> kTelling = {"a",
                                           "S",
                                           "s",
                                           "l",
                                           "\xCA\xB0",
                                           "\xE4\xB8\xAD",
                                           "\xCC\x81",
                                           "1",
                                           " ",
                                           "\t",
                                           "\n",
                                           "\r",
                                           "!",
                                           "'",
                                           "/",
                                           "$",
                                           "\x01",
                                           "\xC5\xBF",
                                           "\xE3\x82\x9B",
                                           "\xE2\xBA\x80",
                                           "\xE3\x80\x87"};

TEST_P(SplitScanners, MatchWhatThePatternMatchesOnAllShortTexts) {
  const Regex regex = Regex::compile(as_pcre(GetParam()->pattern)).value();
  Regex::Matcher matcher(regex);
  std::vector<std::string> texts = {""};
  for (std::size_t begin = 0, length = 0; length < 3; ++length) {
    const std::size_t end = texts.size();
    for (; begin < end; ++begin) {
      for (const std::string& more : kTelling) texts.push_back(texts[begin] + more);
    }
  }
  for (const std::string& text : texts) {
    ASSERT_EQ(matches_of(*GetParam(), text), matches_of(matcher, text)) << testing::PrintToString(text);
  }
}

TEST_P(SplitScanners, MatchWhatThePatternMatchesOnRandomTexts) {
  static const std::vector<char32_t> alike = code_points_known_alike();
  ASSERT_GT(alike.size(), 120000u);
  const Regex regex = Regex::compile(as_pcre(GetParam()->pattern)).value();
  Regex::Matcher matcher(regex);
  std::mt19937 random(20);
  for (int round = 0; round < 12000; ++round) {
    std::string text;
    for (std::size_t length = random() % 24; length > 0; --length) {
      if (random() % 4 == 0) {
        append_utf8(text, alike[random() % alike.size()]);
      } else {
        for (std::size_t times = random() % 8 == 0 ? 4 : 1, which = random() % kTelling.size(); times > 0;
             --times) {
          text += kTelling[which];
        }
      }
    }
    ASSERT_EQ(matches_of(*GetParam(), text), matches_of(matcher, text)) << testing::PrintToString(text);
  }
}

std::vector<const SplitScanner*> all_scanners() {
  std::vector<const SplitScanner*> all;
  for (const SplitScanner& scanner : split_scanners()) all.push_back(&scanner);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, SplitScanners, testing::ValuesIn(all_scanners()), [](const auto& param_info) {
  std::string name(param_info.param->name);
  for (char& c : name) c = c == ' ' || c == '.' ? '_' : c;
  return name;
});

TEST(SplitScanner, IsChosenByTheExactTextOfThePattern) {
  EXPECT_EQ(find_split_scanner(kO200kPattern)->name, "o200k");
  EXPECT_EQ(find_split_scanner(std::string(kO200kPattern) + "|x"), nullptr);
}

TEST(SplitScanner, TakesTimeLinearInTheLengthOfAnyRun) {
  // Quadratic behaviour would take hours here.
  for (const std::string unit : {"a", "A", " ", "\n", " \n", "\xCC\x81", "\xE4\xB8\xAD", "!", "1",
                                 "\xCC\x81"
                                 "A",
                                 "\xE2\xBA\x80", "' "}) {
    std::string text;
    while (text.size() < (1u << 18)) text += unit;
    for (const SplitScanner& scanner : split_scanners()) matches_of(scanner, text);
  }
}

TEST(UnicodeClasses, KnowTheScriptHan) {
  for (const char32_t han : {0x2E80, 0x3005, 0x3007, 0x4E00, 0x9FFF, 0xFA6D, 0x16FF0, 0x20000, 0x323AF})
    EXPECT_TRUE(is_han(han)) << std::hex << static_cast<std::uint32_t>(han);
  for (const char32_t other : {0x41, 0x2E7F, 0x2E9A, 0x3001, 0x3042, 0xA000, 0xFA6E, 0x323B0, 0x10FFFF})
    EXPECT_FALSE(is_han(other)) << std::hex << static_cast<std::uint32_t>(other);
}

TEST(UnicodeClasses, KnowUnicode16) {
  const UnicodeClasses& classes = UnicodeClasses::get();
  EXPECT_EQ(classes.of(U'a'), kLower);
  EXPECT_EQ(classes.of(0x85), kSpace);
  EXPECT_EQ(classes.of(0x180E), 0);              // once white space
  EXPECT_EQ(classes.of(0x1C89), kUpper);         // new in Unicode 16
  EXPECT_EQ(classes.of(0x2EE5D), kOtherLetter);  // new in Unicode 15.1
  EXPECT_EQ(classes.of(0x10FFFF), 0);
}

}  // namespace
}  // namespace nibble
