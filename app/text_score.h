// Log-likelihood of a text under a model.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace nibble {

struct TextScore {
  std::vector<float> logprobs;  // [text tokens]; the first has none
  std::size_t tokens = 0;       // that were scored
  double nll = 0;               // their sum, in nats
  std::size_t bytes = 0;        // of the scored tokens

  double perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }
  double bits_per_byte() const { return nll / std::log(2.0) / static_cast<double>(bytes); }
};

// Of at least two ids, in windows as app/score_windows.h says. Shows its progress on a terminal; Ctrl-C stops
// it.
Result<TextScore> score_ids(Engine& engine, const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                            int window);

}  // namespace nibble
