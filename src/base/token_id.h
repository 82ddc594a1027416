#pragma once

#include <cstdint>

namespace nibble {

using TokenId = std::int32_t;

// Added to a token's logit.
struct TokenBias {
  TokenId id = 0;
  float bias = 0;
};

}  // namespace nibble
