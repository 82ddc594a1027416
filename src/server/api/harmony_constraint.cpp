#include "server/api/harmony_constraint.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "server/api/mask_bits.h"

namespace nibble::api {
namespace {

using Part = HarmonyHeaders::Kind::Part;

class Header {
 public:
  Header(const Tokenizer& tokenizer, const HarmonyTokens& tokens) : tokenizer_(tokenizer), tokens_(tokens) {}

  std::vector<TokenId> to_channel(std::string_view channel) const {
    return made({{tokens_.start, "assistant"}, {tokens_.channel, channel}, {tokens_.message, ""}});
  }
  std::vector<TokenId> to_function(const std::string& name) const {
    return made({{tokens_.start, "assistant"},
                 {tokens_.channel, "commentary to=functions." + name + " "},
                 {tokens_.constrain, "json"},
                 {tokens_.message, ""}});
  }

 private:
  std::vector<TokenId> made(const std::vector<std::pair<TokenId, std::string_view>>& parts) const {
    std::vector<TokenId> header;
    for (const auto& [control, text] : parts) {
      header.push_back(control);
      const std::vector<TokenId> ids = tokenizer_.encode(text);
      header.insert(header.end(), ids.begin(), ids.end());
    }
    return header;
  }

  const Tokenizer& tokenizer_;
  const HarmonyTokens& tokens_;
};

// A call's arguments may end where they are complete, and with <|call|> where that ends an answer.
void fill_arguments(TokenConstraint& arguments, TokenMask mask, std::span<const TokenId> ends, TokenId call) {
  arguments.fill(mask);
  if (std::find(ends.begin(), ends.end(), call) == ends.end()) return;
  for (const TokenId end : ends)
    if (end != call) forbid(mask, end);
}

class BoundHarmony final : public TokenConstraint {
 public:
  BoundHarmony(const HarmonyTokens& tokens, HarmonyHeaders headers, HarmonyHeaders::Node begin,
               std::span<const TokenId> ends, HarmonyRules rules)
      : tokens_(tokens), headers_(std::move(headers)), ends_(ends.begin(), ends.end()) {
    format_ = std::move(rules.format);
    if (rules.calls != nullptr) calls_ = *rules.calls;
    enter(begin);
  }

  bool binds() const override { return place_.phase != Phase::format || format_->binds(); }

  void fill(TokenMask mask) override {
    switch (place_.phase) {
      case Phase::header:
        std::fill(mask.begin(), mask.end(), 0u);
        for (const HarmonyHeaders::Next& next : headers_.next(place_.node)) allow(mask, next.token);
        break;
      case Phase::reasoning:
        // Whatever would leave the message other than by its end is a way around the rules.
        std::fill(mask.begin(), mask.end(), ~0u);
        for (const TokenId token : {tokens_.start, tokens_.channel, tokens_.constrain, tokens_.message,
                                    tokens_.return_, tokens_.call})
          forbid(mask, token);
        for (const TokenId end : ends_) forbid(mask, end);
        break;
      case Phase::format: format_->fill(mask); break;
      case Phase::call: fill_arguments(*arguments_, mask, ends_, tokens_.call); break;
    }
  }

  void accept(TokenId token) override {
    before_.push_back(place_);
    switch (place_.phase) {
      case Phase::header: {
        const auto next = headers_.step(place_.node, token);
        NIBBLE_CHECK(next.has_value(), "the token that was chosen was allowed");
        enter(*next);
        break;
      }
      case Phase::reasoning:
        if (token == tokens_.end) place_ = {.phase = Phase::header, .node = headers_.behind_reasoning()};
        break;
      case Phase::format: format_->accept(token); break;
      case Phase::call: arguments_->accept(token); break;
    }
  }

  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens <= static_cast<int>(before_.size()), "no more is taken back than was accepted");
    for (; tokens > 0; --tokens) {
      place_ = before_.back();
      before_.pop_back();
      if (place_.phase == Phase::format) format_->roll_back(1);
      if (place_.phase == Phase::call) arguments_->roll_back(1);
    }
  }

