// Formats that clients ask for, compiled; those asked for lately are kept, by their content.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "grammar/call_grammar.h"
#include "grammar/grammar.h"
#include "server/api/generation_request.h"
#include "server/constraint_counts.h"
#include "text/tokenizer.h"

namespace nibble::api {

// GBNF, or Lark's manner where the first rule is defined by a colon.
Result<std::shared_ptr<const Grammar>> compile_grammar(std::string_view text);

// Of a format other than text.
ConstraintKind constraint_kind(TextFormat::Kind kind);

class GrammarCache {
 public:
  // The model's, made when a format is asked for first: it takes some tenths of a second of a large
  // vocabulary. The same tokenizer and model each time; from any thread.
  std::shared_ptr<const GrammarVocabulary> vocabulary(const Tokenizer& tokenizer, const ModelInfo& model);
  // From any thread; takes as long as compiling takes. An error says what of the format is at fault.
  Result<std::shared_ptr<const Grammar>> get(const TextFormat& asked);

  // The vocabulary for grammars of calls in the model's form, made when it is asked for first.
  struct CallVocabulary {
    std::shared_ptr<const GrammarVocabulary> vocabulary;
    bool hides_mark = false;  // some token spells a call's opening mark and more behind it
  };
  const CallVocabulary& call_vocabulary(const Tokenizer& tokenizer, const ModelInfo& model, CallForm form);
  Result<std::shared_ptr<const Grammar>> calls(std::span<const BoundFunction> functions,
                                               const CallRules& rules, const OfferedTools& tools,
                                               const GrammarVocabulary& vocabulary);
  Result<std::shared_ptr<const Grammar>> arguments(const BoundFunction& function,
                                                   const CompileLimits& limits);
  ConstraintCounts counts() const;

 private:
  // A grammar may take some hundred times its text, so what is long is not kept.
  static constexpr std::size_t most_kept = 64, longest_kept = std::size_t{32} << 10;
  struct Kept {
    std::string content;
    std::shared_ptr<const Grammar> grammar;
  };

  using Compile = std::function<Result<std::shared_ptr<const Grammar>>()>;
  Result<std::shared_ptr<const Grammar>> find_or(ConstraintKind kind, std::string content,
                                                 const Compile& compile);

  std::once_flag made_call_vocabulary_;
  CallVocabulary call_vocabulary_;
  std::once_flag made_vocabulary_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::list<Kept> kept_;     // the one asked for last is first
  ConstraintCounts counts_;  // without masks
  std::vector<std::shared_ptr<const GrammarVocabulary>> made_;
};

}  // namespace nibble::api
