#include "plan/rank_part.h"

#include <algorithm>

#include "base/check.h"
#include "comm/leaves.h"

namespace nibble {
namespace {

constexpr std::int64_t dense_block = 64;  // of K, of products on a GPU

// Whole units of `unit`, the last one maybe shorter. Parts of eight ranks join to those of four and of two.
Cuts cut(std::int64_t size, std::int64_t unit, int ranks) {
  Cuts cuts;
  const std::int64_t units = (size + unit - 1) / unit;
  for (int rank = 0; rank < ranks; ++rank)
    cuts.at[static_cast<std::size_t>(rank) + 1] = std::min(shard_of(units, rank, ranks).end * unit, size);
  return cuts;
}

// Groups of heads that share keys and values, or heads of one group where there are fewer groups than ranks.
Cuts cut_heads(std::int64_t heads, std::int64_t kv_heads, int ranks) {
  const std::int64_t group = heads / kv_heads;
  if (kv_heads >= ranks || ranks % kv_heads != 0) return cut(kv_heads, 1, ranks).times(group);
  const int sharing = ranks / static_cast<int>(kv_heads);
  Cuts cuts;
  for (int rank = 0; rank < ranks; ++rank) {
    cuts.at[static_cast<std::size_t>(rank) + 1] =
        rank / sharing * group + shard_of(group, rank % sharing, sharing).end;
  }
  return cuts;
}

}  // namespace

std::int64_t Cuts::most(int ranks) const {
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, count(rank));
  return most;
}

Cuts Cuts::times(std::int64_t factor) const {
  Cuts cuts = *this;
  for (std::int64_t& each : cuts.at) each *= factor;
  return cuts;
}

std::int64_t RankPart::own_width() const {
  return whole_experts ? width.end(sharers - 1) : width.count(place);
}
std::int64_t RankPart::own_expert_rows() const {
  return whole_experts ? hidden.end(sharers - 1) : hidden.count(place);
}

int threads_of_rank(int threads, int ranks, int rank) {
  return std::max(threads / ranks + (rank < threads % ranks ? 1 : 0), 1);
}

std::int64_t rank_slot_bytes(const ModelTraits& model) {
  constexpr std::int64_t usual = std::int64_t{1} << 20;
  const std::int64_t widest = std::max({model.vocabulary, model.hidden, model.heads * model.query_dim,
                                        model.heads * model.value_dim, std::int64_t{model.delta.values()},
                                        model.expert_width, model.dense_width, model.shared_width});
  return std::max(usual, widest * static_cast<std::int64_t>(sizeof(float)));
}

std::int64_t most_kv_heads(std::int64_t kv_heads, int ranks) {
  return kv_heads >= ranks ? cut(kv_heads, 1, ranks).most(ranks) : std::min<std::int64_t>(kv_heads, 1);
}

DeltaShape with_key_heads(const DeltaShape& shape, std::int64_t key_heads) {
  if (shape.key_heads == 0) return shape;
  DeltaShape part = shape;
  part.key_heads = static_cast<int>(key_heads);
  part.value_heads = part.key_heads * (shape.value_heads / shape.key_heads);
  return part;
}

DeltaShape most_of_state(const DeltaShape& shape, int ranks) {
  return with_key_heads(shape, cut(shape.key_heads, 1, ranks).most(ranks));
}

RankPart rank_part(const ModelTraits& model, int ranks, int expert_ranks, int rank) {
  NIBBLE_CHECK((ranks == 1 || ranks == 2 || ranks == 4 || ranks == 8) && rank >= 0 && rank < ranks);
  NIBBLE_CHECK(expert_ranks == 1 || expert_ranks == ranks, "experts are spread over all ranks or over none");
  RankPart part{.rank = rank,
                .ranks = ranks,
                .sharers = ranks,
                .place = rank,
                .whole_experts = expert_ranks > 1,
                .heads = cut_heads(model.heads, model.kv_heads, ranks),
                .kv_heads = {},
                .hidden = cut(model.hidden, part_rows, ranks),
                .width = cut(model.expert_width, part_rows, ranks),
                .experts = cut(model.experts, 1, ranks),
                .vocabulary = cut(model.vocabulary, part_rows, ranks),
                .state_heads = cut(model.delta.key_heads, 1, ranks),
                .dense_width = cut(model.dense_width, dense_block, ranks),
                .shared_width = cut(model.shared_width, part_rows, ranks)};
  const std::int64_t group = model.heads / model.kv_heads, first = part.heads.begin(rank) / group;
  if (part.heads.count(rank) > 0)
    part.kv_heads = {.begin = first, .count = (part.heads.end(rank) + group - 1) / group - first};
  return part;
}

RankPart owner_part(const ModelTraits& model, int ranks, int owners, int rank) {
  NIBBLE_CHECK(rank >= 0 && rank < ranks && ranks <= most_ranks && ranks % owners == 0);
  const int sharers = ranks / owners;
  RankPart part = rank_part(model, sharers, 1, rank % sharers);
  part.rank = rank;
  part.ranks = ranks;
  part.whole_experts = true;
  part.experts = cut(model.experts, 1, ranks);
  return part;
}

}  // namespace nibble