  int draft(std::span<TokenId> room) override {
    switch (place_.phase) {
      case Phase::header: return draft_header(room);
      case Phase::reasoning: return 0;
      case Phase::format: return format_->draft(room);
      case Phase::call: return arguments_->draft(room);
    }
    return 0;
  }
  bool may_draft() const override { return place_.phase != Phase::reasoning; }

  bool cut() const override {
    return (place_.phase == Phase::format && format_->cut()) ||
           (place_.phase == Phase::call && arguments_->cut());
  }

 private:
  enum class Phase : std::uint8_t { header, reasoning, format, call };
  struct Place {
    Phase phase = Phase::header;
    HarmonyHeaders::Node node = 0;  // of a header
  };

  // Up to where there is a choice, or the header's end.
  int draft_header(std::span<TokenId> room) const {
    int count = 0;
    HarmonyHeaders::Node node = place_.node;
    for (TokenId& draft : room) {
      const std::span<const HarmonyHeaders::Next> next = headers_.next(node);
      if (next.size() != 1) break;
      draft = next.front().token;
      node = next.front().node;
      ++count;
    }
    return count;
  }

  void enter(HarmonyHeaders::Node node) {
    place_.node = node;
    const HarmonyHeaders::Kind kind = headers_.kind(node);
    switch (kind.part) {
      case Part::none: place_.phase = Phase::header; break;
      case Part::reasoning: place_.phase = Phase::reasoning; break;
      case Part::final: place_.phase = Phase::format; break;
      case Part::call:
        place_.phase = Phase::call;
        arguments_ = nibble::start(calls_.arguments[kind.function].grammar, calls_.vocabulary);
        break;
    }
  }

  HarmonyTokens tokens_;
  HarmonyHeaders headers_;
  std::vector<TokenId> ends_;
  std::unique_ptr<TokenConstraint> format_;
  BoundCalls calls_;
  std::unique_ptr<TokenConstraint> arguments_;  // of the call that is being written
  Place place_;
  std::vector<Place> before_;  // each accepted token
};

class FreeHarmony final : public TokenConstraint {
 public:
  FreeHarmony(const Tokenizer& tokenizer, const HarmonyTokens& tokens, const AnswerStart& start,
              std::span<const TokenId> ends, const BoundCalls& calls)
      : tokenizer_(tokenizer),
        tokens_(tokens),
        header_(start.header),
        ends_(ends.begin(), ends.end()),
        calls_(calls) {
    begin();
  }

  bool binds() const override { return arguments_ != nullptr; }
  void fill(TokenMask mask) override {
    if (arguments_) return fill_arguments(*arguments_, mask, ends_, tokens_.call);
    std::fill(mask.begin(), mask.end(), ~0u);
  }
  void accept(TokenId token) override {
    said_.push_back(token);
    take(token);
  }
  bool cut() const override { return cut_; }
  int draft(std::span<TokenId> room) override { return arguments_ ? arguments_->draft(room) : 0; }
  bool may_draft() const override { return arguments_ != nullptr; }
  // Beyond arguments it is read once more from the beginning: nothing else keeps what the parser was.
  void roll_back(int tokens) override {
    NIBBLE_CHECK(tokens <= static_cast<int>(said_.size()), "no more is taken back than was accepted");
    said_.resize(said_.size() - static_cast<std::size_t>(tokens));
    if (arguments_ && tokens <= in_arguments_) {
      arguments_->roll_back(tokens);
      in_arguments_ -= tokens;
      return;
    }
    begin();
    for (const TokenId token : said_) take(token);
  }

 private:
  void begin() {
    arguments_.reset();
    cut_ = false;
    parser_.emplace(tokenizer_, tokens_, std::nullopt);
    events_.clear();
    for (const TokenId token : header_) parser_->push(token, events_);
    parser_->prompt_ended();
    follow();
  }

