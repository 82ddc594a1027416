// embedding: row ids[i] of the table becomes row i of the output; exact.
#pragma once

#include <span>

#include "base/token_id.h"
#include "ops/linear/dot_tile.h"
#include "ops/op_context.h"

namespace nibble {

// ids are inside the table (the engine refuses others at its door); out is [ids, table.cols].
void embedding(OpContext& context, std::span<const TokenId> ids, const Bf16Matrix& table, float* out);

}  // namespace nibble
