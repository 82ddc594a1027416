#include <algorithm>
#include <utility>

#include "base/quote.h"
#include "base/utf8.h"
#include "grammar/grammar_data.h"
#include "grammar/pattern.h"

namespace nibble {
namespace {

// Of what was found for answers that have all ended.
constexpr std::size_t kKeptBytes = std::size_t{32} << 20;

}  // namespace

Findings::Findings(std::shared_ptr<const Symbols> symbols, std::shared_ptr<const std::vector<bool>> usable,
                   std::shared_ptr<const TokenTrie> tokens)
    : vocabulary(std::move(tokens)), matcher(std::move(symbols), std::move(usable)) {
  matcher.set_token_elements(vocabulary->most_commas() + 1);
}

void Findings::forget_masks() {
  masks.clear();
  may_repeat.clear();
  too_long.clear();
}

void Findings::reset() {
  matcher.reset();
  ++resets;
  forget_masks();
  loops.clear();
  only_bytes.clear();
  reaches.clear();
}

std::shared_ptr<Findings> Grammar::new_findings(const std::shared_ptr<const TokenTrie>& vocabulary) const {
  auto made = std::make_shared<Findings>(symbols_, usable_, vocabulary);
  made->answers = 1;
  return made;
}

std::shared_ptr<Findings> Grammar::join_kept(const TokenTrie& vocabulary) const {
  if (kept_ == nullptr || kept_->full || kept_->vocabulary.get() != &vocabulary) return nullptr;
  ++kept_->answers;
  return kept_;
}

std::shared_ptr<Findings> Grammar::findings(const std::shared_ptr<const TokenTrie>& vocabulary) const {
  {
    const std::lock_guard lock(mutex_);
    if (auto kept = join_kept(*vocabulary)) return kept;
  }
  // That takes a while: who begins an answer meanwhile may be the engine.
  auto made = new_findings(vocabulary);
  const std::lock_guard lock(mutex_);
  if (auto kept = join_kept(*vocabulary)) return kept;
  kept_ = made;
  return made;
}

void Grammar::leave(std::shared_ptr<Findings> findings) const {
  if (--findings->answers > 0) return;
  bool kept = false;
  {
    const std::lock_guard lock(findings->mutex);
    kept = !findings->full && findings->matcher.memory() <= kKeptBytes;
  }
  if (kept) return;
  const std::lock_guard lock(mutex_);
  // Nobody begins with it meanwhile.
  if (kept_ == findings && kept_->answers == 0) kept_ = nullptr;
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
