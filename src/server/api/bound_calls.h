// Calls of functions that are held to the functions' schemas while they are written.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "grammar/call_grammar.h"
#include "server/api/api_error.h"
#include "server/api/field_reader.h"
#include "server/api/generation_request.h"
#include "server/api/grammar_cache.h"
#include "text/answer_reader.h"
#include "text/tokenizer.h"

namespace nibble::api {

struct BoundCalls {
  // none: calls are as the model writes them. anywhere: between free text, as the model pleases. instead: of
  // an answer in the format that was asked for. alone: the answer is calls and nothing else.
  enum class Place : std::uint8_t { none, anywhere, instead, alone };
  struct Arguments {
    std::string function;
    std::shared_ptr<const Grammar> grammar;
  };

  Place place = Place::none;
  CallForm form = CallForm::none;
  std::vector<Arguments> arguments;                     // of harmony
  std::shared_ptr<const Grammar> grammar;               // of other forms
  std::shared_ptr<const GrammarVocabulary> vocabulary;  // of either
};

BoundCalls::Place bound_place(const GenerationRequest& request);

struct CallBinder {
  const Tokenizer& tokenizer;
  const ModelInfo& model;
  GrammarCache& grammars;

  // Compiles what the request's tools and choice ask for; `answer` is told how its calls will read. Looks
  // into the request's JSON.
  Refused bind(const GenerationRequest& request, AnswerStart& answer, BoundCalls& calls) const;
};

}  // namespace nibble::api
