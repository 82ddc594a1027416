#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "grammar/check.h"

namespace nibble {
namespace {

struct DemoVocabulary {
  Tokenizer tokenizer = Tokenizer::load(NIBBLE_SOURCE_DIR "/models/demo").value();
  std::vector<TokenId> ends{0};
  std::shared_ptr<const GrammarVocabulary> vocabulary =
      GrammarVocabulary::make(tokenizer, ends, tokenizer.vocabulary_size());
};

const DemoVocabulary& demo() {
  static const DemoVocabulary the;
  return the;
}

Result<std::shared_ptr<const Grammar>> schema(std::string_view text) {
  const auto document = JsonDocument::parse(std::string(text)).value();
  return compile_json_schema(document.root());
}

bool takes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  return check_text(grammar, demo().vocabulary, demo().tokenizer, text).taken;
}

struct Case {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

TEST(JsonSchemaGrammar, TakesExactlyTheValuesThatFit) {
  const Case
      cases
          [] =
              {
                  {R"({"type":"integer","minimum":-5,"maximum":120})",
                   {"0", "-5", "120", "99"},
                   {"-6", "121", "1.5", "01", "1000"}},
                  {R"({"type":"number","exclusiveMinimum":0,"maximum":2.5})",
                   {"0.1", "2.5", "1"},
                   {"0", "-1", "2.51", "3"}},
                  {R"({"type":"number","multipleOf":0.25})", {"0.5", "1.75", "-3"}, {"0.3", "0.125"}},
                  {R"({"type":"string","minLength":2,"maxLength":3})",
                   {R"("ab")", R"("äöü")", R"("\n\t")"},
                   {R"("a")", R"("abcd")"}},
                  {R"({"type":"string","pattern":"^a+b$","minLength":3})",
                   {R"("aab")"},
                   {R"("ab")", R"("aabc")", R"("a")"}},
                  {R"({"pattern":"^(?!foo)[a-z]+$","type":"string"})",
                   {R"("bar")", R"("fo")"},
                   {R"("foo")", R"("foobar")"}},
                  {R"({"type":"string","format":"date"})",
                   {R"("2024-02-29")"},
                   {R"("2023-02-29")", R"("2024-13-01")"}},
                  {R"({"type":"string","format":"ipv6"})",
                   {R"("::1")", R"("1:2:3:4:5:6:7:8")"},
                   {R"("1:2")", R"("::g")"}},
                  {R"({"type":"string","format":"regex"})",
                   {R"("")", R"x("^/api/(.*)$")x", R"x("a|b+?|(?:c(d)*){2,3}|")x",
                    R"("[^a-z\\d_-]\\.\\u00e9")", R"x("(?=no)((x(y(z))))")x", R"("[-+]?é{2,}")"},
                   {R"("[")", R"("(")", R"x("a)")x", R"("*")", R"("a**")", R"("[z-a]")", R"("a{3,2}")",
                    R"("\\")", R"("^*")", R"("\\1")", R"("[]")"}},
                  {R"({"type":"string","format":"uri-template"})",
                   {R"("")", R"("http://a/{b}{?c,d*}")", R"("file:///{+path}/x%20y")", R"("{a.b:3}é")"},
                   {R"("{")", R"("{}")", R"("a b")", R"("{a b}")", R"("}")", R"("%2")", R"("{a:0}")"}},
                  {R"({"enum":[1,"a",null,{"x":[1]}]})",
                   {"1", R"("a")", "null", R"({"x":[1]})"},
                   {"2", R"("b")", R"({"x":[2]})"}},
                  {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{}},"required":["b"],"additionalProperties":false})",
                   {R"({"a":1,"b":2})", R"({"b":[true]})"},
                   {R"({"a":1})", R"({"a":"x","b":1})", R"({"b":1,"c":2})", R"({"b":1,"a":1})"}},
                  {R"({"type":"object","patternProperties":{"^n":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
                   {R"({"n1":1,"x":"y"})", "{}"},
                   {R"({"n1":"y"})", R"({"x":1})"}},
                  {R"({"type":"object","propertyNames":{"maxLength":2},"minProperties":1,"maxProperties":2})",
                   {R"({"a":1})", R"({"a":1,"bc":2})"},
                   {"{}", R"({"abc":1})", R"({"a":1,"b":2,"c":3})"}},
                  // The opposites of what is said of members: one must be there that breaks it.
                  {R"({"type":"object","not":{"properties":{"a":{}},"additionalProperties":{"type":"integer"}}})",
                   {R"({"b":"x"})", R"({"a":1,"b":1,"c":null,"d":2})", R"({"b":1,"b":"x"})"},
                   {"{}", R"({"a":"x"})", R"({"b":1,"c":2})", R"({"b":"x","b":1})"}},
                  {R"({"type":"object","not":{"patternProperties":{"^n":{"type":"integer"}}}})",
                   {R"({"n":"x"})", R"({"x":1,"no":[]})"},
                   {"{}", R"({"n":1})", R"({"x":"n"})"}},
                  {R"({"type":"object","not":{"propertyNames":{"maxLength":2}}})",
                   {R"({"abc":1})", R"({"a":1,"bcd":2,"e":3})"},
                   {"{}", R"({"ab":1,"c":2})"}},
                  {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false,
           "not":{"properties":{"a":{}},"additionalProperties":false}})",
                   {R"({"b":1})", R"({"a":1,"b":2})"},
                   {"{}", R"({"a":1})", R"({"c":1})"}},
                  {R"({"oneOf":[{"properties":{"a":{"type":"integer"}},"additionalProperties":false},
           {"properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false}]})",
                   {R"({"b":1})", R"({"a":1,"b":2})"},
                   {"{}", R"({"a":1})", R"({"c":1})", R"({"a":"x","b":1})", "1"}},
                  {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"string"},"minItems":1,"maxItems":3})",
                   {"[1]", R"([1,"a","b"])"},
                   {"[]", R"(["a"])", R"([1,"a","b","c"])", "[1,2]"}},
                  {R"({"$defs":{"t":{"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#/$defs/t"}}},"additionalProperties":false}},"$ref":"#/$defs/t"})",
                   {R"({"c":[{"c":[]},{}]})"},
                   {R"({"c":[1]})", R"({"c":[{"d":1}]})"}},
                  {R"({"allOf":[{"properties":{"a":{"type":"integer"}}},{"properties":{"a":{"minimum":3}},"required":["a"]}],"type":"object"})",
                   {R"({"a":3})"},
                   {R"({"a":2})", R"({"a":"x"})", "{}"}},
                  {R"({"oneOf":[{"type":"integer","minimum":5},{"type":"integer","maximum":10}]})",
                   {"4", "11"},
                   {"5", "10", "7"}},
                  {R"({"not":{"type":"string"}})", {"1", "[]"}, {R"("a")"}},
                  {R"({"type":"object","if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["v"]}})",
                   {R"({"k":2})", R"({"k":1,"v":0})", "{}"},
                   {R"({"k":1})"}},
                  {R"({"type":"object","dependentRequired":{"a":["b"]}})",
                   {R"({"b":1})", R"({"a":1,"b":1})"},
                   {R"({"a":1})"}},
                  {R"({"type":["string","null"]})", {"null", R"("x")"}, {"1"}},
                  {R"({"type":"array","items":{"type":"string"},"uniqueItems":true})",
                   {"[]", R"(["a"])", R"(["a","aa","b"])"},
                   {R"(["a","a"])", R"(["a","b","a"])"}},
                  {R"({"type":"array","items":{"type":["number","boolean"]},"uniqueItems":true,"minItems":2})",
                   {"[1,2]", "[1,11,12]", "[0,-1]", "[1.5,1,true]"},
                   {"[1]", "[1,1]", "[1,2,1]", "[-0,0]", "[1.5,1.50]", "[true,true]"}},
                  {R"({"type":"array","items":{"enum":["x","y",1,null]},"uniqueItems":true,"minItems":2})",
                   {R"(["x","y"])", R"([1,"x",null,"y"])"},
                   {R"(["x"])", R"(["x","x"])", "[1,1]"}},
                  {R"({"type":"array","items":{"type":["integer","string"]},"contains":{"type":"string"}})",
                   {R"(["a"])", R"([1,"a",2])", R"(["a","b"])"},
                   {"[]", "[1,2]"}},
                  {R"({"type":"array","contains":{"type":"integer","minimum":5},"minContains":2,"maxContains":3})",
                   {"[5,6]", R"([1,5,"x",6,7])"},
                   {"[5]", "[5,1]", "[5,6,7,8]"}},
                  {R"({"type":"array","contains":{"const":1},"minContains":0,"maxContains":1,"maxItems":3})",
                   {"[]", "[2,3]", "[2,1,3]"},
                   {"[1,1]", "[1,2,1]", "[2,3,4,5]"}},
                  {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"contains":{"minLength":2,"type":"string"}})",
                   {R"([1,"ab"])"},
                   {"[]", "[1]", R"([1,"a"])", R"(["ab"])"}},
                  {R"({"type":"array","allOf":[{"contains":{"type":"integer"}},{"contains":{"type":"number","minimum":5},"minContains":2,"maxContains":3},{"contains":{"const":"a"},"minContains":0,"maxContains":1}]})",
                   {"[5,6]", "[7,8,9,1]", R"([5.5,1,"a",6,"b"])"},
                   {"[]", "[5]", "[5.5,6.5]", "[1,5]", "[5,6,7,8]", R"([5,6,"a","a"])"}},
                  {R"({"type":"array","maxItems":2,"items":{"enum":["a","b","c"]},"allOf":[{"contains":{"const":"a"}},{"not":{"items":{"enum":["a","b"]}}}]})",
                   {R"(["a","c"])", R"(["c","a"])"},
                   {R"(["a"])", R"(["a","b"])", R"(["c","b"])", R"(["c"])"}},
                  {R"({"type":"array","not":{"prefixItems":[{"type":"integer"}],"items":{"type":"string"}}})",
                   {R"(["a"])", "[1,2]", R"([1,"a",null])"},
                   {"[]", "[1]", R"([1,"a"])", R"([1,"a","b"])"}},
                  {R"({"enum":[[1],[2],[2,2]],"contains":{"const":2}})", {"[2]", "[2,2]"}, {"[1]"}},
                  {R"({"type":"array","not":{"items":{"type":"integer"}}})",
                   {R"([1,"a"])", "[null]"},
                   {"[]", "[1,2]"}},
                  {R"({"type":"array","not":{"prefixItems":[{"type":"integer"},{"type":"integer"}]}})",
                   {R"(["a"])", R"([1,"a",3])"},
                   {"[]", "[1]", "[1,2,3]"}},
                  {R"({"type":"integer","not":{"oneOf":[{"minimum":5},{"multipleOf":2}]}})",
                   {"1", "6", "-3"},
                   {"4", "5", "7"}},
                  {R"({"type":"integer","not":{"if":{"minimum":5},"then":{"multipleOf":2},"else":{"multipleOf":3}}})",
                   {"7", "1", "4"},
                   {"6", "8", "3"}},
                  {R"({"type":"object","not":{"dependentRequired":{"a":["b"]},"dependentSchemas":{"c":{"required":["d"]}}}})",
                   {R"({"a":1})", R"({"c":1})", R"({"c":1,"e":2})"},
                   {R"({"a":1,"b":1})", "{}", R"({"c":1,"d":2})"}},
                  {R"({"type":"object","minProperties":2})",
                   {R"({"a":1,"b":2})", R"({"a":1,"ab":{"a":1}})"},
                   {"{}", R"({"a":1})", R"({"a":1,"a":2})"}},
                  {R"({"type":"object","propertyNames":{"enum":["p","q","r"]},"minProperties":2})",
                   {R"({"p":1,"q":2})", R"({"r":1,"q":2,"p":0})"},
                   {R"({"p":1})", R"({"p":1,"p":2})"}},
                  // A member that is no integer, and one that begins with a and is no string.
                  {R"({"type":"object","allOf":[{"not":{"additionalProperties":{"type":"integer"}}},{"not":{"patternProperties":{"^a":{"type":"string"}}}}]})",
                   {R"({"a":null})", R"({"x":"s","ab":1})", R"({"ab":1,"b":2,"x":"s"})",
                    R"({"a":[],"a1":2})"},
                   {"{}", R"({"a":1})", R"({"a":"s"})", R"({"a":"s","b":1})", R"({"x":"s","b":1})",
                    R"({"a":1,"a":"s"})"}},
                  {R"({"type":"object","maxProperties":1,"not":{"propertyNames":{"maxLength":1}},"properties":{"b":true,"bc":{"not":{"type":"null"}}},"allOf":[{"not":{"additionalProperties":{"type":"null"}}}]})",
                   {R"({"bc":1})", R"({"xy":0})"},
                   {R"({"bc":null})", R"({"b":1})", R"({"xy":null})", R"({"xy":0,"b":0})"}},
                  {R"({"not":{"const":{"a":1,"b":[2]}}})",
                   {"{}", "1", R"({"a":1})", R"({"a":1,"b":[2,3]})", R"({"a":2,"b":[2]})",
                    R"({"a":1,"b":[2],"c":0})"},
                   {R"({"a":1,"b":[2]})", "{\n  \"a\": 1,\n  \"b\": [\n    2\n  ]\n}"}},
                  {R"({"allOf":[{"$ref":"#/properties/p/enum/0"}],"properties":{"p":{"enum":[{"type":"object","required":["q"]}]}},"not":{"$ref":"#/properties/p"}})",
                   {R"({"q":1})", R"({"q":1,"type":"object","required":["q"]})"},
                   {"{}", R"({"type":"object","required":["q"]})", R"({"p":1,"q":1})"}},
                  {R"({"type":["array","string"],"not":{"enum":[[],["x"],"x"]}})",
                   {R"(["y"])", R"(["x","x"])", R"("y")"},
                   {"[]", R"(["x"])", R"("x")"}},
                  // Objects are told apart by `kind`, which the schema around them asks for, as it does for
                  // an object.
                  {R"({"type":"object","required":["kind"],"oneOf":[{"properties":{"kind":{"const":"a"},"v":{"type":"integer"}},"additionalProperties":false},{"properties":{"kind":{"const":"b"},"v":{"type":"integer"},"w":true},"additionalProperties":false},{"properties":{"kind":{"const":"c"},"w":{"type":"null"}},"additionalProperties":false},{"properties":{"kind":{"const":"d"},"v":true,"x":true},"additionalProperties":false}]})",
                   {R"({"kind":"a","v":1})", R"({"kind":"c","w":null})", R"({"kind":"d"})"},
                   {R"({"kind":"a","w":1})", R"({"v":1})", R"({"kind":"e"})", "1"}},
                  // What is no object fits each of the branches, so it fits none.
                  {R"({"oneOf":[{"properties":{"c":{"const":1},"p":true},"additionalProperties":false,"required":["c","p"]},{"properties":{"c":{"const":2},"q":true},"additionalProperties":false,"required":["c","q"]},{"properties":{"c":{"const":3},"p":true},"additionalProperties":false,"required":["c","p"]}]})",
                   {R"({"c":1,"p":0})", R"({"c":2,"q":0})"},
                   {R"({"c":1,"q":0})", R"({"c":4,"p":0})", "1", "[]", R"("c")"}},
                  // A hundred ways of lacking a member or having another one.
                  {R"({"type":"object","oneOf":[{"required":["a"],"properties":{"a":{"type":"integer"}}},{"required":["b"],"properties":{"b":{"type":"integer"}}},{"required":["c"],"properties":{"c":{"type":"integer"}}},{"required":["d"],"properties":{"d":{"type":"integer"}}},{"required":["e"],"properties":{"e":{"type":"integer"}}},{"required":["f"],"properties":{"f":{"type":"integer"}}},{"required":["g"],"properties":{"g":{"type":"integer"}}},{"required":["h"],"properties":{"h":{"type":"integer"}}},{"required":["i"],"properties":{"i":{"type":"integer"}}},{"required":["j"],"properties":{"j":{"type":"integer"}}},{"required":["k"],"properties":{"k":{"type":"integer"}}},{"required":["l"],"properties":{"l":{"type":"integer"}}}]})",
                   {R"({"a":1})", R"({"l":1})", R"({"d":1,"e":"x"})"},
                   {"{}", R"({"a":"x"})", R"({"a":1,"b":2})", R"({"a":"x","b":"y"})"}},
                  // Of twelve conditions on one member at most one holds.
                  {R"({"type":"object","properties":{"t":{"type":"integer"}},"required":["t"],"allOf":[{"if":{"properties":{"t":{"const":1}}},"then":{"required":["a"]}},{"if":{"properties":{"t":{"const":2}}},"then":{"required":["b"]}},{"if":{"properties":{"t":{"const":3}}},"then":{"required":["c"]}},{"if":{"properties":{"t":{"const":4}}},"then":{"required":["d"]}},{"if":{"properties":{"t":{"const":5}}},"then":{"required":["e"]}},{"if":{"properties":{"t":{"const":6}}},"then":{"required":["f"]}},{"if":{"properties":{"t":{"const":7}}},"then":{"required":["g"]}},{"if":{"properties":{"t":{"const":8}}},"then":{"required":["h"]}},{"if":{"properties":{"t":{"const":9}}},"then":{"required":["i"]}},{"if":{"properties":{"t":{"const":10}}},"then":{"required":["j"]}},{"if":{"properties":{"t":{"const":11}}},"then":{"required":["k"]}},{"if":{"properties":{"t":{"const":12}}},"then":{"required":["l"]}}]})",
                   {R"({"t":1,"a":0})", R"({"t":12,"l":0})", R"({"t":13})"},
                   {R"({"t":1})", R"({"t":2,"a":0})", "{}"}},
              };
  for (const Case& each : cases) {
    const auto grammar = schema(each.schema);
    ASSERT_TRUE(grammar.ok()) << each.schema << grammar.status().message();
    for (const char* text : each.valid) EXPECT_TRUE(takes(*grammar, text)) << each.schema << " " << text;
    for (const char* text : each.invalid) EXPECT_FALSE(takes(*grammar, text)) << each.schema << " " << text;
  }
}

