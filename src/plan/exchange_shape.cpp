#include "plan/exchange_shape.h"

#include <algorithm>

namespace nibble {

ExchangeKind exchange_kind(std::string_view name) {
  if (name == "normal") return ExchangeKind::normal;
  if (name == "low_latency") return ExchangeKind::low_latency;
  return ExchangeKind::none;
}

ExchangeShape exchange_shape(const ModelTraits& model, const RankPart& part, ExchangeKind kind,
                             std::int64_t rows) {
  std::int64_t most = (rows + part.sharers - 1) / part.sharers;
  if (kind == ExchangeKind::low_latency) {
    const std::int64_t packet =
        (model.experts_per_token + model.hidden) * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t fit = (rank_slot_bytes(model) - static_cast<std::int64_t>(sizeof(float))) / packet;
    most = std::clamp<std::int64_t>(most, 1, std::min<std::int64_t>(low_latency_rows / part.ranks, fit));
  }
  return {.kind = kind,
          .members = part.ranks,
          .experts = part.experts.at,
          .top_k = static_cast<int>(model.experts_per_token),
          .hidden = model.hidden,
          .most_rows = static_cast<int>(most)};
}

}  // namespace nibble
