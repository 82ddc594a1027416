#include "checkpoint/name_expression.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble {
namespace {

// Names of `names` that match, joined by spaces.
std::string matched(const std::string& expression, const std::vector<std::string>& names) {
  const Result<NameExpression> compiled = NameExpression::compile(expression);
  EXPECT_TRUE(compiled.ok()) << expression << ": " << compiled.status().message();
  std::string all;
  for (const std::string& name : names) {
    if (compiled.ok() && compiled->matches(name)) all += (all.empty() ? "" : " ") + name;
  }
  return all;
}

std::string refused(const std::string& expression) {
  const Result<NameExpression> compiled = NameExpression::compile(expression);
  EXPECT_FALSE(compiled.ok()) << expression;
  return compiled.status().message();
}

TEST(NameExpression, MatchesFromTheBeginAndNotToTheEnd) {
  const std::vector<std::string> names = {"lm_head", "lm_head.x", "x.lm_head", ""};
  EXPECT_EQ(matched("lm_head", names), "lm_head lm_head.x");
  EXPECT_EQ(matched("^lm_head$", names), "lm_head");
  EXPECT_EQ(matched(".*lm_head$", names), "lm_head x.lm_head");
  EXPECT_EQ(matched("$", names), "");
  EXPECT_EQ(matched("(lm|x).*d$|nothing", names), "lm_head x.lm_head");
}

TEST(NameExpression, ReadsWhatPublishedConfigsHave) {
  const std::vector<std::string> names = {
      "l.5.mlp.gate",     "l.5.mlp.gate_proj", "l.56.self_attn.q_proj",       "l.59.mlp.up_proj",
      "l.63.mlp.up_proj", "l.64.mlp.up_proj",  "l.7.mlp.experts.12.down_proj"};
  EXPECT_EQ(matched(R"(.*mlp\.gate$)", names), "l.5.mlp.gate");
  EXPECT_EQ(matched(R"(.*\.(5[6-9]|6[0-3])\.mlp\.(gate|up|down)_proj$)", names),
            "l.59.mlp.up_proj l.63.mlp.up_proj");
  EXPECT_EQ(matched(R"(l\.\d+\.mlp\.experts\.\d+\.(?:gate|up|down)_proj)", names),
            "l.7.mlp.experts.12.down_proj");
  EXPECT_EQ(matched(R"(^(?!.*experts)(?!.*gate$).*mlp)", names),
            "l.5.mlp.gate_proj l.59.mlp.up_proj l.63.mlp.up_proj l.64.mlp.up_proj");
  EXPECT_EQ(matched(R"((?=.*proj)l\.[^5]\.)", names), "l.7.mlp.experts.12.down_proj");
  EXPECT_EQ(matched(R"(l\.\d{2}\.\w*attn)", names), "l.56.self_attn.q_proj");
}

TEST(NameExpression, Repeats) {
  const std::vector<std::string> names = {"b", "ab", "aab", "aaab", "aaaab"};
  EXPECT_EQ(matched("a*b", names), "b ab aab aaab aaaab");
  EXPECT_EQ(matched("a+?b", names), "ab aab aaab aaaab");
  EXPECT_EQ(matched("a?b", names), "b ab");
  EXPECT_EQ(matched("a{2}b", names), "aab");
  EXPECT_EQ(matched("a{2,3}b", names), "aab aaab");
  EXPECT_EQ(matched("a{3,}b", names), "aaab aaaab");
  EXPECT_EQ(matched("(a*)*b", names), "b ab aab aaab aaaab");
  EXPECT_EQ(matched("(aa|a){2}b", names), "aab aaab aaaab");
}

TEST(NameExpression, Classes) {
  const std::vector<std::string> names = {"-", "]", "a", "Z", "5", "_", "^", " "};
  EXPECT_EQ(matched("[]a-]$", names), "- ] a");
  EXPECT_EQ(matched("[^a-z0-9^]$", names), "- ] Z _  ");
  EXPECT_EQ(matched("[\\d\\]x]$", names), "] 5");
  EXPECT_EQ(matched("\\W$", names), "- ] ^  ");
}

TEST(NameExpression, WhatIsNotReadIsSaid) {
  EXPECT_EQ(refused("a\\b"), "has \\b; of backslashes those before signs, d, w and s are read");
  EXPECT_EQ(refused("a\\"), "has \\; of backslashes those before signs, d, w and s are read");
  EXPECT_EQ(refused("a(?!b)"),
            "has (?, which is read at its begin alone, as (?=..) and (?!..), or as (?:..)");
  EXPECT_EQ(refused("(?!b)a|c"), "has (?=..) or (?!..) before a choice without parentheses");
  EXPECT_EQ(refused("(a"), "has a ( without a )");
  EXPECT_EQ(refused("a)"), "has a ) without a (");
  EXPECT_EQ(refused("[a"), "has a [ without a ]");
  EXPECT_EQ(refused("[b-a]"), "has a range that is none");
  EXPECT_EQ(refused("*a"), "repeats nothing");
  EXPECT_EQ(refused("a**"), "repeats a repetition");
  EXPECT_EQ(refused("a{x}"), "has a { that counts nothing");
  EXPECT_EQ(refused("a{3,2}"), "has a { that counts nothing");
  EXPECT_EQ(refused("a{65}"), "has a { that counts nothing");
}

TEST(NameExpression, NoneTakesLong) {
  std::string deep = "a";
  for (int i = 0; i < 40; ++i) deep = "(" + deep + ")";
  EXPECT_EQ(refused(deep), "nests too deeply");
  EXPECT_EQ(refused("(((((((){64}){64}){64}){64}){64}){64}){64}"), "is too large");
  EXPECT_EQ(refused("((a{64}){64}){64}"), "is too large");
  EXPECT_EQ(refused(".*a.{60}b.{60}"), "is too large") << "each a begins another count";
  EXPECT_EQ(refused(std::string(5000, 'a')), "is longer than 4096 bytes");
  EXPECT_EQ(matched("(a|aa)*$", {std::string(5000, 'a') + "b"}), "");
}

}  // namespace
}  // namespace nibble