  void take(TokenId token) {
    const bool ends = tokens_.ends_message(token);
    cut_ = arguments_ && ends && !arguments_->complete();
    // What a message says is nothing to the parser until it ends.
    if (arguments_ && !ends) {
      arguments_->accept(token);
      ++in_arguments_;
      return;
    }
    parser_->push(token, events_);
    follow();
  }

  void follow() {
    constexpr std::string_view functions = "functions.";
    for (const HarmonyEvent& event : events_) {
      if (event.kind == HarmonyEvent::Kind::end) arguments_.reset();
      if (event.kind != HarmonyEvent::Kind::begin || !event.header.recipient.starts_with(functions)) continue;
      const std::string_view name = std::string_view(event.header.recipient).substr(functions.size());
      for (const BoundCalls::Arguments& each : calls_.arguments)
        if (each.function == name) {
          arguments_ = nibble::start(each.grammar, calls_.vocabulary);
          in_arguments_ = 0;
        }
    }
    events_.clear();
  }

  Tokenizer tokenizer_;
  HarmonyTokens tokens_;
  std::vector<TokenId> header_;  // that the prompt leaves open
  std::vector<TokenId> ends_;
  BoundCalls calls_;
  std::optional<HarmonyParser> parser_;
  std::vector<HarmonyEvent> events_;
  std::vector<TokenId> said_;
  std::unique_ptr<GrammarConstraint> arguments_;  // null: the text is free
  int in_arguments_ = 0;                          // tokens that they have accepted
  bool cut_ = false;                              // behind a token that ended them before they were whole
};

}  // namespace

HarmonyHeaders::HarmonyHeaders(const Tokenizer& tokenizer, const HarmonyTokens& tokens,
                               const Allowed& allowed)
    : nodes_(2) {
  const Header header(tokenizer, tokens);
  if (allowed.reasons) add(first(), header.to_channel("analysis"), {.part = Part::reasoning});
  for (const Node root : {first(), behind_reasoning()}) {
    if (allowed.answers) add(root, header.to_channel("final"), {.part = Part::final});
    for (std::uint32_t i = 0; i < allowed.calls.size(); ++i)
      add(root, header.to_function(allowed.calls[i].function), {.part = Part::call, .function = i});
  }
}

void HarmonyHeaders::add(Node node, std::span<const TokenId> header, Kind kind) {
  for (const TokenId token : header) {
    if (const auto known = step(node, token)) {
      node = *known;
      continue;
    }
    const Node made = static_cast<Node>(nodes_.size());
    nodes_.emplace_back();
    nodes_[node].next.push_back({token, made});
    node = made;
  }
  nodes_[node].kind = kind;
}

std::optional<HarmonyHeaders::Node> HarmonyHeaders::step(Node node, TokenId token) const {
  for (const Next& next : nodes_[node].next)
    if (next.token == token) return next.node;
  return std::nullopt;
}

std::optional<HarmonyHeaders::Node> open_header(const HarmonyHeaders& headers, const AnswerStart& start) {
  HarmonyHeaders::Node node = headers.first();
  for (const TokenId token : start.header) {
    const auto next = headers.step(node, token);
    if (!next) return std::nullopt;
    node = *next;
  }
  return node;
}

std::unique_ptr<TokenConstraint> bound_harmony(const HarmonyTokens& tokens, HarmonyHeaders headers,
                                               HarmonyHeaders::Node begin, std::span<const TokenId> ends,
                                               HarmonyRules rules) {
  return std::make_unique<BoundHarmony>(tokens, std::move(headers), begin, ends, std::move(rules));
}

std::unique_ptr<TokenConstraint> free_harmony(const Tokenizer& tokenizer, const HarmonyTokens& tokens,
                                              const AnswerStart& start, std::span<const TokenId> ends,
                                              const BoundCalls& calls) {
  return std::make_unique<FreeHarmony>(tokenizer, tokens, start, ends, calls);
}

}  // namespace nibble::api
