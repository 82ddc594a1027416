// Rank files of tiktoken: a base64 token and its rank a line.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "text/tokenizer_parts.h"

namespace nibble {

struct RankFile {
  std::vector<char> bytes;  // of all tokens, which the builder's entries point into
  VocabularyBuilder builder;
  std::vector<TokenId> plain;  // as many as there are ranks
};
Result<RankFile> read_rank_file(std::string_view text);

// `whose`: of which model or encoding the control tokens and the pattern are, for messages.
Result<TokenizerParts> parts_of_ranks(RankFile file, std::vector<ControlToken> controls,
                                      std::string_view pattern, std::string_view whose);

}  // namespace nibble
