#include "server/api/token_limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace nibble::api {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/parity/example").value();
  return loaded;
}

constexpr TokenId end_token = 3;
TokenId vocabulary() { return tokenizer().vocabulary_size(); }

std::shared_ptr<TokenConstraint> limited(const Sampling& asked) {
  const TokenId ends[] = {end_token};
  return start(TokenLimits::make(asked, tokenizer(), vocabulary(), ends));
}

std::vector<TokenId> allowed(TokenConstraint& constraint) {
  std::vector<std::uint32_t> mask(token_mask_words(vocabulary()), 0x12345678);
  constraint.fill(mask);
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < static_cast<TokenId>(mask.size() * 32); ++token) {
    if (mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) tokens.push_back(token);
  }
  return tokens;
}

TEST(TokenLimits, AreNoneWhereNothingIsAskedFor) {
  const TokenId ends[] = {end_token};
  EXPECT_EQ(TokenLimits::make({}, tokenizer(), vocabulary(), ends), nullptr);
}

TEST(TokenLimits, AllowedTokensAloneMayComeAnywhere) {
  Sampling asked;
  asked.allowed_token_ids = {5, 17, vocabulary() - 1};
  const auto constraint = limited(asked);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(constraint->binds());
    EXPECT_EQ(allowed(*constraint), asked.allowed_token_ids);
    constraint->accept(17);
  }
}

// Whatever the answer, a token is forbidden exactly where it would complete a word's tokens.
TEST(TokenLimits, AWordIsForbiddenWhereItsLastTokenWouldCompleteIt) {
  const std::vector<std::string> words = {"the", "  once upon", "zq", "a", "story.", "x y z"};
  Sampling asked;
  asked.bad_words = words;
  std::vector<std::vector<TokenId>> sequences;
  for (const char* word : {"the", "once upon", "zq", "a", "story.", "x y z"}) {
    sequences.push_back(tokenizer().encode(word));
    sequences.push_back(tokenizer().encode(std::string(" ") + word));
  }
  const auto constraint = limited(asked);
  std::mt19937 random(7);
  std::vector<TokenId> answer;
  int forbidden_behind_others = 0;
  for (int i = 0; i < 400; ++i) {
    std::set<TokenId> forbidden;
    for (const auto& sequence : sequences) {
      const std::size_t before = sequence.size() - 1;
      if (before > answer.size()) continue;
      if (std::equal(sequence.begin(), sequence.end() - 1,
                     answer.end() - static_cast<std::ptrdiff_t>(before)))
        forbidden.insert(sequence.back());
      forbidden_behind_others += before > 0 && forbidden.count(sequence.back()) > 0;
    }
    std::vector<TokenId> wanted;
    for (TokenId token = 0; token < vocabulary(); ++token) {
      if (forbidden.count(token) == 0) wanted.push_back(token);
    }
    ASSERT_EQ(allowed(*constraint), wanted);
    ASSERT_EQ(constraint->binds(), !forbidden.empty());
    // Often a word's own beginning, which chance would hardly write.
    const auto& sequence = sequences[random() % sequences.size()];
    std::vector<TokenId> next(sequence.begin(), sequence.end() - 1);
    if (next.empty() || random() % 3 == 0) next = {static_cast<TokenId>(random() % vocabulary())};
    for (const TokenId token : next) {
      constraint->accept(token);
      answer.push_back(token);
    }
    if (random() % 4 == 0) {
      constraint->roll_back(1);
      answer.pop_back();
    }
  }
  EXPECT_GT(forbidden_behind_others, 20);
}

TEST(TokenLimits, NothingBindsBeforeAWordHasBegun) {
  Sampling asked;
  asked.bad_words = {"xylophone"};
  ASSERT_GT(tokenizer().encode("xylophone").size(), 1u);
  const auto constraint = limited(asked);
  EXPECT_FALSE(constraint->binds());
  const std::vector<TokenId> tokens = tokenizer().encode("xylophone");
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) constraint->accept(tokens[i]);
  EXPECT_TRUE(constraint->binds());
}

TEST(TokenLimits, TheAnswerEndsWhereNothingIsLeft) {
  Sampling asked;
  asked.bad_words = {"a"};
  asked.allowed_token_ids = tokenizer().encode("a");
  ASSERT_EQ(asked.allowed_token_ids.size(), 1u);
  EXPECT_EQ(allowed(*limited(asked)), std::vector<TokenId>{end_token});
}

// Models have rows for more tokens than their tokenizer knows, or for fewer.
TEST(TokenLimits, HaveABitForEachTokenOfTheModelAndNoMore) {
  const TokenId ends[] = {end_token};
  Sampling asked;
  asked.bad_words = {"a", "the", "xylophone"};
  for (const TokenId size : {10, 31, 32, 33, 64}) {
    const auto limits = TokenLimits::make(asked, tokenizer(), size, ends);
    std::vector<std::uint32_t> mask(token_mask_words(size));
    limits->fill({}, mask);
    if (size % 32 != 0) {
      EXPECT_EQ(mask.back() >> size % 32, 0u) << size;
    }
  }
}

}  // namespace
}  // namespace nibble::api