// The mask's short cuts inside strings against trying each token.
TEST(GrammarConstraint, ShortCutsInsideStringsAreExact) {
  for (const char* text :
       {R"({"type":"string"})", R"({"type":"string","maxLength":5})",
        R"({"type":"string","minLength":3,"maxLength":40})", R"({"type":"string","pattern":"the"})",
        R"({"type":"string","not":{"enum":["the","a"]}})",
        R"({"anyOf":[{"type":"string","maxLength":2},{"type":"string","maxLength":7}]})",
        R"({"type":"object","properties":{"there":{},"then":{}},"additionalProperties":{"type":"null"}})"}) {
    const auto constraint = start(schema(text).value(), demo().vocabulary);
    std::vector<std::uint32_t> mask(token_mask_words(demo().vocabulary->size()));
    for (const char* begin : {"\"", "th", "e"}) {
      for (const TokenId id :
           demo().tokenizer.encode(begin == std::string_view("\"") && text[9] == 'o' ? "{\"" : begin)) {
        if (constraint->allows(id)) constraint->accept(id);
        constraint->fill(mask);
        for (TokenId token = 0; token < demo().vocabulary->size(); ++token)
          ASSERT_EQ(mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1, constraint->allows(token))
              << text << " " << begin << " " << demo().tokenizer.bytes(token);
      }
    }
  }
}

