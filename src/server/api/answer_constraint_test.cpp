// Harmony answers held to a format: what may come at each place, and that no way leads around the format.
#include "server/api/answer_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace nibble::api {
namespace {

// A format of one token, again and again.
class Only final : public GrammarConstraint {
 public:
  explicit Only(TokenId token) : token_(token) {}
  bool binds() const override { return true; }
  void fill(TokenMask mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    mask[static_cast<std::size_t>(token_) / 32] |= 1u << token_ % 32;
  }
  void accept(TokenId token) override { EXPECT_EQ(token, token_); }
  void roll_back(int) override {}
  bool allows(TokenId token) override { return token == token_; }
  bool complete() override { return false; }
  bool cut() const override { return true; }

 private:
  TokenId token_;
};

class AnswerConstraint : public ::testing::Test {
 protected:
  static const Tokenizer& tokenizer() {
    static const Tokenizer loaded = Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/parity/example").value();
    return loaded;
  }
  static TokenId control(std::string_view spelling) { return *tokenizer().control_id(spelling); }
  static TokenId word() { return tokenizer().encode("a").front(); }

  void start(std::string_view prompt) {
    const std::vector<TokenId> ids = tokenizer().encode_trusted(prompt);
    constraint_ =
        constrain_answer(tokenizer(), answer_start(tokenizer(), ids), ends_, {std::make_unique<Only>(word())})
            .value();
  }
  std::vector<TokenId> allowed() {
    std::vector<std::uint32_t> mask(token_mask_words(tokenizer().vocabulary_size()), 0x12345678);
    EXPECT_TRUE(constraint_->binds());
    constraint_->fill(mask);
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < tokenizer().vocabulary_size(); ++id) {
      if (mask[static_cast<std::size_t>(id) / 32] >> id % 32 & 1) ids.push_back(id);
    }
    return ids;
  }
  bool allows(TokenId token) {
    const std::vector<TokenId> ids = allowed();
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  }
  // Each token as an answer would bring it.
  void say(std::string_view spelled) {
    for (const TokenId token : tokenizer().encode_trusted(spelled)) {
      ASSERT_TRUE(allows(token)) << spelled;
      constraint_->accept(token);
    }
  }

  std::vector<TokenId> ends_;  // of answers
  std::shared_ptr<TokenConstraint> constraint_;
};

constexpr std::string_view chat = "<|start|>user<|message|>Hi<|end|><|start|>assistant";

TEST_F(AnswerConstraint, APlainAnswerHasTheFormatFromItsFirstToken) {
  start("Once upon a time");
  EXPECT_EQ(allowed(), std::vector<TokenId>{word()});
}

TEST_F(AnswerConstraint, ReasoningIsFreeAndBehindItComesTheFinalMessage) {
  start(chat);
  EXPECT_EQ(allowed(), std::vector<TokenId>{control("<|channel|>")});
  say("<|channel|>analysis<|message|>Anything at all, {even} this.");
  for (const char* around : {"<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"})
    EXPECT_FALSE(allows(control(around))) << around;
  say("<|end|>");
  for (const TokenId token : tokenizer().encode_trusted("<|start|>assistant<|channel|>final<|message|>")) {
    EXPECT_EQ(allowed(), std::vector<TokenId>{token});
    constraint_->accept(token);
  }
  EXPECT_EQ(allowed(), std::vector<TokenId>{word()});
}

TEST_F(AnswerConstraint, NoAnswerEndsInItsReasoning) {
  ends_ = {control("<|return|>"), control("<|endoftext|>"), control("<|call|>")};
  start(chat);
  say("<|channel|>analysis<|message|>Hm.");
  for (const TokenId end : ends_) EXPECT_FALSE(allows(end));
  EXPECT_TRUE(allows(control("<|end|>")));
  // Where a message's end ends the answer, there is no reasoning before one in a format.
  ends_.push_back(control("<|end|>"));
  start(chat);
  for (const TokenId token : tokenizer().encode_trusted("<|channel|>final<|message|>")) {
    EXPECT_EQ(allowed(), std::vector<TokenId>{token});
    constraint_->accept(token);
  }
  const std::vector<TokenId> open =
      tokenizer().encode_trusted(std::string(chat) + "<|channel|>analysis<|message|>");
  EXPECT_FALSE(may_constrain(tokenizer(), answer_start(tokenizer(), open), ends_, {}).ok());
}

TEST_F(AnswerConstraint, TheFinalMessageMayComeAtOnceAndNoOtherChannelMay) {
  start(chat);
  say("<|channel|>");
  const TokenId commentary = tokenizer().encode("commentary").front();
  if (commentary != tokenizer().encode("analysis").front() &&
      commentary != tokenizer().encode("final").front()) {
    EXPECT_FALSE(allows(commentary));
  }
  say("final<|message|>");
  EXPECT_EQ(allowed(), std::vector<TokenId>{word()});
}

TEST_F(AnswerConstraint, AMessageThatThePromptLeavesOpenGoesOn) {
  start(std::string(chat) + "<|channel|>final<|message|>");
  EXPECT_EQ(allowed(), std::vector<TokenId>{word()});
  start(std::string(chat) + "<|channel|>analysis<|message|>Well");
  EXPECT_TRUE(allows(control("<|end|>")));
  const std::vector<TokenId> call = tokenizer().encode_trusted(std::string(chat) + "<|channel|>commentary");
  EXPECT_FALSE(may_constrain(tokenizer(), answer_start(tokenizer(), call), {}, {}).ok());
}

TEST_F(AnswerConstraint, OnlyWhatTheFormatHoldsCanBeCutByIt) {
  start("Once upon a time");
  EXPECT_TRUE(constraint_->cut());
  start(chat);
  EXPECT_FALSE(constraint_->cut());
  say("<|channel|>analysis<|message|>Well");
  EXPECT_FALSE(constraint_->cut());
  say("<|end|><|start|>assistant<|channel|>final<|message|>");
  EXPECT_TRUE(constraint_->cut());
}

TEST_F(AnswerConstraint, RolledBackItIsWhereItWas) {
  start(chat);
  const std::string answer =
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>";
  std::vector<std::vector<TokenId>> before;
  const std::vector<TokenId> ids = tokenizer().encode_trusted(answer);
  for (const TokenId token : ids) {
    before.push_back(allowed());
    constraint_->accept(token);
  }
  for (; !before.empty(); before.pop_back()) {
    constraint_->roll_back(1);
    EXPECT_EQ(allowed(), before.back());
  }
}

}  // namespace
}  // namespace nibble::api
