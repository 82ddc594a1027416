// Regular expressions on names of modules, as compressed-tensors writes them behind "re:": Python's, matched
// from a name's begin on, not to its end.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble {

class NameExpression {
 public:
  // Characters, classes ([..], ., \d, \w, \s and their opposites) and groups without names are read, and so
  // are |, *, +, ?, {m,n}, ^ and $. An expression may begin with (?=..) or (?!..): what a name must begin
  // with, or not. The status says what else it found, or that the automaton would be large.
  static Result<NameExpression> compile(std::string_view text);

  // In time that grows with the name alone.
  bool matches(std::string_view name) const;
  const std::string& text() const { return text_; }

 private:
  struct Automaton;
  struct Part {
    std::shared_ptr<const Automaton> automaton;
    bool wanted = true;
  };
  std::string text_;
  std::vector<Part> parts_;  // a name matches if each of them is as it is wanted
};

}  // namespace nibble
