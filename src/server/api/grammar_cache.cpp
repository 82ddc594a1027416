#include "server/api/grammar_cache.h"

#include <algorithm>
#include <chrono>

#include "base/json_copy.h"

namespace nibble::api {
namespace {

// Equal for formats that are the same, member by member.
std::string content_of(const TextFormat& asked) {
  std::string content(1, static_cast<char>('0' + static_cast<int>(asked.kind)));
  JsonWriter json(content);
  json.begin_array();
  if (asked.schema) copy_json(*asked.schema, json);
  json.value(std::string_view(asked.pattern));
  for (const std::string& choice : asked.choices) json.value(std::string_view(choice));
  json.value(static_cast<int>(asked.whitespace));
  json.end_array();
  return content;
}

// Of grammars of calls; no format's content begins so.
std::string content_of(std::string_view kind, std::span<const BoundFunction> functions) {
  std::string content(kind);
  JsonWriter json(content);
  json.begin_array();
  for (const BoundFunction& function : functions) {
    json.value(function.name).value(function.strict);
    if (function.schema) copy_json(*function.schema, json);
  }
  json.end_array();
  return content;
}

// Whether the first rule is defined by a colon; GBNF's stand behind `::=`. Comments begin with # or //.
bool in_larks_manner(std::string_view text) {
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (!text.starts_with('#') && !text.starts_with("//")) break;
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
  const std::size_t behind_name = std::min(text.find_first_of(" \t\r\n:"), text.size());
  text.remove_prefix(behind_name);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text.starts_with(':') && !text.starts_with("::=");
}

Result<std::shared_ptr<const Grammar>> compile(const TextFormat& asked) {
  const SchemaOptions options{.whitespace = asked.whitespace};
  switch (asked.kind) {
    case TextFormat::Kind::json_object: return compile_json_object(options);
    case TextFormat::Kind::json_schema: return compile_json_schema(*asked.schema, options);
    case TextFormat::Kind::regex: return compile_regex(asked.pattern);
    case TextFormat::Kind::choice: return compile_choice(asked.choices);
    case TextFormat::Kind::text:
    case TextFormat::Kind::grammar: break;
  }
  return compile_grammar(asked.pattern);
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_grammar(std::string_view text) {
  return in_larks_manner(text) ? compile_lark(text) : compile_gbnf(text);
}

ConstraintKind constraint_kind(TextFormat::Kind kind) {
  switch (kind) {
    case TextFormat::Kind::json_object: return ConstraintKind::json_object;
    case TextFormat::Kind::json_schema: return ConstraintKind::json_schema;
    case TextFormat::Kind::regex: return ConstraintKind::regex;
    case TextFormat::Kind::choice: return ConstraintKind::choice;
    case TextFormat::Kind::text:
    case TextFormat::Kind::grammar: break;
  }
  return ConstraintKind::grammar;
}

std::shared_ptr<const GrammarVocabulary> GrammarCache::vocabulary(const Tokenizer& tokenizer,
                                                                  const ModelInfo& model) {
  std::call_once(made_vocabulary_, [&] {
    vocabulary_ = GrammarVocabulary::make(tokenizer, model.eos_ids, model.vocabulary);
    const std::lock_guard lock(mutex_);
    made_.push_back(vocabulary_);
  });
  return vocabulary_;
}

Result<std::shared_ptr<const Grammar>> GrammarCache::get(const TextFormat& asked) {
  return find_or(constraint_kind(asked.kind), content_of(asked), [&] { return compile(asked); });
}

const GrammarCache::CallVocabulary& GrammarCache::call_vocabulary(const Tokenizer& tokenizer,
                                                                  const ModelInfo& model, CallForm form) {
  std::call_once(made_call_vocabulary_, [&] {
    call_vocabulary_.vocabulary =
        GrammarVocabulary::make(tokenizer, model.eos_ids, model.vocabulary, marks_of(form));
    const std::string_view open = call_marks(form).open;
    for (TokenId token = 0; token < tokenizer.vocabulary_size(); ++token) {
      const std::size_t at = tokenizer.bytes(token).find(open);
      if (at != std::string_view::npos && at + open.size() < tokenizer.bytes(token).size())
        call_vocabulary_.hides_mark = true;
    }
    const std::lock_guard lock(mutex_);
    made_.push_back(call_vocabulary_.vocabulary);
  });
  return call_vocabulary_;
}

Result<std::shared_ptr<const Grammar>> GrammarCache::calls(std::span<const BoundFunction> functions,
                                                           const CallRules& rules, const OfferedTools& tools,
                                                           const GrammarVocabulary& vocabulary) {
  std::string kind = rules.several ? "calls" : "one";
  if (rules.text == CallRules::Text::call) kind = "call";
  if (rules.text == CallRules::Text::either) kind = "either";
  return find_or(ConstraintKind::tool_calls, content_of(kind, functions),
                 [&] { return compile_calls(functions, rules, tools, vocabulary); });
}

Result<std::shared_ptr<const Grammar>> GrammarCache::arguments(const BoundFunction& function,
                                                               const CompileLimits& limits) {
  return find_or(ConstraintKind::tool_calls, content_of("arguments", {&function, 1}),
                 [&] { return compile_arguments(function, limits); });
}

Result<std::shared_ptr<const Grammar>> GrammarCache::find_or(ConstraintKind kind, std::string content,
                                                             const Compile& compile) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.content == content; });
    if (found != kept_.end()) {
      ++counts_.of(kind).found;
      kept_.splice(kept_.begin(), kept_, found);
      return found->grammar;
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  Result<std::shared_ptr<const Grammar>> grammar = compile();
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  counts_.compile_seconds.observe(spent.count());
  ++(grammar.ok() ? counts_.of(kind).compiled : counts_.of(kind).refused);
  if (!grammar.ok() || content.size() > longest_kept) return grammar;
  kept_.push_front({std::move(content), *grammar});
  if (kept_.size() > most_kept) kept_.pop_back();
  return grammar;
}

ConstraintCounts GrammarCache::counts() const {
  const std::lock_guard lock(mutex_);
  ConstraintCounts counts = counts_;
  for (const auto& vocabulary : made_) {
    const MaskCounts masks = vocabulary->mask_counts();
    counts.masks += masks.found;
    counts.mask_seconds += masks.seconds;
  }
  return counts;
}

}  // namespace nibble::api
