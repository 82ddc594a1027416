// What a tokenizer file, of whatever kind, comes down to; the readers make it, the Tokenizer runs it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

namespace nibble {

// A token that text becomes only where its caller vouches for it.
struct ControlToken {
  TokenId id;
  std::string spelling;
  bool hidden = true;  // from readers of an answer: what tokenizer.json calls "special"
};

struct TokenizerParts {
  std::unique_ptr<const Vocabulary> vocabulary;  // control tokens included
  std::vector<ControlToken> controls;
  std::vector<TokenId> before_text, behind_text;  // control tokens around a text that is given as it is
  BpeModel::Parts bpe;
  bool normalize_nfc = false;
  bool prefix_space = false;  // text that does not begin with a space is given one
  PreTokenizer pre_tokenizer;
};

// Gathers a vocabulary and refuses ids and tokens that contradict each other.
class VocabularyBuilder {
 public:
  // `bytes` must stay where they are until finish().
  Status add(std::int64_t id, std::string_view bytes);
  bool has(std::int64_t id) const;
  // Ids may leave room for tokens added later, but not more than the vocabulary is worth.
  Result<std::unique_ptr<const Vocabulary>> finish() const;

 private:
  std::vector<VocabularyEntry> entries_;
  std::vector<bool> taken_;  // [id]
};

// The token of each byte; refused unless every byte that valid UTF-8 can have has one.
Result<std::array<TokenId, 256>> byte_tokens(const TokenFinder& finder);

// The text of a tokenizer.json.
Result<TokenizerParts> read_tokenizer_json(std::string json);

// The text of a rank file of tiktoken: a "base64 rank" pair a line. `encoding` is "o200k_base" or
// "o200k_harmony", which name the split pattern and the control tokens.
Result<TokenizerParts> read_tiktoken(std::string_view text, std::string_view encoding);

// The texts of Kimi's tiktoken.model, a rank file, and of the tokenizer_config.json beside it, which names
// the control tokens; the split pattern stands in the model's own code.
Result<TokenizerParts> read_kimi_tokenizer(std::string_view ranks, std::string tokenizer_config);

}  // namespace nibble
