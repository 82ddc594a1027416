// A mask has a token exactly where the token's bytes are taken one after another: whichever way it was found.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/check.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

struct Followed {
  const char* schema;
  std::vector<const char*> answers;
};

TEST(Masks, HaveTheTokensWhoseBytesAreTaken) {
  const Followed cases[] = {
      // Keys of a counted pattern, beside declared ones and beside any others.
      {R"({"type":"object","patternProperties":{"^[0-9a-zA-Z_-]{1,9}$":{"type":"integer"}},"additionalProperties":false})",
       {R"({"key_1":12,"a":3})"}},
      {R"({"type":"object","properties":{"id":{"type":"string"},"created":{"enum":[true]}},
           "patternProperties":{"^[0-9a-zA-Z_-]{1,255}$":{"type":["string","boolean"]}}})",
       {R"({"id": "x", "created": true, "creat": "x", "o/b": [1], "é": {}})"}},
      // Any key is taken, and what it holds tells what comes behind it.
      {R"({"type":"object","patternProperties":{"after_[create|update]":{"type":"array"},"é.*z":{"const":1}}})",
       {R"({"after_create":[],"after_":0,"xéyz":1})"}},
      // Texts of some kinds, of counted lengths, without one beginning or one part.
      {R"({"type":"string","pattern":"^[a-z0-9]{2,40}$"})", {R"("abc0123456789012345678901234567890123")"}},
      {R"({"type":"string","pattern":"^(?!no)[a-zA-Z ]+$","maxLength":12})", {R"("Once upon a")"}},
      {R"({"type":"string","pattern":"^[^q]{3,20}$"})", {R"("Once, é upon a")"}},
      {R"({"type":"string","pattern":"[a-f]x$"})", {R"("Once upon a fox, ax")"}},
      {R"({"type":"string","not":{"pattern":"fox"}})", {R"("Once upon a f, fo x")"}},
      // Words are counted, with and without the characters; some blanks have two bytes and more.
      {R"({"type":"string","pattern":"^(?:\\S+\\s+){0,4}\\S+$"})", {"\"Once upon\\n a \u00E9\u00A0 x\""}},
      {R"x({"type":"string","pattern":"^$|(^(?:\\S+\\s+){0,40}\\S+$)","maxLength":90})x",
       {"\"Once upon a  time\u2003there was \u3000\u00E9a, b and c; they were not there a day.\"", R"("")"}},
      // Elements are counted, far from the end and near it.
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":14})",
       {"[1,2,3,4,5,6,7,8,9,10,11,12,13,14]", "[1, 2]"}},
      {R"({"type":"array","items":{"enum":["a","b","c","d","e","f","g","h","i","j"]},"uniqueItems":true})",
       {R"(["a","c","b","d","f","e","g","h","j","i"])", "[]"}},
      {R"({"type":"array","items":{"enum":["on","once","one","two","upon"," a","at",1,11,null,"é"]},"uniqueItems":true})",
       {R"(["one","once",11,"upon",1," a","é","on"])", R"([null, 1, 11])"}},
      {R"({"enum":["once","upon","a time","once upon",["a",1],{"a":true}]})",
       {R"("once upon")", R"(["a",1])"}},
      // Keys that several patterns cut, where any text goes on and where some do not; words that points part.
      {R"({"properties":{"id":{"const":1}},"patternProperties":{"rel:.*":{"type":"string"},"_on":{"type":"array"}},"additionalProperties":{"type":"null"}})",
       {R"({"id":1,"a rel:":"x","up_on":[],"on":null})"}},
      {R"x({"patternProperties":{"net_(one|two)":{"type":"integer"},"drv_[a-z]+":{"type":"string"},"e_[a-z]+[0-9]":{"type":"array"}}})x",
       {R"({"net_one":1,"a drv_on":"x","e_on1":[],"net_tw":null})"}},
      {R"({"properties":{"rel:a":{"const":1},"b":{}},"patternProperties":{"rel:.*$":{"type":"string"},"[0-9]end$":{"type":"array"}},"additionalProperties":false})",
       {R"({"b":"x","a1end":[],"rel:b":"c"})"}},
      {R"({"type":"string","pattern":"^[a-z0-9]{1,12}([.-][a-z0-9]{1,12}){0,3}$","maxLength":30})",
       {R"("once.upon-a.time1")"}},
      // One of some words anywhere, and no two of them; a word behind which anything may come.
      {R"({"oneOf":[{"type":"string","pattern":"once"},{"type":"string","pattern":"upon"},{"type":"string","pattern":"time"}]})",
       {"\"a onc\u00E9 tim\u2003e, once and on a tim\"", R"("upo upon a onc")"}},
      {R"({"type":"string","pattern":"^[A-Z][a-z_]+"})", {"\"Once upon \u00E9, 1\"", R"("Onc")"}},
      {R"({"type":"string","not":{"anyOf":[{"pattern":"^a+b"},{"pattern":"fox"}]}})", {R"("aafo foaxb")"}},
      // The same keys in many ways to read an object, and what stands behind them tells the ways apart.
      {R"({"oneOf":[{"properties":{"kind":{"const":"one"},"name":{"type":"string"},"size":{"type":"integer"}},"required":["kind"]},
           {"properties":{"kind":{"const":"two"},"name":{"type":"integer"},"size":{"type":"array","maxItems":2}},"required":["kind"]},
           {"properties":{"kind":{"const":"three"},"name":{"type":"string"},"size":{"enum":["big",4]}},"required":["kind"]}]})",
       {R"({"kind": "two", "name": 3, "size": [1, 2], "other": null})",
        R"({"kind":"three","name":"x","size":"big"})", R"({"kind":"one","size":12})"}},
      // So in elements that differ, and in lists that end.
      {R"({"type":"array","maxItems":40,"items":{"anyOf":[
           {"properties":{"a":{"type":"integer"},"b":{"type":"array","uniqueItems":true,"items":{"type":"integer"}}},"required":["b"]},
           {"properties":{"a":{"type":"string"},"b":{"type":"array","maxItems":30}},"required":["b"]}]}})",
       {R"([{"a":1,"b":[1,2,12]},{"a":"x","b":[1,1]},{"b":[1,1]}])"}},
      {R"({"type":"array","items":{"type":["integer","string","null"],"pattern":"^[a-c]*$"},"uniqueItems":true})",
       {R"([1,12,"a","aa",null,"",2,121])"}},
      {R"({"type":"string","pattern":"^.*$"})", {"\"Once \u00E9 \u2003 upon a\""}},
  };
  const Tokenizer tokenizer = Tokenizer::load(NIBBLE_SOURCE_DIR "/models/demo").value();
  const std::vector<TokenId> ends{0};
  const auto vocabulary = GrammarVocabulary::make(tokenizer, ends, tokenizer.vocabulary_size());
  std::vector<std::uint32_t> mask(token_mask_words(vocabulary->size()));
  for (const auto& [text, answers] : cases) {
    const auto document = JsonDocument::parse(text).value();
    const auto grammar = compile_json_schema(document.root()).value();
    for (const char* answer : answers) {
      const auto constraint = start(grammar, vocabulary);
      for (const TokenId next : tokenizer.encode(answer)) {
        constraint->fill(mask);
        for (TokenId token = 0; token < vocabulary->size(); ++token) {
          const bool in_mask = (mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) != 0;
          ASSERT_EQ(in_mask, constraint->allows(token)) << text << " at " << tokenizer.bytes(next) << " of "
                                                        << answer << ": " << tokenizer.bytes(token);
        }
        ASSERT_TRUE(constraint->allows(next)) << text << " " << answer << " " << tokenizer.bytes(next);
        constraint->accept(next);
      }
      EXPECT_TRUE(constraint->complete()) << text << " " << answer;
    }
  }
}

}  // namespace
}  // namespace nibble
