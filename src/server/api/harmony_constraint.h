// Harmony answers that are held to something: a format in the final channel, calls of functions.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/token_constraint.h"
#include "grammar/grammar.h"
#include "server/api/bound_calls.h"
#include "text/answer_reader.h"
#include "text/harmony_parser.h"
#include "text/tokenizer.h"

namespace nibble::api {

// The headers that messages of an answer may have, from <|start|> to <|message|>.
class HarmonyHeaders {
 public:
  struct Kind {
    enum class Part : std::uint8_t { none, reasoning, final, call } part = Part::none;
    std::uint32_t function = 0;  // of a call: in BoundCalls::arguments
  };
  using Node = std::uint32_t;
  struct Next {
    TokenId token;
    Node node;
  };

  // `answers`: a final message may come; reasoning may come before all else.
  struct Allowed {
    bool reasons = true, answers = true;
    std::span<const BoundCalls::Arguments> calls = {};
  };
  HarmonyHeaders(const Tokenizer& tokenizer, const HarmonyTokens& tokens, const Allowed& allowed);

  Node first() const { return 0; }             // before the answer's first message
  Node behind_reasoning() const { return 1; }  // before the one behind that
  std::span<const Next> next(Node node) const { return nodes_[node].next; }
  // Of a header that is complete there.
  Kind kind(Node node) const { return nodes_[node].kind; }
  // From `node` on; nothing: no header goes that way.
  std::optional<Node> step(Node node, TokenId token) const;

 private:
  struct State {
    std::vector<Next> next;
    Kind kind;
  };
  void add(Node node, std::span<const TokenId> header, Kind kind);

  std::vector<State> nodes_;
};

// Where the prompt leaves the answer; nothing: in a message that can be none of the allowed.
std::optional<HarmonyHeaders::Node> open_header(const HarmonyHeaders& headers, const AnswerStart& start);

// What the answer is held to. One of the two is there.
struct HarmonyRules {
  std::unique_ptr<TokenConstraint> format;  // of the final message; null: there is none
  const BoundCalls* calls = nullptr;        // null: none may come
};
// Reasoning is free; behind it nothing but a message of the rules may come.
std::unique_ptr<TokenConstraint> bound_harmony(const HarmonyTokens& tokens, HarmonyHeaders headers,
                                               HarmonyHeaders::Node begin, std::span<const TokenId> ends,
                                               HarmonyRules rules);
// The answer is free but for the arguments of calls.
std::unique_ptr<TokenConstraint> free_harmony(const Tokenizer& tokenizer, const HarmonyTokens& tokens,
                                              const AnswerStart& start, std::span<const TokenId> ends,
                                              const BoundCalls& calls);

}  // namespace nibble::api
