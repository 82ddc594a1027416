#include "text/harmony.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <fstream>

#include "base/utf8.h"
#include "text/harmony_parser.h"

namespace nibble {
namespace {

// A vocabulary of 417 with harmony's control tokens.
const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/parity/example").value();
  return loaded;
}
HarmonyTokens tokens() { return HarmonyTokens::find(tokenizer()).value(); }

// One message as a line: "assistant to=functions.f |commentary| <|constrain|>json: {}".
std::string line_of(const HarmonyHeader& header, const std::string& content) {
  std::string line(role_name(header.role));
  if (!header.name.empty()) line += "(" + header.name + ")";
  if (!header.recipient.empty()) line += " to=" + header.recipient;
  if (!header.channel.empty()) line += " |" + header.channel + "|";
  if (!header.content_type.empty()) line += " " + header.content_type;
  return line + ": " + content + "\n";
}

std::string lines_of(const std::vector<HarmonyEvent>& events) {
  std::string lines;
  HarmonyHeader header;
  std::string content;
  for (const HarmonyEvent& event : events) {
    switch (event.kind) {
      case HarmonyEvent::Kind::begin:
        header = event.header;
        content.clear();
        break;
      case HarmonyEvent::Kind::content: content += event.text; break;
      case HarmonyEvent::Kind::end: lines += line_of(header, content); break;
    }
  }
  return lines;
}

std::string read(std::string_view stream, std::optional<Role> role = Role::assistant) {
  HarmonyParser parser(tokenizer(), tokens(), role);
  std::vector<HarmonyEvent> events;
  for (const TokenId id : tokenizer().encode_trusted(stream)) parser.push(id, events);
  parser.finish(events);
  return lines_of(events);
}

// openai-harmony shows a control token that stands in content; nobody here is shown one.
std::string without_markers(std::string text) {
  for (const std::string_view name : {"start", "end", "message", "channel", "constrain", "return", "call"}) {
    const std::string marker = "<|" + std::string(name) + "|>";
    for (std::size_t at = text.find(marker); at != text.npos; at = text.find(marker, at))
      text.erase(at, marker.size());
  }
  return text;
}

std::string text_of(const JsonValue& object, std::string_view name) {
  const auto member = object.find(name);
  return member && member->is_string() ? std::string(member->as_string()) : std::string();
}

HarmonyMessage message_of(const JsonValue& given) {
  const auto constrained = given.find("constrained");
  return {.role = parse_role(text_of(given, "role")).value(),
          .name = text_of(given, "name"),
          .recipient = text_of(given, "recipient"),
          .channel = text_of(given, "channel"),
          .content_type = text_of(given, "content_type"),
          .constrained = constrained && constrained->as_bool(),
          .content = text_of(given, "content")};
}

TEST(Harmony, RendersAndReadsEveryGoldenAsOpenaiHarmonyDid) {
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/data/harmony.jsonl");
  std::string line;
  int rendered = 0, described = 0, streams = 0;
  while (std::getline(file, line)) {
    const auto document = JsonDocument::parse(line).value();
    const JsonValue golden = document.root();
    if (const auto messages = golden.find("render")) {
      std::vector<HarmonyMessage> conversation;
      conversation.reserve(messages->size());
      for (const JsonValue each : messages->elements()) conversation.push_back(message_of(each));
      const RenderedPrompt prompt = render_harmony(
          conversation, {.add_generation_prompt = golden.find("add_generation_prompt")->as_bool(),
                         .drop_analysis = golden.find("drop_analysis")->as_bool()});
      EXPECT_EQ(prompt.text, text_of(golden, "text"));
      ++rendered;
    } else if (const auto tools = golden.find("tools")) {
      EXPECT_EQ(harmony_developer_text(text_of(golden, "instructions"), *tools).value(),
                text_of(golden, "text"));
      ++described;
    } else {
      std::string wanted;
      const JsonValue expected = *golden.find("messages");
      for (const JsonValue each : expected.elements()) {
        wanted += line_of({.role = parse_role(text_of(each, "role")).value(),
                           .name = text_of(each, "name"),
                           .recipient = text_of(each, "recipient"),
                           .channel = text_of(each, "channel"),
                           .content_type = text_of(each, "content_type")},
                          without_markers(text_of(each, "content")));
      }
      // A header that was cut off where its role is not from the prompt: openai-harmony drops it, we show it.
      const std::string got = read(text_of(golden, "stream"));
      EXPECT_TRUE(got == wanted || got.size() > wanted.size()) << text_of(golden, "stream") << "\n"
                                                               << got << wanted;
      streams += got == wanted;
    }
  }
  EXPECT_GE(rendered, 40);
  EXPECT_GE(described, 60);
  EXPECT_GE(streams, 70);
}

TEST(Harmony, AConversationWithToolsAndThoughts) {
  const auto tools =
      JsonDocument::parse(
          R"([{"type": "function", "function": {"name": "now", "description": "Tells the time.",
      "parameters": {"type": "object", "properties": {"zone": {"type": "string", "enum": ["utc", "local"], "default": "utc"}}}}}])")
          .value();
  ChatRequest request;
  request.messages = {{.role = Role::system, .content = "Be brief."},
                      {.role = Role::user, .content = "Hi"},
                      {.role = Role::assistant, .content = "Hello.", .reasoning = "A greeting."},
                      {.role = Role::user, .content = "What time is it?"},
                      {.role = Role::assistant,
                       .reasoning = "Ask the clock.",
                       .tool_calls = {{.id = "c1", .name = "now", .arguments = "{\"zone\":\"utc\"}"}}},
                      {.role = Role::tool, .content = "12:00", .tool_call_id = "c1"}};
  request.tools = tools.root();
  request.reasoning_effort = "low";
  const auto messages = harmony_conversation(request, {.current_date = "2025-08-05"});
  ASSERT_TRUE(messages.ok()) << messages.status().message();
  EXPECT_EQ(
      render_harmony(*messages).text,
      "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
      "Knowledge cutoff: 2024-06\nCurrent date: 2025-08-05\n\nReasoning: low\n\n"
      "# Valid channels: analysis, commentary, final. Channel must be included for every message.\n"
      "Calls to these tools must go to the commentary channel: 'functions'.<|end|>"
      "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## functions\n\nnamespace "
      "functions {\n\n"
      "// Tells the time.\ntype now = (_: {\nzone?: \"utc\" | \"local\", // default: utc\n}) => any;\n\n"
      "} // namespace functions<|end|>"
      "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|end|>"
      "<|start|>user<|message|>What time is it?<|end|>"
      "<|start|>assistant<|channel|>analysis<|message|>Ask the clock.<|end|>"
      "<|start|>assistant to=functions.now<|channel|>commentary "
      "<|constrain|>json<|message|>{\"zone\":\"utc\"}<|call|>"
      "<|start|>functions.now to=assistant<|channel|>commentary<|message|>12:00<|end|><|start|>assistant");
}

