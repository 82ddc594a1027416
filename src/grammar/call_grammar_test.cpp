#include "grammar/call_grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "grammar/check.h"
#include "text/call_reader.h"

namespace nibble {
namespace {

constexpr std::string_view offered = R"([
  {"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{
    "where":{"type":"string","minLength":1,"maxLength":9},"count":{"type":"integer","minimum":0,"maximum":99},
    "note":{"anyOf":[{"type":"string","maxLength":5},{"type":"null"}]},
    "way":{"enum":["a","b c"]},"at":{"$ref":"#/$defs/place"}},
    "required":["where","way"],"additionalProperties":false,
    "$defs":{"place":{"type":"object","properties":{"x":{"type":"number"},"name":{"type":"string","maxLength":4}},
      "required":["x"],"additionalProperties":false}}}}},
  {"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{},
    "additionalProperties":false}}}])";

struct Offer {
  JsonDocument document = JsonDocument::parse(std::string(offered)).value();
  std::shared_ptr<const OfferedTools> tools =
      std::make_shared<const OfferedTools>(OfferedTools::of(document.root()));
  std::vector<BoundFunction> functions;

  Offer() {
    for (const JsonValue tool : document.root().elements()) {
      const JsonValue function = *tool.find("function");
      functions.push_back({.name = std::string(function.find("name")->as_string()),
                           .schema = function.find("parameters"),
                           .where = "tools[" + std::to_string(functions.size()) + "].function.parameters"});
    }
  }
};

// qwen3's has <tool_call> as a token, the demo's has to spell it.
Tokenizer load(std::string_view name) {
  return Tokenizer::load(std::string(NIBBLE_SOURCE_DIR) + std::string(name)).value();
}

struct Bound {
  Offer offer;
  CallForm form;
  Tokenizer tokenizer;
  std::vector<TokenId> ends{0};
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  std::shared_ptr<const Grammar> grammar;

  Bound(CallForm calls, const Tokenizer& spelled, CallRules::Text text = CallRules::Text::answer,
        bool several = true)
      : form(calls), tokenizer(spelled) {
    vocabulary = GrammarVocabulary::make(tokenizer, ends, tokenizer.vocabulary_size(), marks_of(form));
    grammar = compile_calls(offer.functions, {.form = form, .several = several, .text = text}, *offer.tools,
                            *vocabulary)
                  .value();
  }

  bool takes(std::string_view text) const {
    const auto place = start(grammar, vocabulary);
    for (const TokenId token : tokenizer.encode_trusted(text)) {
      if (!place->allows(token)) return false;
      place->accept(token);
    }
    return place->complete();
  }
};

struct Case {
  CallForm form;
  std::string_view call;
};

