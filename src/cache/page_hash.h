// Names of pages by what lies before and in them: a keyed hash (base/sip_hash.h), each page's over
// its parent's and its own tokens. Without the key nobody can find prompts whose names collide; names only
// lead to a page, whose tokens are compared then.
#pragma once

#include <span>
#include <string_view>

#include "base/sip_hash.h"
#include "base/token_id.h"

namespace nibble {

using PageHash = KeyedHash;

PageHash keyed_hash(const HashKey& key, std::string_view bytes);
// Of a page's tokens after the page named `parent`.
PageHash page_hash(const HashKey& key, const PageHash& parent, std::span<const TokenId> tokens);

}  // namespace nibble
