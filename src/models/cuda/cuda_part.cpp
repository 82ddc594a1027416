#include "models/cuda/cuda_part.h"

#include <bit>
#include <string>

namespace nibble {
namespace {

std::int64_t padded(std::int64_t group) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(group)));
}

Run run_of(const Cuts& cuts, int rank) { return {cuts.begin(rank), cuts.count(rank)}; }

}  // namespace

CudaPart whole_model(const ModelConfig& config) {
  const std::int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const std::int64_t padded_heads = kv_heads * padded(heads / kv_heads);
  return {.heads = {0, heads},
          .kv_heads = {0, kv_heads},
          .padded_heads = {0, padded_heads},
          .all_padded_heads = padded_heads,
          .experts = {0, config.num_local_experts},
          .vocabulary = {0, config.vocab_size}};
}

Result<CudaPart> cuda_part(const ModelConfig& config, const RankPart& part, bool experts_everywhere) {
  CudaPart own = whole_model(config);
  if (part.ranks == 1) return own;
  const std::int64_t group = own.group();
  own.rank = part.rank;
  own.ranks = part.ranks;
  own.heads = run_of(part.heads, part.rank);
  own.kv_heads = {part.kv_heads.begin, part.kv_heads.count};
  if (!part.whole_experts)
    return invalid_argument("ranks of GPUs have whole experts; give --ep as many as --tp");
  own.experts = run_of(part.experts, part.rank);
  own.experts_everywhere = experts_everywhere;
  for (std::size_t rank = 0; rank <= own.size(); ++rank)
    own.first_experts[rank] = static_cast<std::int32_t>(part.experts.at[rank]);
  own.vocabulary = run_of(part.vocabulary, part.rank);
  if (own.heads.count == 0 || own.experts.count == 0 || own.vocabulary.count == 0) {
    return invalid_argument("of " + std::to_string(part.ranks) + " ranks rank " + std::to_string(part.rank) +
                            " would have no heads, no experts or no part of the vocabulary");
  }
  const bool shares_keys = own.heads.count < group;
  if (shares_keys && padded(group) != group) {
    return invalid_argument("groups of " + std::to_string(group) +
                            " heads of queries cannot be cut among ranks, only those of a power of two");
  }
  if (shares_keys && padded(own.heads.count) != own.heads.count) {
    return invalid_argument("a rank would have " + std::to_string(own.heads.count) +
                            " of a group's heads of queries, which is no power of two");
  }
  own.padded_heads =
      shares_keys ? own.heads : Run{own.kv_heads.begin * padded(group), own.kv_heads.count * padded(group)};
  return own;
}

}  // namespace nibble
