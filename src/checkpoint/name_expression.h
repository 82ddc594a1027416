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
  // Read are characters, classes ([..], ., \d, \w, \s and their opposites), groups without names, |, *, +, ?,
  // {m,n}, ^ and $, and at the expression's very begin what a name must begin with or not: (?=..), (?!..).
  // The status says what is not; so it does of an expression whose automaton would be large.
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