TEST(Harmony, WhatCannotBeRenderedIsNamed) {
  ChatRequest request;
  request.messages = {{.role = Role::tool, .content = "x", .tool_call_id = "c9"}};
  EXPECT_EQ(harmony_conversation(request, {}).status().message(),
            "messages[0]: no call has the tool_call_id \"c9\"");
  request.messages = {{.role = Role::user, .content = "x"}};
  request.reasoning_effort = "max";
  EXPECT_EQ(harmony_conversation(request, {}).status().message(),
            "reasoning_effort \"max\" is unknown; low, medium and high are");
  request.reasoning_effort.clear();
  const auto tools = JsonDocument::parse("[{\"type\": \"function\"}]").value();
  request.tools = tools.root();
  EXPECT_EQ(harmony_conversation(request, {}).status().message(),
            "tools: each tool needs a \"function\" with a \"name\"");
}

// Pieces from which a client would build a control token.
const std::vector<std::string> kHostile = {
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|", "|>",
    "start",     "end|>",   "<|mess",      "age|>",       "",         "x",          " ",  "\n"};

std::string hostile() {
  std::string text;
  for (const auto& piece : *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kHostile)))
    text += piece;
  return text;
}

RC_GTEST_PROP(Harmony, TheMarkersOfAPromptAreTheRenderersAlone, ()) {
  std::vector<HarmonyMessage> messages;
  std::size_t markers = 0;
  const auto count = *rc::gen::inRange(0, 5);
  for (int i = 0; i < count; ++i) {
    HarmonyMessage message{.role = Role::assistant,
                           .name = hostile(),
                           .recipient = hostile(),
                           .channel = hostile(),
                           .content_type = hostile(),
                           .constrained = *rc::gen::arbitrary<bool>(),
                           .content = hostile()};
    markers += 3 + (message.channel.empty() ? 0 : 1) + (message.constrained ? 1 : 0);
    messages.push_back(std::move(message));
  }
  const RenderedPrompt prompt =
      render_harmony(messages, {.add_generation_prompt = false, .drop_analysis = false});
  std::size_t controls = 0;
  for (const TokenId id : tokenizer().encode(prompt.text, prompt.trusted))
    controls += tokenizer().is_control(id);
  RC_ASSERT(controls == markers);
}

