#include "grammar/grammar_text.h"

#include <algorithm>

#include "base/quote.h"
#include "base/utf8.h"

namespace nibble {

Status check_grammar_text(std::string_view text, const CompileLimits& limits) {
  if (text.size() > limits.max_bytes)
    return invalid_argument("a grammar of " + std::to_string(text.size()) + " bytes is longer than " +
                            std::to_string(limits.max_bytes));
  if (!is_valid_utf8(text)) return invalid_argument("the grammar is not UTF-8");
  return {};
}

bool GrammarText::take(std::string_view what) {
  if (!text_.substr(at_).starts_with(what)) return false;
  at_ += what.size();
  return true;
}

Result<std::uint32_t> GrammarText::number() {
  std::uint32_t value = 0;
  const std::size_t begin = at_;
  while (!ended() && text_[at_] >= '0' && text_[at_] <= '9')
    value = std::min<std::uint32_t>(value * 10 + static_cast<std::uint32_t>(text_[at_++] - '0'), 1'000'000);
  if (at_ == begin || value > 100'000) return wrong("a number of repetitions, at most 100000");
  return value;
}

Status GrammarText::wrong(std::string_view expected) const {
  const auto line = std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n') + 1;
  return invalid_argument("the grammar's line " + std::to_string(line) + " at " +
                          quote(text_.substr(at_, 20)) + ": expected " + std::string(expected));
}

Status GrammarText::too_deep() const {
  return wrong("at most " + std::to_string(limits_.max_depth) + " nested groups");
}

}  // namespace nibble
