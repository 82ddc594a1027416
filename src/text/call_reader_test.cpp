#include "text/call_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/answer_reader.h"

namespace nibble {
namespace {

constexpr std::string_view offered = R"([
  {"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{
    "where":{"type":"string"},"count":{"type":"integer"},"deep":{"type":"boolean"},
    "note":{"anyOf":[{"type":"string"},{"type":"null"}]},"list":{"type":"array"}}}}},
  {"type":"function","function":{"name":"stop"}}])";

std::shared_ptr<const OfferedTools> tools() {
  const JsonDocument document = JsonDocument::parse(std::string(offered)).value();
  return std::make_shared<const OfferedTools>(OfferedTools::of(document.root()));
}

// Events as one text: answer as it is, a call as {name#id|arguments}.
std::string told(const std::vector<AnswerPiece>& pieces) {
  std::string text;
  bool open = false;
  for (const AnswerPiece& piece : pieces) {
    if (open && piece.part != AnswerPart::arguments) text += "}";
    if (piece.part != AnswerPart::arguments) open = piece.part == AnswerPart::call;
    if (piece.part == AnswerPart::call) text += "{" + piece.text + "#" + piece.id + "|";
    if (piece.part != AnswerPart::call) text += piece.text;
  }
  return open ? text + "}" : text;
}

std::string read(CallForm form, std::string_view text, std::size_t step = 1000000) {
  CallReader reader(form, tools());
  std::vector<AnswerPiece> pieces;
  for (std::size_t at = 0; at < text.size(); at += step) reader.push(text.substr(at, step), pieces);
  reader.finish(pieces);
  return told(pieces);
}

struct Case {
  CallForm form;
  std::string_view answer, events;
};

