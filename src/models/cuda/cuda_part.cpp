#include "models/cuda/cuda_part.h"

#include <algorithm>
#include <bit>
#include <string>

#include "ops/linear/cuda/dense_tiles.h"

namespace nibble {
namespace {

std::int64_t padded(std::int64_t group) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(group)));
}

Run run_of(const Cuts& cuts, int rank) { return {cuts.begin(rank), cuts.count(rank)}; }

// What ranks gather lies in whole blocks of columns.
Status check_columns(const char* what, std::int64_t columns) {
  if (columns % dense_k == 0) return {};
  return invalid_argument("a rank would have " + std::to_string(columns) + " columns of what " + what +
                          " gives, which are no multiple of " + std::to_string(dense_k));
}

bool has(const ModelConfig& config, Mixer mixer) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [&](const LayerDescription& layer) { return layer.mixer == mixer; });
}

// Of each kind of mixer that the model has.
Status check_mixers(const ModelConfig& config, const CudaPart& own) {
  if (has(config, Mixer::attention))
    NIBBLE_RETURN_IF_ERROR(check_columns("attention", own.padded_heads.count * config.head_dim));
  if (has(config, Mixer::latent))
    NIBBLE_RETURN_IF_ERROR(check_columns("latent attention", own.heads.count * config.latent.value_dim));
  const DeltaNumbers& delta = config.delta;
  if (delta.key_heads == 0) return {};
  if (delta.key_heads % own.ranks != 0) {
    return invalid_argument(std::to_string(delta.key_heads) +
                            " heads of keys of its gated delta rule do not divide among " +
                            std::to_string(own.ranks) + " ranks");
  }
  return check_columns("the gated delta rule",
                       own.state_heads.count * (delta.value_heads / delta.key_heads) * delta.value_dim);
}

}  // namespace

CudaPart whole_model(const ModelConfig& config) {
  const std::int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const bool latent = config.latent.rank > 0;  // whose heads are of no groups
  const std::int64_t padded_heads = latent ? heads : kv_heads * padded(heads / kv_heads);
  return {.heads = {0, heads},
          .kv_heads = {0, kv_heads},
          .padded_heads = {0, padded_heads},
          .all_padded_heads = padded_heads,
          .state_heads = {0, config.delta.key_heads},
          .dense_columns = {0, config.dense_width},
          .experts = {0, config.num_local_experts},
          .vocabulary = {0, config.vocab_size},
          .all_experts = config.num_local_experts};
}

Result<CudaPart> cuda_part(const ModelConfig& config, const RankPart& part, bool experts_everywhere) {
  CudaPart own = whole_model(config);
  if (part.ranks == 1) return own;
  own.rank = part.place;
  own.ranks = part.sharers;
  own.owner = part.owner();
  own.owners = part.ranks / part.sharers;
  if (!part.whole_experts)
    return invalid_argument("ranks of GPUs have whole experts; give --ep as many as --tp");
  own.experts = run_of(part.experts, part.rank);
  own.experts_everywhere = experts_everywhere;
  for (std::size_t rank = 0; rank <= static_cast<std::size_t>(part.ranks); ++rank)
    own.first_experts[rank] = static_cast<std::int32_t>(part.experts.at[rank]);
  const bool no_experts = config.num_local_experts > 0 && own.experts.count == 0;
  const auto refused = [&](const char* what) {
    return invalid_argument("of " + std::to_string(part.ranks) + " ranks rank " + std::to_string(part.rank) +
                            " would have " + what);
  };
  if (own.alone()) return no_experts ? refused("no experts") : Result<CudaPart>(own);
  const std::int64_t group = own.group();
  own.heads = run_of(part.heads, part.place);
  own.kv_heads = {part.kv_heads.begin, part.kv_heads.count};
  own.vocabulary = run_of(part.vocabulary, part.place);
  own.state_heads = run_of(part.state_heads, part.place);
  own.dense_columns = run_of(part.dense_width, part.place);
  const bool no_columns = config.dense_width > 0 && own.dense_columns.count == 0;
  if (own.heads.count == 0 || no_experts || no_columns || own.vocabulary.count == 0)
    return refused("no heads, no experts, no columns of dense layers or no part of the vocabulary");
  const bool latent = config.latent.rank > 0, shares_keys = !latent && own.heads.count < group;
  if (shares_keys && padded(group) != group) {
    return invalid_argument("groups of " + std::to_string(group) +
                            " heads of queries cannot be cut among ranks, only those of a power of two");
  }
  if (shares_keys && padded(own.heads.count) != own.heads.count) {
    return invalid_argument("a rank would have " + std::to_string(own.heads.count) +
                            " of a group's heads of queries, which is no power of two");
  }
  own.padded_heads = latent || shares_keys
                         ? own.heads
                         : Run{own.kv_heads.begin * padded(group), own.kv_heads.count * padded(group)};
  NIBBLE_RETURN_IF_ERROR(check_mixers(config, own));
  return own;
}

CudaPart CudaPart::among_all() const {
  CudaPart all = *this;
  all.rank = owner * ranks + rank;
  all.ranks = owners * ranks;
  return all;
}

CudaPlace CudaPlace::among_all() const {
  return {.part = part.among_all(), .room = room_of_all, .shared = shared_by_all};
}

ModelConfig config_of_caches(const ModelConfig& config, const CudaPart& part) {
  ModelConfig own = config;
  own.num_key_value_heads = part.kv_heads.count;
  if (own.delta.key_heads > 0) {
    own.delta.value_heads = part.state_heads.count * (config.delta.value_heads / config.delta.key_heads);
    own.delta.key_heads = part.state_heads.count;
  }
  return own;
}

}  // namespace nibble
