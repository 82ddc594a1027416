// Text to token ids and back.
//
// Control tokens are all the added tokens of a tokenizer.json, "special" or not: <think> and <tool_call>
// steer a model no less than <|im_end|> does. Byte-pair encoding never makes one, so a user's text can never
// become one. Which of them a reader of an answer sees is another question: those that the file calls special
// are hidden, the others are part of the text. Text that is not UTF-8 is read as decode() would show it, with
// U+FFFD for what is ill-formed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"

namespace nibble {

struct TokenizerParts;

// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Immutable once loaded; encode and decode may be called from any number of threads at once.
class Tokenizer {
 public:
  // A folder with tokenizer.json, or with tiktoken.model and tokenizer_config.json as Kimi has them; a
  // tokenizer.json file; or a .tiktoken rank file (then `encoding` is "o200k_base" or "o200k_harmony").
  static Result<Tokenizer> load(const std::filesystem::path& path, std::string_view encoding = {});
  // What a reader made of a file (tokenizer_parts.h).
  static Tokenizer from_parts(TokenizerParts parts);

  // Texts have less than 4 GiB. Control tokens spelled in the text are plain text.
  std::vector<TokenId> encode(std::string_view text) const;
  // Control tokens count as such where their spelling lies wholly inside one of `trusted` (ascending,
  // disjoint spans); everywhere else they are plain text. This is what keeps a user's text inert inside a
  // rendered prompt, without cutting the text where a token could span the seam.
  std::vector<TokenId> encode(std::string_view text, std::span<const TextSpan> trusted) const;
  std::vector<TokenId> encode_trusted(std::string_view text) const;

  // The control tokens that the tokenizer's file puts before and behind a text that is given as it is, such
  // as <s>. No encode() adds them: chat templates spell them out.
  std::span<const TokenId> before_text() const;
  std::span<const TokenId> behind_text() const;

  // The exact bytes of a token (a control token's are its spelling); empty for an id outside the vocabulary.
  // A token need not be valid UTF-8 by itself: StreamDecoder joins tokens to text.
  std::string_view bytes(TokenId id) const;
  // Bytes of all tokens joined, with what is not UTF-8 replaced by U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool show_hidden = true) const;

  bool is_control(TokenId id) const;
  bool is_hidden(TokenId id) const;  // a control token that no answer shows
  std::optional<TokenId> control_id(std::string_view spelling) const;
  // One more than the largest id.
  TokenId vocabulary_size() const;

 private:
  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace nibble
