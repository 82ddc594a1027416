#include <algorithm>
#include <utility>

#include "base/quote.h"
#include "base/utf8.h"
#include "grammar/grammar_data.h"
#include "grammar/pattern.h"

namespace nibble {
namespace {

constexpr std::size_t kIdle = 4;
constexpr std::size_t kIdleBytes = std::size_t{32} << 20;

}  // namespace

std::unique_ptr<Findings> Grammar::borrow() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto findings = std::move(idle_.back());
      idle_.pop_back();
      return findings;
    }
  }
  return std::make_unique<Findings>(Findings{.matcher = Matcher(symbols_, usable_), .vocabulary = nullptr});
}

void Grammar::give_back(std::unique_ptr<Findings> findings) const {
  if (findings->matcher.memory() > kIdleBytes) return;
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kIdle) idle_.push_back(std::move(findings));
}

Result<std::shared_ptr<const Grammar>> finish_grammar(Symbols symbols, const CompileLimits& limits) {
  const std::size_t states = symbols.languages.size() + symbols.symbols.size();
  if (states > limits.max_states)
    return invalid_argument("the grammar has " + std::to_string(states) + " states; at most " +
                            std::to_string(limits.max_states) + " are allowed");
  NIBBLE_ASSIGN(std::vector<bool> productive, symbols.productive(CompileClock(limits)));
  auto usable = std::make_shared<const std::vector<bool>>(std::move(productive));
  if (!(*usable)[symbols.root])
    return invalid_argument("no text at all fits: give a grammar that something satisfies");
  return std::shared_ptr<const Grammar>(
      std::make_shared<Grammar>(std::make_shared<const Symbols>(std::move(symbols)), std::move(usable)));
}

Result<std::shared_ptr<const Grammar>> compile_regex(std::string_view pattern, const CompileLimits& limits) {
  Symbols symbols;
  NIBBLE_ASSIGN(const Language language,
                compile_pattern(symbols.languages, pattern,
                                {.max_depth = limits.max_depth,
                                 .max_bytes = std::min<std::size_t>(limits.max_bytes, 16 << 10)}));
  symbols.root = symbols.text(language);
  return finish_grammar(std::move(symbols), limits);
}

Result<std::shared_ptr<const Grammar>> compile_choice(std::span<const std::string> choices,
                                                      const CompileLimits& limits) {
  if (choices.empty()) return invalid_argument("a list of choices has at least one");
  Symbols symbols;
  std::vector<Language> texts;
  std::size_t bytes = 0;
  for (const std::string& choice : choices) {
    bytes += choice.size();
    if (bytes > limits.max_bytes)
      return invalid_argument("the choices have more than " + std::to_string(limits.max_bytes) + " bytes");
    if (!is_valid_utf8(choice)) return invalid_argument("the choice " + quote(choice) + " is not UTF-8");
    texts.push_back(symbols.languages.literal(choice));
  }
  symbols.root = symbols.text(symbols.languages.any_of(texts));
  return finish_grammar(std::move(symbols), limits);
}

}  // namespace nibble
