// Named rules of a grammar that is being read: uses may come before the definition.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/symbols.h"

namespace nibble {

class Rules {
 public:
  Symbols& symbols() { return symbols_; }
  SymbolId reference(std::string_view name);
  Status define(std::string_view name, SymbolId body);
  // Refuses rules that are used and not defined, and those that begin with themselves.
  Result<Symbols> finish(std::string_view root, const CompileLimits& limits);

 private:
  Status refuse_left_recursion(const CompileClock& clock);
  struct Rule {
    SymbolId symbol = kNoSymbol;
    bool defined = false;
  };
  Symbols symbols_;
  std::map<std::string, Rule, std::less<>> rules_;
};

}  // namespace nibble