TEST(JsonSchemaGrammar, WhiteSpaceIsThatOfWritersAndEnds) {
  const auto grammar =
      schema(R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})").value();
  for (const char* text :
       {R"({"a":1})", R"({"a": 1})", R"({ "a": 1 })", "{\n  \"a\": 1\n}", "{\r\n\t\"a\": 1\r\n}"})
    EXPECT_TRUE(takes(grammar, text)) << text;
  for (const char* text : {R"({"a" :1})", R"({"a":  1})", "{\"a\"\n:1}", "{\"a\":\n1}", "{\n\n\"a\":1}",
                           "{\"a\":1 \n}", R"({"a":1 ,"b":2})"})
    EXPECT_FALSE(takes(grammar, text)) << text;
  const auto given = schema(R"({"const":{"a":[1,2]}})").value();
  EXPECT_TRUE(takes(given, "{\n \"a\": [\n  1,\n  2\n ]\n}"));
  for (const char* text : {R"({"a" :[1,2]})", R"({"a":[1 ,2]})"}) EXPECT_FALSE(takes(given, text)) << text;
}

// What leads nowhere is refused where it begins.
TEST(JsonSchemaGrammar, LimitsOnMembersLeaveNoDeadEnd) {
  const auto begins = [](const char* text, std::string_view beginning) {
    const auto grammar = schema(text);
    EXPECT_TRUE(grammar.ok());
    const auto constraint = start(*grammar, demo().vocabulary);
    for (const TokenId id : demo().tokenizer.encode(beginning)) {
      if (!constraint->allows(id)) return false;
      constraint->accept(id);
    }
    return true;
  };
  const char* both =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"minProperties":2,"additionalProperties":false})";
  EXPECT_TRUE(begins(both, R"({"a")"));
  EXPECT_FALSE(begins(both, R"({"b")"));
  const char* one =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["b"],"maxProperties":1})";
  EXPECT_TRUE(begins(one, R"({"b")"));
  EXPECT_FALSE(begins(one, R"({"a")"));
  const char* broken =
      R"({"type":"object","properties":{"a":{"enum":["x"]},"b":{"enum":["x","y"]},"c":{"enum":["x","y"]}},"maxProperties":2,
          "additionalProperties":false,"not":{"properties":{"a":{}},"additionalProperties":{"const":"x"}}})";
  EXPECT_TRUE(begins(broken, R"({"a":"x","b":"y"})"));
  EXPECT_TRUE(begins(broken, R"({"b":"x","c":"y"})"));
  EXPECT_FALSE(begins(broken, R"({"a":"x","b":"x)"));
  EXPECT_FALSE(begins(broken, R"({"c":"x)"));
  const char* two_broken =
      R"({"type":"object","properties":{"a":{"enum":[1,2,3]},"b":{"enum":[1,2]},"c":{"enum":[1,2,3]}},"maxProperties":2,
          "additionalProperties":false,"allOf":[{"not":{"additionalProperties":{"const":1}}},{"not":{"additionalProperties":{"const":2}}}]})";
  EXPECT_TRUE(begins(two_broken, R"({"a":3,"b":1})"));
  EXPECT_TRUE(begins(two_broken, R"({"a":1,"b":2})"));
  EXPECT_TRUE(begins(two_broken, R"({"b":1,"c":3})"));
  EXPECT_FALSE(begins(two_broken, R"({"a":1,"b":1)"));
  EXPECT_FALSE(begins(two_broken, R"({"c":1)"));
  const char* two =
      R"({"items":{"type":["integer","string"]},"contains":{"type":"string"},"minContains":2,"maxItems":3,"type":"array"})";
  EXPECT_TRUE(begins(two, "[1,\"a\""));
  EXPECT_FALSE(begins(two, "[1,2"));
  const char* both_there =
      R"({"type":"array","maxItems":3,"items":{"enum":["a","b"]},"allOf":[{"contains":{"const":"a"},"minContains":2},{"contains":{"const":"b"}}]})";
  EXPECT_TRUE(begins(both_there, R"(["a","b","a")"));
  EXPECT_FALSE(begins(both_there, R"(["b","b")"));
  EXPECT_FALSE(begins(both_there, R"(["a","a","a")"));
  const char* few =
      R"({"type":"array","items":{"type":"string"},"contains":{"type":"string"},"maxContains":2,"maxItems":5})";
  EXPECT_TRUE(begins(few, R"(["a","b"])"));
  EXPECT_FALSE(begins(few, R"(["a","b",)"));
}

