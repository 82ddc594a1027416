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
  json.end_array();
  return content;
}

Result<std::shared_ptr<const Grammar>> compile(const TextFormat& asked) {
  switch (asked.kind) {
    case TextFormat::Kind::json_object: return compile_json_object();
    case TextFormat::Kind::json_schema: return compile_json_schema(*asked.schema);
    case TextFormat::Kind::regex: return compile_regex(asked.pattern);
    case TextFormat::Kind::choice: return compile_choice(asked.choices);
    case TextFormat::Kind::text:
    case TextFormat::Kind::grammar: break;
  }
  return compile_gbnf(asked.pattern);
}

}  // namespace

std::shared_ptr<const GrammarVocabulary> GrammarCache::vocabulary(const Tokenizer& tokenizer,
                                                                  const ModelInfo& model) {
  std::call_once(made_vocabulary_,
                 [&] { vocabulary_ = GrammarVocabulary::make(tokenizer, model.eos_ids, model.vocabulary); });
  return vocabulary_;
}

Result<std::shared_ptr<const Grammar>> GrammarCache::get(const TextFormat& asked) {
  std::string content = content_of(asked);
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.content == content; });
    if (found != kept_.end()) {
      ++counts_.found;
      kept_.splice(kept_.begin(), kept_, found);
      return found->grammar;
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  Result<std::shared_ptr<const Grammar>> grammar = compile(asked);
  const std::lock_guard lock(mutex_);
  counts_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++(grammar.ok() ? counts_.compiled : counts_.refused);
  if (!grammar.ok() || content.size() > longest_kept) return grammar;
  kept_.push_front({std::move(content), *grammar});
  if (kept_.size() > most_kept) kept_.pop_back();
  return grammar;
}

GrammarCache::Counts GrammarCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace nibble::api