const Case written[] = {
    {CallForm::json_in_tags,
     "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"where\": \"pond\", \"way\": \"b c\", \"at\": "
     "{\"x\": "
     "1.5}}}\n</tool_call>"},
    {CallForm::xml_in_tags,
     "<tool_call>\n<function=look>\n<parameter=where>\npond\n</parameter>\n<parameter=count>\n12\n"
     "</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=way>\nb "
     "c\n</parameter>\n<parameter=at>\n"
     "{\"x\": 1.5}\n</parameter>\n</function>\n</tool_call>"},
    {CallForm::arguments_in_tags,
     "<tool_call>look\n<arg_key>where</arg_key>\n<arg_value>pond</arg_value>\n<arg_key>way</arg_key>\n"
     "<arg_value>a</arg_value>\n</tool_call>"},
    {CallForm::arguments_in_tags,
     "<tool_call>look<arg_key>where</arg_key><arg_value>pond</arg_value><arg_key>way</arg_key>"
     "<arg_value>a</arg_value></tool_call>"},
    {CallForm::deepseek,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"where\": \"pond\", \"way\": \"a\"}"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {CallForm::deepseek_fenced,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"where\": \"pond\", "
     "\"way\": \"a\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {CallForm::kimi,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"where\": "
     "\"pond\", \"way\": \"a\"}<|tool_call_end|><|tool_calls_section_end|>"},
    {CallForm::bare_json, "{\"name\": \"look\", \"parameters\": {\"where\": \"pond\", \"way\": \"a\"}}"},
};

TEST(CallGrammar, TakesCallsAsEveryFormWritesThemAndNoOther) {
  for (const char* name : {"/tests/data/tokenizers/qwen3", "/models/demo"}) {
    const Tokenizer tokenizer = load(name);
    for (const Case& each : written) {
      const Bound bound(each.form, tokenizer);
      const std::string call(each.call);
      EXPECT_TRUE(bound.takes(call)) << name << call;
      EXPECT_FALSE(bound.takes("I look. " + call)) << name << call;
      EXPECT_FALSE(bound.takes(call.substr(0, call.size() - 1))) << name << call;
      for (const auto& [from, to] : {std::pair{"look", "lock"}, {"pond", ""}, {"way", "why"}}) {
        std::string wrong = call;
        wrong.replace(wrong.find(from), std::string_view(from).size(), to);
        EXPECT_FALSE(bound.takes(wrong)) << name << wrong;
      }
    }
  }
}

TEST(CallGrammar, ABareCallOrATextThatBeginsNone) {
  const Tokenizer tokenizer = load("/models/demo");
  const Bound bound(CallForm::bare_json, tokenizer, CallRules::Text::either);
  for (const char* text : {"", "No {\"name\": 1}", R"({"name": "stop", "parameters": {}})"})
    EXPECT_TRUE(bound.takes(text)) << text;
  for (const char* text : {"{}", " {", R"({"name": "stop", "parameters": {"a": 1}})", "<|python_tag|>a"})
    EXPECT_FALSE(bound.takes(text)) << text;
}

TEST(CallGrammar, OneCallIsOneWhereSeveralAreNotAllowed) {
  const Tokenizer tokenizer = load("/tests/data/tokenizers/qwen3");
  const std::string call(written[0].call);
  EXPECT_TRUE(Bound(CallForm::json_in_tags, tokenizer).takes(call + "\n" + call));
  EXPECT_FALSE(Bound(CallForm::json_in_tags, tokenizer, CallRules::Text::answer, /*several=*/false)
                   .takes(call + "\n" + call));
}

// A text of tokens drawn from the masks, so that every way through the grammar may come up.
std::string drawn(const Bound& bound, std::mt19937& random, bool& ended) {
  const auto place = start(bound.grammar, bound.vocabulary);
  std::vector<std::uint32_t> mask(token_mask_words(bound.vocabulary->size()));
  std::string text;
  ended = false;
  for (int i = 0; i < 400; ++i) {
    place->fill(mask);
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < bound.vocabulary->size(); ++token)
      if (mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) allowed.push_back(token);
    EXPECT_FALSE(allowed.empty()) << text;
    if (allowed.empty()) break;
    const TokenId token = allowed[random() % allowed.size()];
    if (bound.vocabulary->is_end(token)) {
      ended = true;
      break;
    }
    place->accept(token);
    text += bound.tokenizer.bytes(token);
  }
  return text;
}

TEST(CallGrammar, WhatIsDrawnFromItReadsAsCallsWhoseArgumentsFit) {
  std::mt19937 random(7);
  for (const char* name : {"/tests/data/tokenizers/qwen3", "/models/demo"}) {
    const Tokenizer tokenizer = load(name);
    for (const Case& each : written) {
      const Bound bound(each.form, tokenizer);
      int whole = 0;
      for (int i = 0; i < 12; ++i) {
        bool ended = false;
        const std::string text = drawn(bound, random, ended);
        CallReader reader(each.form, bound.offer.tools, CallBinding::bound);
        std::vector<AnswerPiece> pieces;
        reader.push(text, pieces);
        if (!ended) continue;
        reader.finish(pieces);
        std::erase_if(pieces, [](const AnswerPiece& piece) {
          return piece.part == AnswerPart::answer && piece.text.empty();  // dropped marks
        });
        ++whole;
        ASSERT_FALSE(pieces.empty()) << text;
        for (std::size_t p = 0; p < pieces.size(); p += 2) {
          ASSERT_EQ(pieces[p].part, AnswerPart::call) << text;
          ASSERT_EQ(pieces[p + 1].part, AnswerPart::arguments) << text;
          const std::size_t which = pieces[p].text == "look" ? 0 : 1;
          const auto arguments = compile_arguments(bound.offer.functions[which]).value();
          EXPECT_TRUE(check_text(arguments, bound.vocabulary, tokenizer, pieces[p + 1].text).taken)
              << text << "\n"
              << pieces[p + 1].text;
        }
      }
      EXPECT_GT(whole, 0) << each.call;
    }
  }
}