TEST(JsonSchemaGrammar, NamesWhatItRefuses) {
  for (
      const auto& [text, part] : std::vector<std::pair<const char*, const char*>>{
          {R"({"not":{"format":"regex"}})", "#/not/format: is not supported where its opposite is needed"},
          {R"({"oneOf":[{"format":"uri-template"},{"enum":["{=x}"]}]})", "#/oneOf/0/format"},
          {R"({"properties":{"a":{"type":"array","uniqueItems":true}}})", "#/properties/a/uniqueItems"},
          {R"({"items":{"format":"iri"}})", "#/items/format"},
          {R"({"contains":{"type":"string"},"minContains":40000})", "#/contains"},
          {R"({"allOf":[{"contains":{"const":1}},{"contains":{"const":2}},{"contains":{"const":3}},{"contains":{"const":4}}],"type":"array"})",
           "#/allOf/0/contains: is not supported beside 3 others"},
          {R"({"contains":{"const":1},"minContains":3000,"maxContains":3000})",
           "#/contains: is not supported with"},
          {R"({"type":"array","uniqueItems":true,"contains":{"const":1},"items":{"type":"integer"}})",
           "contains stands beside it"},
          {R"({"allOf":[{"not":{"patternProperties":{"a":{"const":1}}}},{"not":{"patternProperties":{"b":{"const":1}}}},
                {"not":{"patternProperties":{"c":{"const":1}}}},{"not":{"propertyNames":{"const":"a"}}}]})",
           "#/allOf/0/not/patternProperties: is not supported where its opposite is needed beside 3 other"},
          {R"({"not":{"patternProperties":{"^a$":{"const":1}}},"allOf":[{"not":{"patternProperties":{"^a$":{"const":2}}}}]})",
           "members with few names that are not declared"},
          {R"({"minProperties":2,"not":{"patternProperties":{"a":{"const":1}}}})",
           "#/not/patternProperties: is not supported where its opposite is needed beside minProperties"},
          {R"({"$ref":"http://example.com/x.json"})", "nothing is fetched"},
          {R"({"$ref":"#"})", "leads back to itself"},
          {R"({"type":"strin"})", "#/type"},
          {R"({"type":"object","properties":{"a":false},"required":["a"]})", "no text at all"},
          {R"([1])", "a schema is an object"}}) {
    const auto grammar = schema(text);
    ASSERT_FALSE(grammar.ok()) << text;
    EXPECT_NE(grammar.status().message().find(part), std::string::npos) << grammar.status().message();
  }
}

