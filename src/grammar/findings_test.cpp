// Answers of one grammar find its places together; each has the masks that it would have alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/grammar_data.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

using Mask = std::vector<std::uint32_t>;

struct DemoVocabulary {
  Tokenizer tokenizer = Tokenizer::load(NIBBLE_SOURCE_DIR "/models/demo").value();
  std::shared_ptr<const GrammarVocabulary> vocabulary =
      GrammarVocabulary::make(tokenizer, std::vector<TokenId>{0}, tokenizer.vocabulary_size());
};

const DemoVocabulary& demo() {
  static const DemoVocabulary the;
  return the;
}

std::shared_ptr<const Grammar> schema(std::string_view text) {
  const auto document = JsonDocument::parse(std::string(text)).value();
  return compile_json_schema(document.root()).value();
}

std::shared_ptr<Findings> findings_of(const std::shared_ptr<const Grammar>& grammar) {
  auto findings = grammar->findings(std::static_pointer_cast<const TokenTrie>(demo().vocabulary));
  grammar->leave(findings);
  return findings;
}

// Takes tokens of its masks at random, and a draft that it takes back now and then.
class Answer {
 public:
  Answer(const std::shared_ptr<const Grammar>& grammar, std::uint32_t seed)
      : constraint_(start(grammar, demo().vocabulary)), random_(seed) {}

  bool ended() const { return ended_; }
  void go_on() {
    const TokenId token = fill();
    if (random_() % 4 == 0 && !demo().vocabulary->is_end(token)) {
      constraint_->accept(token);
      fill();
      constraint_->roll_back(1);
    }
    constraint_->accept(token);
    ended_ = demo().vocabulary->is_end(token);
  }
  void take(std::string_view text) {
    for (const TokenId token : demo().tokenizer.encode(text)) constraint_->accept(token);
  }
  Mask mask() {
    Mask mask(token_mask_words(demo().vocabulary->size()));
    constraint_->fill(mask);
    return mask;
  }
  const std::vector<Mask>& masks() const { return masks_; }

 private:
  TokenId fill() {
    masks_.push_back(mask());
    std::vector<TokenId> may_come;
    for (TokenId token = 0; token < demo().vocabulary->size(); ++token)
      if (has_bit(masks_.back(), token)) may_come.push_back(token);
    return may_come[random_() % may_come.size()];
  }

  std::unique_ptr<GrammarConstraint> constraint_;
  std::mt19937 random_;
  std::vector<Mask> masks_;
  bool ended_ = false;
};

const char* const schemas[] = {
    R"({"type":"object","required":["name","kind"],"properties":{"name":{"type":"string","maxLength":20},
        "kind":{"enum":["one","two",3]},"list":{"type":"array","items":{"type":"integer"}}}})",
    R"({"type":"array","minItems":2,"uniqueItems":true,"items":{"type":["string","integer","null"]}})",
    R"({"type":"string","pattern":"^(?:\\S+\\s+){0,20}\\S+$","maxLength":60})",
};
constexpr int most_tokens = 60;

std::vector<Mask> masks_alone(const char* text, std::uint32_t seed) {
  Answer answer(schema(text), seed);
  for (int i = 0; i < most_tokens && !answer.ended(); ++i) answer.go_on();
  return answer.masks();
}

TEST(Findings, AreOfAllAnswersThatAreWrittenAtATimeAndOfThoseBehindThem) {
  const auto grammar = schema(schemas[0]);
  std::shared_ptr<Findings> findings;
  {
    Answer one(grammar, 1), other(grammar, 2);
    findings = findings_of(grammar);
    EXPECT_EQ(findings->answers, 2);
    one.mask();
    const std::size_t states = findings->matcher.states();
    EXPECT_EQ(other.mask(), one.mask());
    EXPECT_EQ(findings->matcher.states(), states);
  }
  EXPECT_EQ(findings->answers, 0);
  const Answer later(grammar, 3);
  EXPECT_EQ(findings_of(grammar), findings);
}

TEST(Findings, GiveEachAnswerTheMasksThatItHasAlone) {
  for (const char* text : schemas) {
    const auto grammar = schema(text);
    std::vector<Answer> answers;
    for (std::uint32_t seed = 0; seed < 6; ++seed) answers.emplace_back(grammar, seed);
    for (int i = 0; i < most_tokens; ++i)
      for (Answer& answer : answers)
        if (!answer.ended()) answer.go_on();
    for (std::uint32_t seed = 0; seed < 6; ++seed)
      EXPECT_EQ(answers[seed].masks(), masks_alone(text, seed)) << text << " " << seed;
  }
}

TEST(Findings, MayBeAskedByThreadsAtOnce) {
  const auto grammar = schema(schemas[1]);
  std::vector<std::vector<Mask>> masks(2);
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < 2; ++thread)
    threads.emplace_back([&, thread] {
      for (std::uint32_t seed = 0; seed < 4; ++seed) {
        Answer answer(grammar, 2 * seed + thread);
        for (int i = 0; i < most_tokens && !answer.ended(); ++i) answer.go_on();
        masks[thread].insert(masks[thread].end(), answer.masks().begin(), answer.masks().end());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::uint32_t thread = 0; thread < 2; ++thread) {
    std::vector<Mask> alone;
    for (std::uint32_t seed = 0; seed < 4; ++seed)
      for (Mask& mask : masks_alone(schemas[1], 2 * seed + thread)) alone.push_back(std::move(mask));
    EXPECT_EQ(masks[thread], alone) << thread;
  }
}

// An element that must differ from those before it has a place for each of its characters.
TEST(Findings, ThatAreFullAreLeftAndThoseOfAnAnswerAloneBegunAnew) {
  const auto grammar = schema(schemas[1]);
  const auto first = findings_of(grammar);
  std::string element = "[\"";
  for (int i = 0; i < 40'000; ++i) element += " z" + std::to_string(i);
  Answer longest(grammar, 0), beside(grammar, 1);
  beside.take("[\"a");
  longest.take(element);
  const Mask found = longest.mask();
  EXPECT_TRUE(first->full) << first->matcher.memory();
  EXPECT_EQ(first->answers, 1) << "the longest has its own";
  EXPECT_EQ(first->resets, 0u);
  EXPECT_NE(findings_of(grammar), first) << "new answers begin with others";
  EXPECT_EQ(found, beside.mask()) << "inside a string";
  longest.take("\",\"");
  beside.take("\",\"");
  EXPECT_EQ(longest.mask(), beside.mask());

  beside.take(element.substr(2));
  EXPECT_EQ(beside.mask(), found);
  EXPECT_GT(first->resets, 0u);
  EXPECT_EQ(first->answers, 1);
}

}  // namespace
}  // namespace nibble
