// A grammar's text while it is read, and its rules so far: what the readers of GBNF and of Lark's manner
// share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/rules.h"

namespace nibble {

// Refuses what is too long or no UTF-8.
Status check_grammar_text(std::string_view text, const CompileLimits& limits);

class GrammarText {
 protected:
  GrammarText(std::string_view text, const CompileLimits& limits) : text_(text), limits_(limits) {}

  bool ended() const { return at_ >= text_.size(); }
  // Steps over `what` where it stands here.
  bool take(std::string_view what);
  // A number of repetitions.
  Result<std::uint32_t> number();
  // An error that names this place.
  Status wrong(std::string_view expected) const;
  Status too_deep() const;

  std::string_view text_;
  const CompileLimits& limits_;
  std::size_t at_ = 0;
  Rules rules_;
};

}  // namespace nibble
