#include "server/api/answer_constraint.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/api/call_constraint.h"
#include "server/api/harmony_constraint.h"
#include "server/api/mask_bits.h"
#include "text/harmony_parser.h"

namespace nibble::api {
namespace {

// Reasoning between <think> and </think>, where there is any, may be anything but one of `ends`; newlines
// that part it from the answer belong to neither.
class ThinkingConstraint final : public TokenConstraint {
 public:
  enum class Phase : std::uint8_t { undecided, reasoning, parted, format };

  ThinkingConstraint(const Tokenizer& tokenizer, ThinkTokens tokens, Phase phase,
                     std::span<const TokenId> ends, std::unique_ptr<TokenConstraint> format)
      : tokens_(tokens), phase_(phase), ends_(ends.begin(), ends.end()), format_(std::move(format)) {
    for (const char* newlines : {"\n", "\n\n"}) {
      const std::vector<TokenId> ids = tokenizer.encode(newlines);
      if (ids.size() == 1) newlines_.push_back(ids.front());
    }
  }

  bool binds() const override { return phase_ == Phase::reasoning ? !ends_.empty() : format_->binds(); }

  void fill(TokenMask mask) override {
    if (phase_ == Phase::reasoning) {
      std::fill(mask.begin(), mask.end(), ~0u);
      for (const TokenId end : ends_) forbid(mask, end);
      return;
    }
    format_->fill(mask);
    if (phase_ == Phase::undecided) allow(mask, tokens_.open);
    if (phase_ == Phase::parted) {
      for (const TokenId newline : newlines_) allow(mask, newline);
    }
  }

  void accept(TokenId token) override {
    Step step{.phase = phase_, .of_format = false};
    if (phase_ == Phase::reasoning) {
      if (token == tokens_.close) phase_ = Phase::parted;
    } else if (phase_ == Phase::undecided && token == tokens_.open) {
      phase_ = Phase::reasoning;
    } else if (phase_ == Phase::parted &&
               std::find(newlines_.begin(), newlines_.end(), token) != newlines_.end()) {
      phase_ = Phase::format;
    } else {
      phase_ = Phase::format;
      step.of_format = true;
      format_->accept(token);
    }
    before_.push_back(step);
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens <= static_cast<int>(before_.size()), "no more is taken back than was accepted");
    for (; tokens > 0; --tokens) {
      phase_ = before_.back().phase;
      if (before_.back().of_format) format_->roll_back(1);
      before_.pop_back();
    }
  }

  int draft(std::span<TokenId> room) override { return phase_ == Phase::format ? format_->draft(room) : 0; }
  bool may_draft() const override { return phase_ != Phase::reasoning; }

  bool cut() const override { return phase_ != Phase::reasoning && format_->cut(); }

 private:
  struct Step {
    Phase phase;
    bool of_format;  // whether the format accepted the token
  };

  ThinkTokens tokens_;
  Phase phase_;
  std::vector<TokenId> ends_, newlines_;
  std::vector<Step> before_;  // each accepted token
  std::unique_ptr<TokenConstraint> format_;
};

std::unique_ptr<TokenConstraint> behind_thinking(const Tokenizer& tokenizer, ThinkState state,
                                                 std::span<const TokenId> ends,
                                                 std::unique_ptr<TokenConstraint> answer) {
  const auto tokens = ThinkTokens::find(tokenizer);
  if (!tokens || state == ThinkState::answer) return answer;
  using Phase = ThinkingConstraint::Phase;
  return std::make_unique<ThinkingConstraint>(
      tokenizer, *tokens, state == ThinkState::reasoning ? Phase::reasoning : Phase::undecided, ends,
      std::move(answer));
}

BoundCalls::Place place_of(const AnswerRules& rules) {
  return rules.calls == nullptr ? BoundCalls::Place::none : rules.calls->place;
}

std::unique_ptr<TokenConstraint> constrain_text(const Tokenizer& tokenizer, AnswerRules rules) {
  using enum BoundCalls::Place;
  const BoundCalls::Place place = place_of(rules);
  if (place == none) return std::move(rules.format);
  if (place == anywhere) return free_until_calls(tokenizer, *rules.calls);
  auto calls = nibble::start(rules.calls->grammar, rules.calls->vocabulary);
  return place == alone ? std::move(calls) : either(std::move(rules.format), std::move(calls));
}

// Where its end ends the answer, reasoning may not come: nothing would be behind it.
HarmonyHeaders headers_of(const Tokenizer& tokenizer, const HarmonyTokens& tokens,
                          std::span<const TokenId> ends, const AnswerRules& rules) {
  using enum BoundCalls::Place;
  const BoundCalls::Place place = place_of(rules);
  const bool last = std::find(ends.begin(), ends.end(), tokens.end) != ends.end();
  HarmonyHeaders::Allowed allowed{.reasons = !last, .answers = place != alone};
  if (place != none) allowed.calls = rules.calls->arguments;
  return HarmonyHeaders(tokenizer, tokens, allowed);
}

}  // namespace

Status may_constrain(const Tokenizer& tokenizer, const AnswerStart& start, std::span<const TokenId> ends,
                     const AnswerRules& rules) {
  const auto tokens = HarmonyTokens::find(tokenizer);
  if (start.format != AnswerFormat::harmony || !tokens || place_of(rules) == BoundCalls::Place::anywhere)
    return {};
  if (open_header(headers_of(tokenizer, *tokens, ends, rules), start)) return {};
  if (place_of(rules) == BoundCalls::Place::alone)
    return invalid_argument("the prompt ends inside a message, and a call is a message of its own");
  return invalid_argument(
      "the prompt ends inside a message that is no answer, and behind which this model writes none; a format "
      "holds in an answer alone");
}

Result<std::shared_ptr<TokenConstraint>> constrain_answer(const Tokenizer& tokenizer,
                                                          const AnswerStart& start,
                                                          std::span<const TokenId> ends, AnswerRules rules) {
  NIBBLE_RETURN_IF_ERROR(may_constrain(tokenizer, start, ends, rules));
  using Made = std::shared_ptr<TokenConstraint>;
  const bool anywhere = place_of(rules) == BoundCalls::Place::anywhere;
  const auto tokens = HarmonyTokens::find(tokenizer);
  if (start.format == AnswerFormat::thinking) {
    // Free text may end in its reasoning.
    return Made(behind_thinking(tokenizer, start.think, anywhere ? std::span<const TokenId>() : ends,
                                constrain_text(tokenizer, std::move(rules))));
  }
  if (start.format == AnswerFormat::plain || !tokens)
    return Made(constrain_text(tokenizer, std::move(rules)));
  if (anywhere) return Made(free_harmony(tokenizer, *tokens, start, ends, *rules.calls));
  HarmonyHeaders headers = headers_of(tokenizer, *tokens, ends, rules);
  const HarmonyHeaders::Node begin = *open_header(headers, start);
  return Made(bound_harmony(*tokens, std::move(headers), begin, ends,
                            {.format = std::move(rules.format), .calls = rules.calls}));
}

}  // namespace nibble::api