// A string must not hold what would end its call for whoever reads it.
TEST(CallGrammar, NoTextInsideOfACallEndsIt) {
  const Tokenizer tokenizer = load("/models/demo");
  const auto with = [](std::string_view call, std::string_view text) {
    std::string made(call);
    made.replace(made.find("pond"), 4, text);
    return made;
  };
  const JsonDocument open = JsonDocument::parse(R"({"type":"object","properties":{"where":{"type":"string"},
    "way":{}},"required":["where"]})")
                                .value();
  for (const auto& [form, end] : {std::pair{CallForm::json_in_tags, "</tool_call>"},
                                  {CallForm::xml_in_tags, "</parameter>"},
                                  {CallForm::xml_in_tags, "</tool_call>"},
                                  {CallForm::arguments_in_tags, "</arg_value>"},
                                  {CallForm::deepseek, "<｜tool▁call▁end｜>"},
                                  {CallForm::kimi, "<|tool_call_end|>"}}) {
    Bound bound(form, tokenizer);
    bound.offer.functions[0].schema = open.root();
    bound.grammar =
        compile_calls(bound.offer.functions, {.form = form}, *bound.offer.tools, *bound.vocabulary).value();
    const auto* at = std::find_if(std::begin(written), std::end(written),
                                  [wanted = form](const Case& c) { return c.form == wanted; });
    std::string call(at->call);
    if (form == CallForm::xml_in_tags) {
      call = "<tool_call>\n<function=look>\n<parameter=where>\npond\n</parameter>\n</function>\n</tool_call>";
    }
    EXPECT_TRUE(bound.takes(with(call, "a < b </p> <tool_call"))) << call;
    EXPECT_FALSE(bound.takes(with(call, end))) << call;
    EXPECT_FALSE(bound.takes(with(call, std::string("x") + end + "y"))) << call;
  }
}

TEST(CallGrammar, ACallAloneBeginsBehindItsMarkAndEndsWithTheOther) {
  const Bound bound(CallForm::json_in_tags, load("/tests/data/tokenizers/qwen3"), CallRules::Text::call);
  EXPECT_TRUE(bound.takes("\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(bound.takes("<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>"));
}

TEST(CallGrammar, WhatCannotBeHeldToIsNamedOrNotPromised) {
  const Tokenizer tokenizer = load("/models/demo");
  Bound bound(CallForm::xml_in_tags, tokenizer);
  for (const auto& [schema, culprit] :
       {std::pair{R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})",
                  "uniqueItems"},
        {R"x({"type":"object","properties":{"a":{"type":"string","pattern":"(?<=x)"}}})x", "pattern"},
        {R"({"type":"object","minProperties":1})", "minProperties"},
        {R"({"type":"array"})", "no object"},
        {R"({"enum":[{"a":1}]})", "enum"},
        {R"({"type":"object","properties":{"a>b":{}},"required":["a>b"]})", "a>b"}}) {
    const JsonDocument document = JsonDocument::parse(schema).value();
    const std::string tool =
        std::string(R"([{"type":"function","function":{"name":"stop","parameters":)") + schema + "}}]";
    const OfferedTools tools = OfferedTools::of(JsonDocument::parse(tool).value().root());
    std::vector<BoundFunction> one{{.name = "stop", .schema = document.root(), .where = "tools[0].x"}};
    const auto compile = [&] {
      return compile_calls(one, {.form = CallForm::xml_in_tags}, tools, *bound.vocabulary);
    };
    const auto refused = compile();
    ASSERT_FALSE(refused.ok()) << schema;
    EXPECT_TRUE(refused.status().message().starts_with("tools[0].x: ")) << refused.status().message();
    EXPECT_NE(refused.status().message().find(culprit), std::string::npos) << refused.status().message();
    one[0].strict = false;
    EXPECT_TRUE(compile().ok()) << schema;
  }
}

}  // namespace
}  // namespace nibble
