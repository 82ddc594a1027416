// Names of pages by what lies before and in them: a keyed hash (SipHash-2-4 with 128 bits), each page's over
// its parent's and its own tokens. Without the key nobody can find prompts whose names collide; names only
// lead to a page, whose tokens are compared then.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/token_id.h"

namespace nibble {

using HashKey = std::array<std::uint64_t, 2>;

struct PageHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const PageHash&) const = default;
};

PageHash keyed_hash(const HashKey& key, std::string_view bytes);
// Of a page's tokens after the page named `parent`.
PageHash page_hash(const HashKey& key, const PageHash& parent, std::span<const TokenId> tokens);

}  // namespace nibble
