// How spread experts' tokens travel, as plan, forward and memory agree on it.
#pragma once

#include <string_view>

#include "comm/token_exchange.h"
#include "plan/model_traits.h"
#include "plan/rank_part.h"

namespace nibble {

// Of a name in exchanges() (plan/kernel_table.h).
ExchangeKind exchange_kind(std::string_view name);

// For steps of at most so many rows, of which each rank sends its equal share, in rounds where a round is
// shorter.
ExchangeShape exchange_shape(const ModelTraits& model, const RankPart& part, ExchangeKind kind,
                             std::int64_t rows);

}  // namespace nibble