// Calls as the authors' templates write them.
const Case calls[] = {
    {CallForm::json_in_tags,
     "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"where\": \"a <b>\", \"count\": "
     "1.50}}\n</tool_call>",
     R"({look#|{"where":"a <b>","count":1.5}})"},
    {CallForm::json_in_tags,
     "I look.\n\n<tool_call>\n{\"name\":\"look\",\"arguments\":\"{}\"}\n</tool_call>\n<tool_call>\n"
     "{\"name\":\"stop\"}\n</tool_call>\n",
     "I look.{look#|{}}{stop#|{}}"},
    {CallForm::json_in_tags, "<tool_call>{\"name\":\"stop\",\"arguments\":{}}", "{stop#|{}}"},
    {CallForm::xml_in_tags,
     "<tool_call>\n<function=look>\n<parameter=where>\na\n</parameter>\n<parameter=count>\n1\n</parameter>\n"
     "<parameter=where>\nb\n</parameter>\n</function>\n</tool_call>",
     R"({look#|{"where":"b","count":1}})"},
    {CallForm::xml_in_tags,
     "<tool_call>\n<function=look>\n<parameter=where>\n "
     "12\n\n</parameter>\n<parameter=count>\n12\n</parameter>\n"
     "<parameter=deep>\ntrue\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=list>\n[1, "
     "\"x\"]\n"
     "</parameter>\n<parameter=other>\n1\n</parameter>\n</function>\n</tool_call>",
     R"({look#|{"where":" 12\n","count":12,"deep":true,"note":null,"list":[1,"x"],"other":"1"}})"},
    {CallForm::xml_in_tags, "<tool_call>\n<function=stop>\n</function>\n</tool_call>", "{stop#|{}}"},
    {CallForm::xml_in_tags,
     "<tool_call>\n<function=look>\n<parameter=count>\nmany\n</parameter>\n</tool_call>",
     R"({look#|{"count":"many"}})"},
    {CallForm::arguments_in_tags,
     "So:\n<tool_call>look\n<arg_key>where</arg_key>\n<arg_value>7</arg_value>\n<arg_key>count</arg_key>\n"
     "<arg_value>7</arg_value>\n</tool_call>",
     R"(So:{look#|{"where":"7","count":7}})"},
    {CallForm::arguments_in_tags,
     "<tool_call>stop</tool_call><tool_call>look<arg_key>where</arg_key><arg_value>a</arg_value></tool_call>",
     R"({stop#|{}}{look#|{"where":"a"}})"},
    {CallForm::deepseek,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"where\": \"a\"}\n"
     "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n"
     "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     R"({look#|{"where":"a"}}{stop#|{}})"},
    {CallForm::deepseek,
     "Well<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"where\": "
     "\"```\"}<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>",
     R"(Well{look#|{"where":"```"}})"},
    {CallForm::kimi,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>"
     "{\"count\": 1}<|tool_call_end|><|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>",
     R"({look#functions.look:0|{"count":1}}{stop#functions.stop:1|{}})"},
};

TEST(CallReader, CallsComeOutAsEveryFormWritesThem) {
  for (const Case& one : calls) EXPECT_EQ(read(one.form, one.answer), one.events) << one.answer;
}

TEST(CallReader, EventsAreTheSameHoweverTheTextIsCut) {
  for (const Case& one : calls) {
    for (std::size_t step = 1; step <= one.answer.size(); ++step)
      ASSERT_EQ(read(one.form, one.answer, step), one.events) << step << " " << one.answer;
  }
}

TEST(CallReader, WhatIsNoCallIsTextAsItStood) {
  for (const std::string_view text :
       {"<tool_call>\n{\"name\": \"look\", \"arguments\": {\"where\"\n</tool_call>", "<tool_call>",
        "a <tool_", "<tool_call>[1]</tool_call>\n",
        "<tool_call>{\"name\":\"unknown\",\"arguments\":{}}</tool_call> so",
        "<tool_call>{\"name\":\"look\",\"arguments\":[]}</tool_call>", "</tool_call>", " \n", "",
        "<tool_call>{\"name\":1}</tool_call>", "<tool_call><function=look><parameter=</tool_call>",
        "<tool_call>look<arg_key>a</tool_call>"}) {
    for (const CallForm form : {CallForm::json_in_tags, CallForm::xml_in_tags, CallForm::arguments_in_tags}) {
      for (const std::size_t step : {1u, 3u, 1000u}) EXPECT_EQ(read(form, text, step), text);
    }
  }
}

// Without a call that counts, the pieces join to the text, whatever it is.
TEST(CallReader, NoTextIsLostOrChangedByLookingForCalls) {
  std::mt19937 random(5);
  const std::string_view parts[] = {"<tool_call>", "</tool_call>", "<tool",    "_call>", "\n",
                                    " ",           "{\"name\":",   "\"none\"", "}",      "<function=none>",
                                    "</function>", "<arg_key>",    "x"};
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (unsigned i = random() % 12; i > 0; --i) text += parts[random() % std::size(parts)];
    for (const CallForm form : {CallForm::json_in_tags, CallForm::xml_in_tags, CallForm::arguments_in_tags})
      ASSERT_EQ(read(form, text, 1 + random() % 9), text);
  }
}

TEST(CallReader, ABareObjectThatNamesAFunctionIsACallHoweverItIsCut) {
  const std::string_view cases[][2] = {
      {R"({"name": "look", "parameters": {"where": "a}{", "count": 1}})",
       R"({look#|{"where":"a}{","count":1}})"},
      {" \n<|python_tag|>{\"name\":\"stop\",\"parameters\":{}}\n", "{stop#|{}}"},
      {R"({"name":"stop","arguments":{}}; {"name": "look", "parameters": "{\"count\":2}"})",
       R"({stop#|{}}{look#|{"count":2}})"},
      {R"({"type":"function","name":"stop","parameters":{}})", "{stop#|{}}"},
      {R"(I stop.<|python_tag|>{"name":"stop"})", "I stop.{stop#|{}}"},
      {R"({"name":"other","parameters":{}} and)", R"({"name":"other","parameters":{}} and)"},
      {R"({"answer": {"name": "stop"}})", R"({"answer": {"name": "stop"}})"},
      {R"(Say {"name":"stop"})", R"(Say {"name":"stop"})"},
      {R"(<|python_tag|>stop.call(where="a"))", R"(<|python_tag|>stop.call(where="a"))"},
      {R"({"name": "look", "parameters": {"where": "a)", R"({"name": "look", "parameters": {"where": "a)"},
      {" \n ", " \n "},
  };
  for (const auto& [answer, events] : cases)
    for (const std::size_t step : {1, 2, 3, 5, 1000})
      EXPECT_EQ(read(CallForm::bare_json, answer, step), events) << step;
}

TEST(CallReader, ABoundCallThatIsCutInItsClosingMarkHasItsWholeArguments) {
  const std::string_view cut[] = {
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"where\": \"a}\"}<｜tool",
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
      "<|tool_call_argument_begin|>{\"where\": \"a}\"}<|tool_call"};
  for (const auto& [form, answer] : {std::pair(CallForm::deepseek, cut[0]), {CallForm::kimi, cut[1]}}) {
    CallReader reader(form, tools(), CallBinding::bound);
    std::vector<AnswerPiece> pieces;
    reader.push(answer, pieces);
    reader.finish(pieces);
    EXPECT_TRUE(told(pieces).ends_with(R"(|{"where":"a}"}})")) << told(pieces);
  }
}

TEST(CallReader, ATextThatBeginsNoCallIsToldAsItComes) {
  CallReader reader(CallForm::bare_json, tools());
  std::vector<AnswerPiece> pieces;
  reader.push(R"({"size": )", pieces);
  EXPECT_EQ(told(pieces), R"({"size": )");
}

TEST(CallReader, ATemplateSpellsItsForm) {
  EXPECT_EQ(call_form_of("{{ '<tool_call>\\n{\"name\": ' }}"), CallForm::json_in_tags);
  EXPECT_EQ(call_form_of("<tool_call>\n<function=' + name"), CallForm::xml_in_tags);
  EXPECT_EQ(call_form_of("<tool_call>{{ name }}<arg_key>"), CallForm::arguments_in_tags);
  EXPECT_EQ(call_form_of("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"), CallForm::deepseek);
  EXPECT_EQ(call_form_of("<|tool_call_argument_begin|>"), CallForm::kimi);
  EXPECT_EQ(call_form_of("<｜tool▁call▁begin｜>{{ name }}```json"), CallForm::deepseek_fenced);
  EXPECT_EQ(call_form_of("<|channel|>commentary to=functions.{{ name }}"), CallForm::harmony);
  EXPECT_EQ(call_form_of("{{ '{\"name\": \"' + name + '\", \"parameters\": ' }}"), CallForm::bare_json);
  EXPECT_EQ(call_form_of("{{ messages }}"), CallForm::none);
}

std::string read_harmony(std::string_view spelled, const std::vector<std::string>& stop = {}) {
  static const Tokenizer tokenizer = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/parity/example").value();
  AnswerStart start = answer_start(
      tokenizer, tokenizer.encode_trusted("<|start|>user<|message|>Hi<|end|><|start|>assistant"));
  start.calls = CallForm::harmony;
  start.tools = tools();
  AnswerReader reader(tokenizer, start, StopStrings::make(stop).value());
  std::vector<AnswerPiece> pieces;
  for (const TokenId token : tokenizer.encode_trusted(spelled)) reader.push(token, pieces);
  reader.finish(pieces);
  std::erase_if(pieces, [](const AnswerPiece& piece) { return piece.part == AnswerPart::reasoning; });
  return told(pieces);
}

TEST(CallReader, AHarmonyMessageToAnOfferedFunctionIsACall) {
  EXPECT_EQ(read_harmony("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
                         "to=functions.look <|constrain|>json<|message|>{\"where\": \"a\"}<|call|>"),
            R"({look#|{"where": "a"}})");
  EXPECT_EQ(read_harmony("<|channel|>commentary to=functions.stop<|message|>"), "{stop#|{}}");
  EXPECT_EQ(read_harmony(" to=functions.look<|channel|>commentary<|message|>{}<|call|>"), "{look#|{}}");
  EXPECT_EQ(read_harmony("<|channel|>commentary to=functions.other<|message|>{}<|call|>"), "{}");
  EXPECT_EQ(
      read_harmony("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
                   "to=functions.look<|message|>{\"where\":\"st"),
      R"(I look.{look#|{"where":"st})");
}

TEST(CallReader, StopStringsAreNotSoughtInArguments) {
  EXPECT_EQ(
      read_harmony("<|channel|>commentary to=functions.look<|message|>{\"where\":\"x\"}<|call|>", {"x"}),
      R"({look#|{"where":"x"}})");
}

// An answer's content, and what its tokens' shares of it join to.
struct Shared {
  std::string content, shares;
  std::vector<int> tokens;  // that have a share
};

Shared share(const Tokenizer& tokenizer, const std::vector<TokenId>& answer, const char* stop) {
  AnswerStart start{.calls = CallForm::json_in_tags, .tools = tools()};
  StopStrings stops = StopStrings::make({stop}).value();
  AnswerReader reader(tokenizer, start, std::move(stops), AnswerReader::Shares::kept);
  Shared shared;
  std::vector<AnswerPiece> pieces;
  std::vector<AnswerShare> shares;
  for (const TokenId token : answer) {
    if (!reader.stopped()) reader.push(token, pieces);
    reader.take_shares(shares);
    EXPECT_LE(reader.first_open(), static_cast<int>(answer.size()));
  }
  reader.finish(pieces);
  reader.take_shares(shares);
  for (const AnswerPiece& piece : pieces)
    if (piece.part == AnswerPart::answer) shared.content += piece.text;
  for (const AnswerShare& each : shares) {
    shared.shares += each.bytes;
    shared.tokens.push_back(each.token);
  }
  return shared;
}

TEST(CallReader, SharesOfTokensJoinToTheContentAroundCallsAndNoTokenOfACallHasOne) {
  const Tokenizer tokenizer = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/tokenizers/qwen3").value();
  const std::string call = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
  const std::vector<TokenId> before = tokenizer.encode("I look."), inside = tokenizer.encode_trusted(call);
  std::vector<TokenId> answer = before;
  answer.insert(answer.end(), inside.begin(), inside.end());
  const Shared one = share(tokenizer, answer, "@");
  EXPECT_EQ(one.content, "I look.");
  EXPECT_EQ(one.shares, one.content);
  EXPECT_EQ(one.tokens.size(), before.size());

  // Pieces of such answers in any order, as tokens or spelled, cut anywhere.
  std::mt19937 random(3);
  const std::string parts[] = {
      call, "Hm \xC3\xA4\xF0\x9F\x98\x80. ", "\n\n", "<tool_call>", "</tool_call>", "no call", " \n", "@"};
  for (int i = 0; i < 3000; ++i) {
    answer.clear();
    for (int part = 0; part < 6; ++part) {
      const std::string& text = parts[random() % std::size(parts)];
      const auto ids = random() % 3 == 0 ? tokenizer.encode(text) : tokenizer.encode_trusted(text);
      answer.insert(answer.end(), ids.begin(), ids.end());
    }
    answer.resize(answer.size() - random() % (answer.size() + 1) / 4);
    const Shared shared = share(tokenizer, answer, "@");
    ASSERT_EQ(shared.shares, shared.content) << tokenizer.decode(answer);
    EXPECT_TRUE(std::is_sorted(shared.tokens.begin(), shared.tokens.end()));
  }
}

TEST(CallReader, ABoundCallThatTheEndCutsIsTheBeginningOfACall) {
  const auto cut = [](CallForm form, std::string_view text) {
    CallReader reader(form, tools(), CallBinding::bound);
    std::vector<AnswerPiece> pieces;
    reader.push(text, pieces);
    reader.finish(pieces);
    return told(pieces);
  };
  EXPECT_EQ(cut(CallForm::json_in_tags, "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"where\": \"a b"),
            "{look#|{\"where\":\"a b}");
  EXPECT_EQ(cut(CallForm::json_in_tags, "<tool_call>\n{\"name\": \"lo"), "");
  EXPECT_EQ(
      cut(CallForm::xml_in_tags, "<tool_call>\n<function=look>\n<parameter=count>\n1\n</parameter>\n<param"),
      "{look#|{\"count\":1}");
  EXPECT_EQ(cut(CallForm::arguments_in_tags, "<tool_call>look\n<arg_key>count</arg_key>\n<arg_value>1"),
            "{look#|{}");
  EXPECT_EQ(
      cut(CallForm::kimi, "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"count\": 1"),
      "{look#functions.look:0|{\"count\":1}");
}

TEST(CallReader, WhatAGrammarSawToIsReadThoughNoParserTakesIt) {
  const std::string twice = R"({"where": "a", "where": "b"})";
  const std::string text = "<tool_call>\n{\"name\": \"look\", \"arguments\": " + twice + "}\n</tool_call>";
  EXPECT_EQ(read(CallForm::json_in_tags, text), text);
  CallReader reader(CallForm::json_in_tags, tools(), CallBinding::bound);
  std::vector<AnswerPiece> pieces;
  reader.push(text, pieces);
  EXPECT_EQ(told(pieces), "{look#|" + twice + "}");
}

TEST(CallReader, WhereAnAnswerIsInAFormatOrCallsItsTextHasNone) {
  const std::string call = "<tool_call>\n<function=stop>\n</function>\n</tool_call>";
  CallReader reader(CallForm::xml_in_tags, tools(), CallBinding::bound_first);
  std::vector<AnswerPiece> pieces;
  reader.push("{\"a\": \"" + call + "\"}", pieces);
  reader.finish(pieces);
  EXPECT_EQ(told(pieces), "{\"a\": \"" + call + "\"}");
  CallReader other(CallForm::xml_in_tags, tools(), CallBinding::bound_first);
  pieces.clear();
  other.push("\n" + call, pieces);
  other.finish(pieces);
  EXPECT_EQ(told(pieces), "{stop#|{}}");
}

}  // namespace
}  // namespace nibble
