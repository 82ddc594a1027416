// Answers whose calls are bound: where text is free and where it is not, in each of the ways a request can
// ask.
#include "server/api/call_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "server/api/answer_constraint.h"

namespace nibble::api {
namespace {

constexpr std::string_view offered = R"([{"type":"function","function":{"name":"look","parameters":{
  "type":"object","properties":{"way":{"enum":["in","out"]}},"required":["way"],"additionalProperties":false}}}])";
constexpr std::string_view spelled_call =
    "\n{\"name\": \"look\", \"arguments\": {\"way\": \"in\"}}\n</tool_call>";

class BoundCallsTest : public ::testing::Test {
 protected:
  void load(std::string_view folder) {
    tokenizer_ = Tokenizer::load(std::string(NIBBLE_SOURCE_DIR) + std::string(folder)).value();
  }
  TokenId control(std::string_view spelling) const { return *tokenizer_->control_id(spelling); }

  void bind(CallForm form, BoundCalls::Place place, std::vector<TokenId> ends) {
    const JsonValue function = *(*document_.root().elements().begin()).find("function");
    const std::vector<BoundFunction> functions{
        {.name = "look", .schema = function.find("parameters"), .where = "tools[0]"}};
    ends_ = std::move(ends);
    calls_ = {.place = place, .form = form};
    calls_.vocabulary =
        GrammarVocabulary::make(*tokenizer_, ends_, tokenizer_->vocabulary_size(), marks_of(form));
    if (form == CallForm::harmony) {
      calls_.arguments = {{.function = "look", .grammar = compile_arguments(functions[0]).value()}};
    } else {
      const bool inside = place == BoundCalls::Place::anywhere;
      calls_.grammar =
          compile_calls(functions,
                        {.form = form, .text = inside ? CallRules::Text::call : CallRules::Text::answer},
                        OfferedTools::of(document_.root()), *calls_.vocabulary)
              .value();
    }
  }

  void start(std::string_view prompt, const char* choice = nullptr) {
    AnswerRules rules{.format = nullptr, .calls = &calls_};
    if (choice != nullptr) {
      const std::vector<std::string> choices{choice};
      rules.format = nibble::start(compile_choice(choices).value(), calls_.vocabulary);
    }
    const AnswerStart answer = answer_start(*tokenizer_, tokenizer_->encode_trusted(prompt));
    constraint_ = constrain_answer(*tokenizer_, answer, ends_, std::move(rules)).value();
  }

  std::vector<TokenId> allowed() const {
    std::vector<std::uint32_t> mask(token_mask_words(tokenizer_->vocabulary_size()), ~0u);
    if (constraint_->binds()) constraint_->fill(mask);
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < tokenizer_->vocabulary_size(); ++id)
      if (mask[static_cast<std::size_t>(id) / 32] >> id % 32 & 1) ids.push_back(id);
    return ids;
  }
  bool allows(TokenId token) const {
    const std::vector<TokenId> ids = allowed();
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  }
  void say(const std::vector<TokenId>& tokens) {
    for (const TokenId token : tokens) {
      ASSERT_TRUE(allows(token)) << tokenizer_->bytes(token);
      constraint_->accept(token);
    }
  }
  void say(std::string_view spelled) { say(tokenizer_->encode_trusted(spelled)); }

  const JsonDocument document_ = JsonDocument::parse(std::string(offered)).value();
  std::optional<Tokenizer> tokenizer_;
  std::vector<TokenId> ends_;
  BoundCalls calls_;
  std::shared_ptr<TokenConstraint> constraint_;
};

TEST_F(BoundCallsTest, TextIsFreeUntilACallAndBehindIt) {
  load("/tests/data/tokenizers/qwen3");
  bind(CallForm::json_in_tags, BoundCalls::Place::anywhere, {control("<|im_end|>")});
  start("");
  say("Anything { at all.");
  EXPECT_FALSE(constraint_->binds());
  for (int call = 0; call < 2; ++call) {
    say("<tool_call>");
    EXPECT_TRUE(constraint_->binds());
    for (const char* wrong : {"<|im_end|>", "</tool_call>", "<tool_call>"})
      EXPECT_FALSE(allows(control(wrong))) << wrong;
    say(spelled_call);
    EXPECT_FALSE(constraint_->binds());
  }
  say("<|im_end|>");
}