TEST(JsonSchemaGrammar, RefusesAnOppositeBesideManyWays) {
  std::string ways;
  for (int i = 0; i < 8; ++i)
    ways += R"({"anyOf":[{"required":["a)" + std::to_string(i) + R"("]},{"required":["b)" +
            std::to_string(i) + R"("]}]},)";
  const auto grammar = schema(
      (R"({"allOf":[)" + ways + R"({"type":"object"}],"not":{"additionalProperties":false}})").c_str());
  ASSERT_FALSE(grammar.ok());
  EXPECT_NE(grammar.status().message().find("#/not/additionalProperties: is not supported"),
            std::string::npos)
      << grammar.status().message();
}

TEST(RegexGrammar, TakesTheWholeText) {
  const auto grammar = compile_regex("(ab|c){2,3}x?").value();
  EXPECT_TRUE(takes(grammar, "abcx"));
  EXPECT_FALSE(takes(grammar, "ab"));
  EXPECT_FALSE(takes(grammar, "abcabcx"));
}

TEST(RegexGrammar, BrokenPatternsAreErrorsAndNothingMore) {
  for (const char* pattern : {"foo**", "^+", "(?<=x)", "{2}", "(", ")", "[", "[z-a]", "\\", "a{3,2}", "(?",
                              "\\1", "x{999999999}", "(?i)a", "\\p{Zz}", "[\\"})
    EXPECT_FALSE(compile_regex(pattern).ok()) << pattern;
}

