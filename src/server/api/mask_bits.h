// Single tokens of a mask.
#pragma once

#include "core/token_constraint.h"

namespace nibble::api {

inline void allow(TokenMask mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
}
inline void forbid(TokenMask mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] &= ~(1u << token % 32);
}

}  // namespace nibble::api