TEST_F(BoundCallsTest, AMarkThatIsSpelledBeginsACallExactlyAtItsEnd) {
  for (const char* folder : {"/tests/data/tokenizers/qwen3", "/models/demo"}) {
    load(folder);
    bind(CallForm::json_in_tags, BoundCalls::Place::anywhere, {0});
    start("");
    // Each byte by itself, so that every part of the mark is the text's end once.
    for (const char byte : std::string_view("<tool<tool_call")) say(tokenizer_->encode(std::string(1, byte)));
    for (const TokenId token : allowed()) {
      const std::string_view text = tokenizer_->is_hidden(token) ? "" : tokenizer_->bytes(token);
      EXPECT_FALSE(text.starts_with(">") && text.size() > 1) << text;
    }
    say(tokenizer_->encode(">"));
    EXPECT_TRUE(constraint_->binds());
    EXPECT_FALSE(allows(tokenizer_->encode("x").front()));
    EXPECT_TRUE(allows(tokenizer_->encode("{").front()));
  }
}

TEST_F(BoundCallsTest, FreeReasoningMayEndTheAnswerWhereCallsAreOnlyBound) {
  load("/tests/data/tokenizers/qwen3");
  bind(CallForm::json_in_tags, BoundCalls::Place::anywhere, {control("<|im_end|>")});
  start("<|im_start|>assistant\n<think>");
  EXPECT_FALSE(constraint_->binds());
  say("Hm <tool_call> is only thought of");
  EXPECT_FALSE(constraint_->binds());
  say("</think>\n\n<tool_call>");
  EXPECT_TRUE(constraint_->binds());
}

TEST_F(BoundCallsTest, AnAnswerOfCallsAloneHasNothingBeforeThem) {
  load("/tests/data/tokenizers/qwen3");
  bind(CallForm::json_in_tags, BoundCalls::Place::alone, {control("<|im_end|>")});
  start("<|im_start|>assistant\n<think>");
  EXPECT_FALSE(allows(control("<|im_end|>")));
  say("Hm.</think>\n\n");
  EXPECT_FALSE(allows(tokenizer_->encode("I").front()));
  say("<tool_call>" + std::string(spelled_call));
  EXPECT_TRUE(allows(control("<|im_end|>")));
  EXPECT_TRUE(allows(control("<tool_call>")));
  EXPECT_FALSE(allows(tokenizer_->encode("I").front()));
}

TEST_F(BoundCallsTest, AFormatOrCallsAreTheAnswerAndNoMixtureOfBoth) {
  load("/tests/data/tokenizers/qwen3");
  bind(CallForm::json_in_tags, BoundCalls::Place::instead, {control("<|im_end|>")});
  start("", "yes");
  EXPECT_TRUE(allows(control("<tool_call>")));
  say("yes");
  EXPECT_EQ(allowed(), std::vector<TokenId>{control("<|im_end|>")});
  start("", "yes");
  say("<tool_call>" + std::string(spelled_call));
  EXPECT_FALSE(allows(tokenizer_->encode("y").front()));
  EXPECT_TRUE(allows(control("<|im_end|>")));
}

constexpr std::string_view chat = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
constexpr std::string_view call_header =
    "<|channel|>commentary to=functions.look <|constrain|>json<|message|>";

TEST_F(BoundCallsTest, AForcedHarmonyCallIsAMessageToAFunction) {
  load("/tests/data/parity/example");
  bind(CallForm::harmony, BoundCalls::Place::alone, {control("<|return|>"), control("<|call|>")});
  start(chat);
  say("<|channel|>analysis<|message|>Anything.<|end|><|start|>assistant");
  for (const TokenId token : tokenizer_->encode_trusted(call_header)) {
    EXPECT_EQ(allowed(), std::vector<TokenId>{token});
    constraint_->accept(token);
  }
  say("{\"way\": \"out\"}");
  EXPECT_TRUE(allows(control("<|call|>")));
  EXPECT_FALSE(allows(control("<|return|>")));
  start(chat);
  say(call_header);
}

TEST_F(BoundCallsTest, WhereReasoningEndsTheAnswerNoneComesBeforeAForcedCall) {
  load("/tests/data/parity/example");
  bind(CallForm::harmony, BoundCalls::Place::alone, {control("<|call|>"), control("<|end|>")});
  start(chat);
  say("<|channel|>");
  EXPECT_EQ(allowed(), std::vector<TokenId>{tokenizer_->encode("commentary to=functions.look ").front()});
}

