// Elements and names that may not come twice: masks are exact whatever a token holds, and cost no more for a
// text that is kept to be told from later ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_time.h"
#include "grammar/check.h"
#include "grammar/grammar.h"
#include "text/tokenizer_parts.h"

namespace nibble {
namespace {

// All bytes, tokens that hold several elements, and one that ends an answer.
class Spelled {
 public:
  Spelled() {
    for (int byte = 0; byte < 256; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
    for (const char* text :
         {"[\"a\",\"a", "[\"a\",\"b\"", "\",\"",  "\",\"a",  "\",\"a\"",  "\",\"b\"",       "a\",\"a\"",
          "b\",\"a\"]", "1,",           "1,1",    "1,1]",    "1,2,1",     "12,1]",          ",1",
          ",12]",       "null,null",    "true,1", "\":1,\"", "a\":1,\"a", "a\":1,\"b\":2}", "\":1,\"a\":1",
          "a,b",        "a,a\"",        "ab",     "\", \"",  "é"})
      texts_.emplace_back(text);
    std::vector<VocabularyEntry> entries;
    for (std::size_t id = 0; id < texts_.size(); ++id)
      entries.push_back({static_cast<TokenId>(id), texts_[id]});
    end_ = static_cast<TokenId>(texts_.size());
    entries.push_back({end_, "<end>"});
    TokenizerParts parts;
    parts.vocabulary = std::make_unique<const Vocabulary>(entries);
    parts.controls = {{.id = end_, .spelling = "<end>"}};
    const std::vector<TokenId> ends{end_};
    vocabulary_ = GrammarVocabulary::make(Tokenizer::from_parts(std::move(parts)), ends, end_ + 1);
  }

  const std::shared_ptr<const GrammarVocabulary>& vocabulary() const { return vocabulary_; }
  TokenId byte(char byte) const { return static_cast<unsigned char>(byte); }
  // Its length counts as often as it comes.
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
  TokenId end_ = 0;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
};

const Spelled& spelled() {
  static const Spelled the;
  return the;
}

std::shared_ptr<const Grammar> schema(std::string_view text) {
  const auto document = JsonDocument::parse(std::string(text)).value();
  return compile_json_schema(document.root()).value();
}

bool has(const std::vector<std::uint32_t>& mask, std::size_t token) {
  return (mask[token / 32] >> token % 32 & 1) != 0;
}

TEST(DistinctElements, MasksAreThoseOfTheBytesWhateverATokenHolds) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
       {R"(["a","b","ab"])", R"(["a,b","é","a"])"}},
      {R"({"type":"array","items":{"type":["integer","boolean","null"]},"uniqueItems":true})",
       {"[1,12,true,null]", "[21, 2]"}},
      {R"({"type":"array","items":{"enum":["a","b",1,12]},"uniqueItems":true,"minItems":2})",
       {R"(["a","b",1,12])", R"([12,"a"])"}},
      {R"({"type":"array","maxItems":3,"items":{"type":"array","items":{"enum":[1,2]},"uniqueItems":true}})",
       {"[[1,2],[1],[2,1]]"}},
      {R"({"type":"object","minProperties":2,"additionalProperties":{"type":"integer"}})",
       {R"({"a":1,"b":2})", R"({"ab":1,"a":21})"}},
      {R"({"type":"object","not":{"additionalProperties":{"type":"integer"}}})",
       {R"({"a":1,"b":true,"ab":1})", R"({"a":"a","é":2})"}},
      {R"({"type":"object","minProperties":2,"propertyNames":{"enum":["a","b"]}})", {R"({"b":1,"a":"a,a"})"}},
      {R"({"anyOf":[{"type":"array","items":{"enum":["a","b"]},"uniqueItems":true},{"type":"array","items":{"enum":["a",1]}}]})",
       {R"(["a","b"])", R"(["a","a",1])"}},
  };
  const Spelled& all = spelled();
  std::vector<std::uint32_t> mask(token_mask_words(all.vocabulary()->size()));
  for (const auto& [text, answers] : cases) {
    for (const std::string answer : answers) {
      const auto constraint = start(schema(text), all.vocabulary());
      for (const char byte : answer) {
        constraint->fill(mask);
        for (std::size_t token = 0; token < all.texts().size(); ++token) {
          // By its bytes, one after another.
          std::size_t taken = 0;
          for (const char each : all.texts()[token]) {
            if (!constraint->allows(all.byte(each))) break;
            constraint->accept(all.byte(each));
            ++taken;
          }
          constraint->roll_back(static_cast<int>(taken));
          ASSERT_EQ(has(mask, token), taken == all.texts()[token].size())
              << text << " at " << answer << ": " << all.texts()[token];
        }
        ASSERT_TRUE(constraint->allows(all.byte(byte))) << text << " " << answer;
        constraint->accept(all.byte(byte));
      }
      EXPECT_TRUE(constraint->complete()) << text << " " << answer;
    }
  }
}

// What is told apart is kept once: masks inside a string cost what they do elsewhere, however long it is.
TEST(DistinctElements, MasksOfALongStringAreFoundOnce) {
  const Spelled& all = spelled();
  const auto free = schema(R"({"type":"array","items":{"type":"string"}})");
  const auto distinct = schema(R"({"type":"array","items":{"type":"string"},"uniqueItems":true})");
  std::vector<std::uint32_t> mask(token_mask_words(all.vocabulary()->size()));
  const auto seconds = [&](const std::shared_ptr<const Grammar>& grammar) {
    const double begin = thread_cpu_us();
    const auto constraint = start(grammar, all.vocabulary());
    for (const char byte : std::string("[\"")) constraint->accept(all.byte(byte));
    for (int i = 0; i < 20'000; ++i) {
      constraint->fill(mask);
      constraint->accept(all.byte('x'));
    }
    return (thread_cpu_us() - begin) * 1e-6;
  };
  EXPECT_LT(seconds(distinct), NIBBLE_SLOWDOWN * (2 + 20 * seconds(free)));
}

}  // namespace
}  // namespace nibble