TEST(GbnfGrammar, FollowsRulesThatNest) {
  const auto grammar = compile_gbnf("root ::= \"(\" root \")\" | [a-z]+ # nested\n").value();
  EXPECT_TRUE(takes(grammar, "((ab))"));
  EXPECT_FALSE(takes(grammar, "((ab)"));
}

TEST(GbnfGrammar, NamesWhatIsWrong) {
  EXPECT_NE(compile_gbnf("root ::= root \"a\" | \"b\"").status().message().find("begin with itself"),
            std::string::npos);
  EXPECT_NE(compile_gbnf("root ::= x").status().message().find("not defined"), std::string::npos);
  EXPECT_FALSE(compile_gbnf("root ::= \"a").ok());
}

TEST(LarkGrammar, FollowsRulesTerminalsAndPatterns) {
  const auto grammar = compile_lark(R"(
// a list of words and numbers
start: item ("," item)~1..2
?item: WORD | "no"i NUMBER   // two kinds
WORD: /[a-m]+/
    | "x".."z"
NUMBER: "1" [".5"]
)")
                           .value();
  for (const char* text : {"abc,y", "No1,no1.5,abc"}) EXPECT_TRUE(takes(grammar, text)) << text;
  for (const char* text : {"abc", "abc,q", "no,a", "a,a,a,a"}) EXPECT_FALSE(takes(grammar, text)) << text;
  EXPECT_NE(compile_lark("start: start \"a\" | \"b\"").status().message().find("begin with itself"),
            std::string::npos);
  EXPECT_NE(compile_lark("%import common.WS").status().message().find("not supported"), std::string::npos);
  for (const char* cut : {"start: \"a\\", "start: \"a\"..\"\\", "start: /a\\"})
    EXPECT_NE(compile_lark(cut).status().message().find("that ends the text or pattern"), std::string::npos)
        << cut;
}