TEST_F(BoundCallsTest, AHarmonyAnswerInAFormatMayBeACallInstead) {
  load("/tests/data/parity/example");
  bind(CallForm::harmony, BoundCalls::Place::instead, {control("<|return|>"), control("<|call|>")});
  start(chat, "yes");
  say(call_header);
  EXPECT_FALSE(allows(tokenizer_->encode("y").front()));
  start(chat, "yes");
  say("<|channel|>final<|message|>yes");
  EXPECT_TRUE(allows(control("<|return|>")));
}

TEST_F(BoundCallsTest, AFreeHarmonyAnswerIsBoundInItsCallsAlone) {
  load("/tests/data/parity/example");
  bind(CallForm::harmony, BoundCalls::Place::anywhere, {control("<|return|>"), control("<|call|>")});
  start(chat);
  say("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant");
  EXPECT_FALSE(constraint_->binds());
  say(" to=functions.look<|channel|>commentary<|message|>");
  EXPECT_TRUE(constraint_->binds());
  EXPECT_FALSE(allows(control("<|call|>")));
  say("{\"way\": \"in\"}");
  EXPECT_TRUE(allows(control("<|call|>")));
  EXPECT_FALSE(allows(control("<|return|>")));
  start(chat);
  say("<|channel|>commentary to=functions.other<|message|>");
  EXPECT_FALSE(constraint_->binds());
}

struct Case {
  std::string_view folder;
  CallForm form;
  BoundCalls::Place place;
  std::string_view prompt;
  std::string answer;

  bool harmony() const { return form == CallForm::harmony; }
};

std::vector<Case> cases_of_every_kind() {
  using enum BoundCalls::Place;
  constexpr std::string_view qwen = "/tests/data/tokenizers/qwen3", gpt_oss = "/tests/data/parity/example";
  const std::string text = "<tool_call>" + std::string(spelled_call);
  const std::string message = std::string(call_header) + "{\"way\": \"in\"}<|call|>";
  return {{qwen, CallForm::json_in_tags, anywhere, "", "Hm <tool" + text + " so"},
          {qwen, CallForm::json_in_tags, alone, "<think>", "Hm</think>\n" + text},
          {qwen, CallForm::json_in_tags, instead, "", text},
          {gpt_oss, CallForm::harmony, anywhere, chat, message},
          {gpt_oss, CallForm::harmony, alone, chat, message}};
}

TEST_F(BoundCallsTest, RolledBackEveryOneIsWhereItWas) {
  for (const Case& each : cases_of_every_kind()) {
    load(each.folder);
    bind(each.form, each.place, {control(each.harmony() ? "<|call|>" : "<|im_end|>")});
    start(each.prompt, each.place == BoundCalls::Place::instead ? "yes" : nullptr);
    std::vector<std::vector<TokenId>> before;
    for (const TokenId token : tokenizer_->encode_trusted(each.answer)) {
      before.push_back(allowed());
      constraint_->accept(token);
    }
    for (; !before.empty(); before.pop_back()) {
      constraint_->roll_back(1);
      EXPECT_EQ(allowed(), before.back()) << each.answer;
    }
  }
}

TEST_F(BoundCallsTest, WhatEveryOneDraftsMayComeAndLeavesNoTrace) {
  for (const Case& each : cases_of_every_kind()) {
    load(each.folder);
    bind(each.form, each.place, {control(each.harmony() ? "<|call|>" : "<|im_end|>")});
    start(each.prompt, each.place == BoundCalls::Place::instead ? "yes" : nullptr);
    int drafts = 0, foreseen = 0;
    for (const TokenId token : tokenizer_->encode_trusted(each.answer)) {
      const std::vector<TokenId> before = allowed();
      std::vector<TokenId> room(6);
      room.resize(static_cast<std::size_t>(constraint_->draft(room)));
      drafts += static_cast<int>(room.size());
      foreseen += constraint_->may_draft() ? 1 : 0;
      EXPECT_TRUE(room.empty() || constraint_->may_draft()) << each.answer;
      say(room);
      constraint_->roll_back(static_cast<int>(room.size()));
      EXPECT_EQ(allowed(), before) << each.answer;
      constraint_->accept(token);
    }
    EXPECT_GT(drafts, 10) << each.answer;
    const int tokens = static_cast<int>(tokenizer_->encode_trusted(each.answer).size());
    if (each.harmony() && each.place == BoundCalls::Place::anywhere) {
      EXPECT_LT(foreseen, tokens) << "its header is free";
    }
  }
}

}  // namespace
}  // namespace nibble::api
