// What an answer may be, compiled once and followed token by token: JSON schemas, GBNF grammars,
// regular expressions and lists of choices. How it works: docs/internals/grammar.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "base/token_id.h"
#include "core/token_constraint.h"
#include "text/tokenizer.h"

namespace nibble {

// A stranger's grammar is refused once it is beyond one of these.
struct CompileLimits {
  std::size_t max_bytes = std::size_t{1} << 20;  // of a grammar's or a pattern's text
  int max_depth = 64;                            // of nesting in schemas, patterns and grammars
  std::size_t max_states = 400'000;              // expressions, symbols and members together
  int max_milliseconds = 1000;                   // of the compiling thread's CPU
  int max_wall_milliseconds = 20'000;            // by the wall clock, however loaded the machine is
};

// No white space ever stands before a comma or a colon. Any amount of it elsewhere would let a model go on
// with nothing else.
enum class JsonWhitespace : std::uint8_t {
  compact,   // none
  blanks,    // none, or one blank: behind commas, colons and opening brackets, before closing ones
  flexible,  // there, but behind colons, also a new line with an indent of up to 80
};

struct SchemaOptions {
  JsonWhitespace whitespace = JsonWhitespace::flexible;
};

// Immutable; any number of threads may start constraints from it at once.
class Grammar;

// Errors name the keyword or the place: "#/properties/a: uniqueItems is not supported ...".
Result<std::shared_ptr<const Grammar>> compile_json_schema(JsonValue schema,
                                                           const SchemaOptions& options = {},
                                                           const CompileLimits& limits = {});
// Any JSON object: what response_format json_object asks for.
Result<std::shared_ptr<const Grammar>> compile_json_object(const SchemaOptions& options = {});
Result<std::shared_ptr<const Grammar>> compile_gbnf(std::string_view text, const CompileLimits& limits = {});
Result<std::shared_ptr<const Grammar>> compile_lark(std::string_view text, const CompileLimits& limits = {});
// The whole answer matches, whether or not the pattern has anchors.
Result<std::shared_ptr<const Grammar>> compile_regex(std::string_view pattern,
                                                     const CompileLimits& limits = {});
Result<std::shared_ptr<const Grammar>> compile_choice(std::span<const std::string> choices,
                                                      const CompileLimits& limits = {});

// Of all constraints with a vocabulary.
struct MaskCounts {
  std::uint64_t found = 0;
  double seconds = 0;  // spent in finding them
};

// A model's tokens as a trie of their bytes, without control tokens. Made once a model; immutable.
class GrammarVocabulary {
 public:
  // `ends` are the tokens that may come where the text is complete. Masks have a bit for each of `size`
  // tokens. Those of `marks` that are control tokens come where a grammar has the mark, and nowhere else.
  static std::shared_ptr<const GrammarVocabulary> make(const Tokenizer& tokenizer,
                                                       std::span<const TokenId> ends, TokenId size,
                                                       std::span<const std::string_view> marks = {});
  virtual ~GrammarVocabulary() = default;
  virtual TokenId size() const = 0;
  virtual bool is_end(TokenId token) const = 0;
  // What a mark is in a grammar's text: bytes that no text has, or its spelling where it is no token.
  virtual std::string mark(std::string_view spelling) const = 0;
  // So far; from any thread.
  virtual MaskCounts mask_counts() const = 0;
};

// One answer's place in a grammar.
class GrammarConstraint : public TokenConstraint {
 public:
  // Whether the token may come next; cheaper than a mask.
  virtual bool allows(TokenId token) = 0;
  // Whether the text may end here.
  virtual bool complete() = 0;
};

std::unique_ptr<GrammarConstraint> start(std::shared_ptr<const Grammar> grammar,
                                         std::shared_ptr<const GrammarVocabulary> vocabulary);

}  // namespace nibble
