#include "server/api/answer_constraint.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/harmony_parser.h"

namespace nibble::api {
namespace {

void allow(TokenMask mask, TokenId token) { mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32; }
void forbid(TokenMask mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] &= ~(1u << token % 32);
}

// What a message may begin with, from <|start|> to <|message|>.
struct Headers {
  std::vector<TokenId> analysis, final;
};

std::vector<TokenId> header_of(const Tokenizer& tokenizer, const HarmonyTokens& tokens,
                               std::string_view channel) {
  std::vector<TokenId> header = {tokens.start};
  const auto add = [&](std::string_view text) {
    const std::vector<TokenId> ids = tokenizer.encode(text);
    header.insert(header.end(), ids.begin(), ids.end());
  };
  add("assistant");
  header.push_back(tokens.channel);
  add(channel);
  header.push_back(tokens.message);
  return header;
}

bool begins_with(const std::vector<TokenId>& all, const std::vector<TokenId>& beginning) {
  return beginning.size() <= all.size() && std::equal(beginning.begin(), beginning.end(), all.begin());
}

class HarmonyConstraint final : public TokenConstraint {
 public:
  struct Place {
    enum class Phase : std::uint8_t { header, reasoning, format } phase = Phase::header;
    bool may_reason = true;  // in a header: that of a message of reasoning is possible
    bool may_answer = true;
    std::uint16_t at = 0;  // tokens of the header that are there
  };

  HarmonyConstraint(const HarmonyTokens& tokens, Headers headers, Place place,
                    std::unique_ptr<TokenConstraint> format)
      : tokens_(tokens), headers_(std::move(headers)), place_(place), format_(std::move(format)) {}

  bool binds() const override { return place_.phase != Place::Phase::format || format_->binds(); }

  void fill(TokenMask mask) override {
    switch (place_.phase) {
      case Place::Phase::header:
        std::fill(mask.begin(), mask.end(), 0u);
        if (place_.may_reason) allow(mask, headers_.analysis[place_.at]);
        if (place_.may_answer) allow(mask, headers_.final[place_.at]);
        break;
      case Place::Phase::reasoning:
        // Whatever would leave the message other than by its end is a way around the format.
        std::fill(mask.begin(), mask.end(), ~0u);
        for (const TokenId token : {tokens_.start, tokens_.channel, tokens_.constrain, tokens_.message,
                                    tokens_.return_, tokens_.call})
          forbid(mask, token);
        break;
      case Place::Phase::format: format_->fill(mask); break;
    }
  }

  void accept(TokenId token) override {
    before_.push_back(place_);
    switch (place_.phase) {
      case Place::Phase::header: accept_in_header(token); break;
      case Place::Phase::reasoning:
        if (token == tokens_.end) place_ = {.may_reason = false};
        break;
      case Place::Phase::format: format_->accept(token); break;
    }
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens <= static_cast<int>(before_.size()), "no more is taken back than was accepted");
    for (; tokens > 0; --tokens) {
      place_ = before_.back();
      before_.pop_back();
      if (place_.phase == Place::Phase::format) format_->roll_back(1);
    }
  }

 private:
  void accept_in_header(TokenId token) {
    place_.may_reason = place_.may_reason && headers_.analysis[place_.at] == token;
    place_.may_answer = place_.may_answer && headers_.final[place_.at] == token;
    NIBBLE_CHECK(place_.may_reason || place_.may_answer, "the token that was chosen was allowed");
    const std::vector<TokenId>& header = place_.may_answer ? headers_.final : headers_.analysis;
    if (++place_.at == header.size())
      place_.phase = place_.may_answer ? Place::Phase::format : Place::Phase::reasoning;
  }

  HarmonyTokens tokens_;
  Headers headers_;
  Place place_;
  std::vector<Place> before_;  // each accepted token
  std::unique_ptr<TokenConstraint> format_;
};

// Reasoning between <think> and </think>, where there is any, may be anything but an end; newlines that part
// it from the answer belong to neither.
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

  bool binds() const override { return phase_ == Phase::reasoning || format_->binds(); }

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

std::shared_ptr<TokenConstraint> thinking_constraint(const Tokenizer& tokenizer, ThinkState state,
                                                     std::span<const TokenId> ends,
                                                     std::unique_ptr<TokenConstraint> format) {
  const auto tokens = ThinkTokens::find(tokenizer);
  if (!tokens || state == ThinkState::answer) return format;
  using Phase = ThinkingConstraint::Phase;
  return std::make_shared<ThinkingConstraint>(
      tokenizer, *tokens, state == ThinkState::reasoning ? Phase::reasoning : Phase::undecided, ends,
      std::move(format));
}

}  // namespace

Status may_constrain(const Tokenizer& tokenizer, const AnswerStart& start) {
  const auto tokens = HarmonyTokens::find(tokenizer);
  if (start.format != AnswerFormat::harmony || !tokens) return {};
  if (begins_with(header_of(tokenizer, *tokens, "analysis"), start.header) ||
      begins_with(header_of(tokenizer, *tokens, "final"), start.header))
    return {};
  return invalid_argument(
      "the prompt ends inside a message that is neither reasoning nor an answer, and a format holds in an "
      "answer alone");
}

Result<std::shared_ptr<TokenConstraint>> constrain_answer(const Tokenizer& tokenizer,
                                                          const AnswerStart& start,
                                                          std::span<const TokenId> ends,
                                                          std::unique_ptr<TokenConstraint> format) {
  NIBBLE_RETURN_IF_ERROR(may_constrain(tokenizer, start));
  const auto tokens = HarmonyTokens::find(tokenizer);
  if (start.format == AnswerFormat::thinking)
    return thinking_constraint(tokenizer, start.think, ends, std::move(format));
  if (start.format == AnswerFormat::plain || !tokens)
    return std::shared_ptr<TokenConstraint>(std::move(format));
  Headers headers{.analysis = header_of(tokenizer, *tokens, "analysis"),
                  .final = header_of(tokenizer, *tokens, "final")};
  using Place = HarmonyConstraint::Place;
  Place place{.may_reason = begins_with(headers.analysis, start.header),
              .may_answer = begins_with(headers.final, start.header),
              .at = static_cast<std::uint16_t>(start.header.size())};
  if (place.may_answer && place.at == headers.final.size()) place.phase = Place::Phase::format;
  if (place.may_reason && place.at == headers.analysis.size()) place.phase = Place::Phase::reasoning;
  return std::shared_ptr<TokenConstraint>(
      std::make_shared<HarmonyConstraint>(*tokens, std::move(headers), place, std::move(format)));
}

}  // namespace nibble::api