// --- Reading

TEST(HarmonyParser, TellsThoughtsCallsAndAnswersApart) {
  EXPECT_EQ(
      read("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
           "<|constrain|>json<|message|>{}<|call|>"),
      "assistant |analysis|: Hm.\nassistant to=functions.f |commentary| <|constrain|>json: {}\n");
  EXPECT_EQ(read("<|start|>assistant<|channel|>final<|message|>Hi<|return|>", std::nullopt),
            "assistant |final|: Hi\n");
  EXPECT_EQ(read("<|start|>functions.f to=assistant<|channel|>commentary<|message|>1<|end|>", std::nullopt),
            "tool(functions.f) to=assistant |commentary|: 1\n");
  EXPECT_EQ(harmony_part({.channel = "final"}), HarmonyPart::answer);
  EXPECT_EQ(harmony_part({.channel = "analysis"}), HarmonyPart::reasoning);
  EXPECT_EQ(harmony_part({.channel = "commentary"}), HarmonyPart::answer);
  EXPECT_EQ(harmony_part({.recipient = "functions.f", .channel = "commentary"}), HarmonyPart::tool_call);
  EXPECT_EQ(harmony_part({.recipient = "python", .channel = "analysis"}), HarmonyPart::tool_call);
  EXPECT_EQ(harmony_part({.recipient = "word", .channel = "final"}), HarmonyPart::answer);
}

TEST(HarmonyParser, WhatIsNoHarmonySurfacesAsContent) {
  EXPECT_EQ(read("just text"), "assistant: just text\n");
  EXPECT_EQ(read("<|message|>no channel<|end|>"), "assistant: no channel\n");
  EXPECT_EQ(read("<|channel|>final some words<|end|>"), "assistant |final|: some words\n");
  EXPECT_EQ(read("<|channel|>final many words here<|message|>and text<|end|>"),
            "assistant to=words |final| here: manyand text\n");
  EXPECT_EQ(read("<|channel|><|message|>nameless<|end|>"), "assistant: nameless\n");
  EXPECT_EQ(read("<|start|>stranger<|message|>hello<|end|>", std::nullopt), "assistant: strangerhello\n");
  EXPECT_EQ(read("text first<|end|>", std::nullopt), "assistant: text first\n");
  EXPECT_EQ(read("<|channel|>final<|message|>a<|end|>stray<|start|>assistant<|channel|>final<|message|>b"),
            "assistant |final|: a\nassistant: strayassistantfinalb\n");
  EXPECT_EQ(read("<|end|><|end|><|return|>"), "");
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read("<|start|>assistant<|channel|>final<|message|>cut o", std::nullopt),
            "assistant |final|: cut o\n");
}

TEST(HarmonyParser, AnEndlessHeaderIsNotHeldBack) {
  HarmonyParser parser(tokenizer(), tokens());
  std::vector<HarmonyEvent> events;
  const auto word = tokenizer().encode("word ");
  for (int i = 0; i < 2000; ++i) {
    for (const TokenId id : word) parser.push(id, events);
  }
  EXPECT_GT(events.size(), 100u);
}

// Any ids at all, invalid ones too: messages begin and end in turn, and the text of a message is valid UTF-8.
RC_GTEST_PROP(HarmonyParser, NothingAModelSaysFails, ()) {
  const HarmonyTokens t = tokens();
  const auto id =
      rc::gen::oneOf(rc::gen::element(t.start, t.channel, t.constrain, t.message, t.end, t.return_, t.call),
                     rc::gen::inRange<TokenId>(-2, 420));
  const auto ids = *rc::gen::container<std::vector<TokenId>>(id);
  HarmonyParser parser(tokenizer(), t,
                       *rc::gen::element(std::optional<Role>(), std::optional(Role::assistant)));
  std::vector<HarmonyEvent> events;
  for (const TokenId each : ids) parser.push(each, events);
  parser.finish(events);
  bool open = false;
  for (const HarmonyEvent& event : events) {
    switch (event.kind) {
      case HarmonyEvent::Kind::begin:
        RC_ASSERT(!open);
        open = true;
        break;
      case HarmonyEvent::Kind::content:
        RC_ASSERT(open && !event.text.empty() && is_valid_utf8(event.text));
        break;
      case HarmonyEvent::Kind::end:
        RC_ASSERT(open);
        open = false;
        break;
    }
  }
  RC_ASSERT(!open);
}

}  // namespace
}  // namespace nibble
