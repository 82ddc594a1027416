#include "grammar/rules.h"

#include <utility>
#include <vector>

#include "base/quote.h"

namespace nibble {

SymbolId Rules::reference(std::string_view name) {
  const auto at = rules_.try_emplace(std::string(name)).first;
  // A sequence of one, so that the rule's own symbol never changes its place.
  if (at->second.symbol == kNoSymbol) at->second.symbol = symbols_.add({});
  return at->second.symbol;
}

Status Rules::define(std::string_view name, SymbolId body) {
  const SymbolId symbol = reference(name);
  Rule& rule = rules_.find(name)->second;
  if (rule.defined) return invalid_argument("the rule " + quote(name) + " is defined twice");
  rule.defined = true;
  const auto begin = static_cast<std::uint32_t>(symbols_.parts.size());
  symbols_.parts.push_back(body);
  symbols_.symbols[symbol] = {.kind = Symbol::Kind::choice, .a = begin, .b = 1};
  return {};
}

Result<Symbols> Rules::finish(std::string_view root, const CompileLimits& limits) {
  for (const auto& [name, rule] : rules_)
    if (!rule.defined) return invalid_argument("the rule " + quote(name) + " is used and not defined");
  const auto at = rules_.find(root);
  if (at == rules_.end())
    return invalid_argument("the grammar has no rule " + quote(root) + ", where a text begins");
  symbols_.root = at->second.symbol;
  NIBBLE_RETURN_IF_ERROR(refuse_left_recursion(CompileClock(limits)));
  return std::move(symbols_);
}

// Which symbols may come first in a symbol, searched with a stack of its own.
Status Rules::refuse_left_recursion(const CompileClock& clock) {
  NIBBLE_ASSIGN(const std::vector<bool> nullable, symbols_.nullable(clock));
  const auto first = [&](SymbolId symbol, std::vector<SymbolId>& out) {
    const Symbol& at = symbols_.symbols[symbol];
    if (at.kind == Symbol::Kind::repeat) out.push_back(at.a);
    if (at.kind != Symbol::Kind::choice && at.kind != Symbol::Kind::sequence) return;
    for (std::uint32_t i = 0; i < at.b; ++i) {
      out.push_back(symbols_.parts[at.a + i]);
      if (at.kind == Symbol::Kind::sequence && !nullable[out.back()]) break;
    }
  };
  enum class Mark : std::uint8_t { fresh, open, done };
  std::vector<Mark> marks(symbols_.symbols.size(), Mark::fresh);
  for (const auto& [name, rule] : rules_) {
    std::vector<std::pair<SymbolId, bool>> stack{{rule.symbol, false}};
    while (!stack.empty()) {
      const auto [symbol, leaving] = stack.back();
      stack.pop_back();
      if (leaving) {
        marks[symbol] = Mark::done;
        continue;
      }
      if (marks[symbol] == Mark::done) continue;
      if (marks[symbol] == Mark::open)
        return invalid_argument(
            "the rule " + quote(name) +
            " can begin with itself, which is not supported; write a repetition: item (\",\" item)*");
      marks[symbol] = Mark::open;
      stack.emplace_back(symbol, true);
      std::vector<SymbolId> next;
      first(symbol, next);
      for (const SymbolId each : next) {
        if (marks[each] == Mark::open)
          return invalid_argument(
              "the rule " + quote(name) +
              " can begin with itself, which is not supported; write a repetition: item (\",\" item)*");
        stack.emplace_back(each, false);
      }
    }
  }
  return {};
}

}  // namespace nibble