TEST(TextCheck, SpellsNumbersAsPeopleDo) {
  const auto document = JsonDocument::parse(R"({"a":[1000000.0,-0.25,1e-7,6.02e23,3]})").value();
  EXPECT_EQ(compact_json(document.root()), R"({"a":[1000000.0,-0.25,1e-07,6.02e+23,3]})");
  EXPECT_EQ(indented_json(*document.root().find("a")),
            "[\n  1000000.0,\n  -0.25,\n  1e-07,\n  6.02e+23,\n  3\n]");
}

TEST(HostileGrammars, DeepNestingIsRefusedWithAFlatStack) {
  for (const std::size_t depth : {100u, 10'000u, 1'000'000u}) {
    EXPECT_FALSE(compile_regex(std::string(depth, '(')).ok());
    EXPECT_FALSE(compile_gbnf("root ::= " + std::string(depth, '(')).ok());
    std::string text;
    for (std::size_t i = 0; i < depth; ++i) text += "{\"not\":";
    EXPECT_FALSE(JsonDocument::parse(text).ok());
  }
}

TEST(HostileGrammars, CompileTimeIsBounded) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(compile_regex("(a{1,100000}){1,100001}").ok());
  std::string conditions = R"({"type":"object","dependentRequired":{)";
  for (int i = 0; i < 40; ++i) conditions += (i ? "," : "") + ("\"k" + std::to_string(i) + "\":[\"z\"]");
  EXPECT_FALSE(schema(conditions + "}}").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// Each rule is known to have the empty text once the next one is.
TEST(HostileGrammars, ATextOfManyRulesHasItsTimeToo) {
  std::string gbnf = "root ::= a0\n", lark = "start: a0\n";
  for (int i = 0; i < 20'000; ++i) {
    const std::string name = "a" + std::to_string(i), next = "a" + std::to_string(i + 1);
    gbnf += name + " ::= " + next + "\n";
    lark += name + ": " + next + "\n";
  }
  const CompileLimits limits{.max_milliseconds = 1};
  for (const auto& grammar :
       {compile_gbnf(gbnf + "a20000 ::= \"\"\n", limits), compile_lark(lark + "a20000: \"x\"\n", limits)}) {
    ASSERT_FALSE(grammar.ok());
    EXPECT_NE(grammar.status().message().find("more than 1 ms"), std::string::npos)
        << grammar.status().message();
  }
}

TEST(GrammarConstraint, MaskSaysWhatAllowsSays) {
  const auto grammar =
      schema(
          R"({"type":"object","properties":{"name":{"type":"string","maxLength":9},"n":{"type":"number"}}})")
          .value();
  const auto constraint = start(grammar, demo().vocabulary);
  std::vector<std::uint32_t> mask(token_mask_words(demo().vocabulary->size()));
  for (const TokenId id :
       demo().tokenizer.encode(R"({ "name": "Ada", "n": -1.5, "other": {"x": [1, null]}})")) {
    constraint->fill(mask);
    for (TokenId token = 0; token < demo().vocabulary->size(); ++token)
      ASSERT_EQ(mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1, constraint->allows(token))
          << token;
    constraint->accept(id);
  }
  EXPECT_TRUE(constraint->complete());
}

TEST(GrammarConstraint, APlaceThatNoTokenLeavesEndsTheAnswer) {
  // A model that has the first few of the tokenizer's tokens alone cannot spell the word.
  const TokenId few = 8;
  const auto vocabulary = GrammarVocabulary::make(demo().tokenizer, demo().ends, few);
  const auto constraint = start(compile_choice(std::vector<std::string>{"forward"}).value(), vocabulary);
  std::vector<std::uint32_t> mask(token_mask_words(few));
  constraint->fill(mask);
  EXPECT_EQ(mask, std::vector<std::uint32_t>{1u << demo().ends.front()});
  constraint->accept(demo().ends.front());
  EXPECT_FALSE(constraint->complete());
  EXPECT_TRUE(constraint->cut());
  constraint->roll_back(1);
  EXPECT_FALSE(constraint->cut());
  constraint->fill(mask);
  EXPECT_EQ(mask, std::vector<std::uint32_t>{1u << demo().ends.front()});
}

// The masks of a step are found before any token of it is taken.
TEST(GrammarConstraint, APlaceThatNoTokenLeavesEndsTheAnswerInAStepOfTheEngine) {
  const TokenId f = demo().tokenizer.encode("f").front(), end = demo().ends.front();
  const TokenId few = f + 1;  // without an o
  const auto vocabulary = GrammarVocabulary::make(demo().tokenizer, demo().ends, few);
  for (const std::vector<TokenId>& drafts : {std::vector<TokenId>{}, std::vector<TokenId>{f}}) {
    const std::string word = std::string(1 + drafts.size(), 'f') + "o";
    const std::shared_ptr<TokenConstraint> constraint =
        start(compile_choice(std::vector<std::string>{word}).value(), vocabulary);
    constraint->accept(f);
    ConstrainedAnswer answer(constraint, few, 1);
    answer.set_drafts(drafts);
    answer.find_masks();
    ASSERT_EQ(answer.mask(static_cast<int>(drafts.size()))[0], 1u << end) << word;
    for (const TokenId draft : drafts) constraint->accept(draft);
    constraint->accept(end);
    EXPECT_TRUE(constraint->cut()) << word;
  }
}

TEST(GrammarConstraint, AnAnswerThatIsWholeIsNotCut) {
  const auto constraint =
      start(compile_choice(std::vector<std::string>{"forward"}).value(), demo().vocabulary);
  for (const TokenId token : demo().tokenizer.encode("forward")) constraint->accept(token);
  constraint->accept(demo().ends.front());
  EXPECT_FALSE(constraint->cut());
}

TEST(GrammarConstraint, RollsBackToWhereItWas) {
  const auto constraint = start(compile_regex("[ab]{3}").value(), demo().vocabulary);
  std::vector<std::uint32_t> before(token_mask_words(demo().vocabulary->size())), after = before;
  constraint->fill(before);
  const std::vector<TokenId> ids = demo().tokenizer.encode("aba");
  for (const TokenId id : ids) constraint->accept(id);
  EXPECT_TRUE(constraint->complete());
  constraint->accept(demo().ends[0]);
  constraint->roll_back(static_cast<int>(ids.size()) + 1);
  constraint->fill(after);
  EXPECT_EQ(before, after);
}

std::string drafted(TokenConstraint& constraint, std::size_t most) {
  std::vector<TokenId> room(most);
  room.resize(static_cast<std::size_t>(constraint.draft(room)));
  std::string text;
  for (const TokenId token : room) text += demo().tokenizer.bytes(token);
  return text;
}

TEST(GrammarConstraint, DraftsTheTextThatMustComeUpToAChoice) {
  const auto constraint =
      start(compile_choice(std::vector<std::string>{"forward", "fortune"}).value(), demo().vocabulary);
  EXPECT_EQ(drafted(*constraint, 100), "for");
  for (const TokenId id : demo().tokenizer.encode("fort")) constraint->accept(id);
  EXPECT_EQ(drafted(*constraint, 100), "une");
  EXPECT_EQ(drafted(*constraint, 0), "");
  for (const TokenId id : demo().tokenizer.encode("une")) constraint->accept(id);
  EXPECT_EQ(drafted(*constraint, 100), "") << "the text is whole";
}

TEST(GrammarConstraint, WhatItDraftsMayCome) {
  const auto document =
      JsonDocument::parse(R"({"type":"object","properties":{"a_long_name":{"enum":["one value"]}},
                                               "required":["a_long_name"],"additionalProperties":false})");
  const auto grammar =
      compile_json_schema(document.value().root(), {.whitespace = JsonWhitespace::compact}).value();
  const auto constraint = start(grammar, demo().vocabulary);
  std::string text;
  while (!constraint->complete()) {
    TokenId next = -1;
    ASSERT_EQ(constraint->draft(std::span(&next, 1)), 1) << text;
    ASSERT_TRUE(constraint->allows(next)) << text;
    constraint->accept(next);
    text += demo().tokenizer.bytes(next);
  }
  EXPECT_EQ(text, R"({"a_long_name":"one value"})");
  EXPECT_EQ(drafted(*constraint, 8), "");
}

}  // namespace
}  // namespace nibble
