#include "models/cuda/latent_block.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/check.h"
#include "models/latent_mixer.h"
#include "models/rope_frequencies.h"
#include "ops/rope/cuda/rope_cuda.h"

namespace nibble {
namespace {

// As models/latent_mixer.cpp has it.
constexpr float latent_norm_eps = 1e-6f;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

struct LatentFormats {
  TensorFormat down = TensorFormat::bf16, query = TensorFormat::bf16, output = TensorFormat::bf16;
};
LatentFormats formats_of(const ModelConfig& config, std::int64_t layer) {
  LatentFormats formats;
  visit_weights(config, [&](const Weight& weight) {
    if (weight.layer != layer) return;
    switch (weight.role) {
      case WeightRole::latent_down: formats.down = weight.format; break;
      case WeightRole::query: formats.query = weight.format; break;
      case WeightRole::attention_output: formats.output = weight.format; break;
      default: break;
    }
  });
  return formats;
}

// Rows of what latents' matrix lies below.
std::int64_t rows_above(const ModelConfig& config, const CudaPart& part) {
  return config.latent.query_rank > 0 ? config.latent.query_rank : part.heads.count * config.head_dim;
}

Status check_shapes(const ModelConfig& config) {
  const LatentNumbers& latent = config.latent;
  if (!latent_cuda_takes(static_cast<int>(latent.rank), static_cast<int>(latent.rotated_dim))) {
    return invalid_argument("its latents have " + std::to_string(latent.rank) +
                            " dimensions and rotated keys " + std::to_string(latent.rotated_dim) +
                            ", and the kernels take multiples of 16, up to 512 and 576 together");
  }
  if (latent.value_dim % 16 != 0) {
    return invalid_argument("its heads' values have " + std::to_string(latent.value_dim) +
                            " dimensions, and the kernels take multiples of 16");
  }
  return {};
}

// Of a matrix of attention, beside the one that it shares a product with.
Status check_format(const Weight& weight, std::optional<TensorFormat> above) {
  const auto refuse = [&](const std::string& what) {
    return invalid_argument(weight.name + " is in " + std::string(tensor_format_name(weight.format)) +
                            ", and " + what);
  };
  if (!device_matrix_takes(weight.format))
    return refuse(std::string("its kernels take ") + device_matrix_formats);
  if (above && weight.format != *above)
    return refuse("that of queries, with which it is multiplied, in " +
                  std::string(tensor_format_name(*above)));
  if (weight.role == WeightRole::latent_heads || weight.format == TensorFormat::bf16) return {};
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
  if (rows % block_granule_rows == 0 && cols % block_granule_rows == 0) return {};
  return refuse("of " + std::to_string(rows) + " x " + std::to_string(cols) +
                ", which are not multiples of " + std::to_string(block_granule_rows));
}

}  // namespace

LatentBlockWeights lay_out_latent_weights(const ModelConfig& config, const CudaPart& part, std::int64_t layer,
                                          DeviceArena& arena) {
  const LatentNumbers& latent = config.latent;
  const LatentFormats formats = formats_of(config, layer);
  const std::int64_t hidden = config.hidden_size, heads = part.heads.count;
  const std::int64_t latent_row = stacked_row(formats.down, rows_above(config, part));
  LatentBlockWeights weights;
  weights.norm = arena.take<Bf16>(size(hidden));
  weights.down =
      DeviceMatrix::lay_out(arena, formats.down, latent_row + latent.rank + latent.rotated_dim, hidden);
  weights.head_dim = static_cast<int>(config.head_dim);
  weights.latent_row = static_cast<int>(latent_row);
  if (latent.query_rank > 0) {
    weights.query_norm = arena.take<Bf16>(size(latent.query_rank));
    weights.query = DeviceMatrix::lay_out(arena, formats.query, heads * config.head_dim, latent.query_rank);
  }
  weights.latent_norm = arena.take<Bf16>(size(latent.rank));
  weights.keys = arena.take<Bf16>(size(heads * latent.rank * latent_columns(latent.plain_dim)));
  weights.values = arena.take<Bf16>(size(heads * latent.value_dim * latent_columns(latent.rank)));
  weights.output =
      DeviceMatrix::lay_out(arena, formats.output, hidden, config.num_attention_heads * latent.value_dim);
  weights.heads = {.heads = static_cast<int>(heads),
                   .first_kept = static_cast<int>(part.heads.begin),
                   .plain = static_cast<int>(latent.plain_dim),
                   .value_dim = static_cast<int>(latent.value_dim),
                   .rank = static_cast<int>(latent.rank),
                   .keys = weights.keys,
                   .values = weights.values};
  return weights;
}

Status place_latent(WeightPlacing& placing, const Weight& weight, const Run& heads,
                    const LatentBlockWeights& to) {
  switch (weight.role) {
    case WeightRole::query_down: return place(placing, weight, to.down);
    case WeightRole::query:
      return place_rows(placing, weight, {heads.begin * to.head_dim, heads.count * to.head_dim},
                        to.query_norm != nullptr ? to.query : to.down);
    case WeightRole::latent_down: return place(placing, weight, to.down, to.latent_row);
    case WeightRole::query_down_norm: return placing.plain(placed_tensor(weight), to.query_norm);
    case WeightRole::latent_norm: return placing.plain(placed_tensor(weight), to.latent_norm);
    case WeightRole::latent_heads: return placing.latent_heads(weight, to.heads);
    case WeightRole::attention_output: return place(placing, weight, to.output);
    default: NIBBLE_CHECK(false, weight.name);
  }
  return {};
}

Status check_latent_block(const ModelConfig& config) {
  if (config.latent.rank == 0) return {};
  NIBBLE_RETURN_IF_ERROR(check_shapes(config));
  std::optional<TensorFormat> above;
  Status status;
  visit_weights(config, [&](const Weight& weight) {
    if (!status.ok() || !weight.is_matrix() || weight.part != WeightPart::attention) return;
    const bool is_above = weight.role == WeightRole::query_down ||
                          (weight.role == WeightRole::query && config.latent.query_rank == 0);
    if (is_above) above = weight.format;
    status = check_format(weight, weight.role == WeightRole::latent_down ? above : std::nullopt);
  });
  return status;
}

LatentBlock::LatentBlock(const ModelConfig& config, const CudaForwardLimits& limits,
                         const DecoderStream& stream, int processors, CudaPlace& place, DeviceArena& arena)
    : stream_(stream),
      latent_(config.latent),
      heads_(static_cast<int>(place.part.heads.count)),
      rows_at_once_(latent_rows_at_once(limits.rows, heads_)),
      scale_(latent_score_scale(config)),
      concentration_(rope_frequencies(config).concentration),
      output_({.rows = place.part.alone() ? rows_at_once_ : limits.rows,
               .columns = {place.part.heads.begin * latent_.value_dim, heads_ * latent_.value_dim},
               .all_columns = static_cast<int>(config.num_attention_heads * latent_.value_dim)},
              stream, place, arena) {
  const std::size_t rows = size(limits.rows), some = size(rows_at_once_), queries = some * size(heads_);
  const std::int64_t width = latent_.rank + latent_.rotated_dim;
  const std::size_t launches = size((limits.rows + rows_at_once_ - 1) / rows_at_once_);
  cos_ = arena.take<float>(rows * size(latent_.rotated_dim / 2));
  sin_ = arena.take<float>(rows * size(latent_.rotated_dim / 2));
  work_ =
      arena.take<std::uint8_t>(launches * size(latent_work_bytes(rows_at_once_, limits.sequences, heads_)));
  down_ =
      arena.take<float>(some * size(stacked_row(TensorFormat::bf16, rows_above(config, place.part)) + width));
  query_tiles_ = arena.take<std::uint8_t>(
      DenseShape{0, static_cast<int>(latent_.query_rank)}.token_bytes(rows_at_once_));
  q_ = latent_.query_rank > 0 ? arena.take<float>(queries * size(config.head_dim)) : nullptr;
  plain_ = arena.take<Bf16>(queries * size(latent_columns(latent_.plain_dim)));
  absorbed_ = arena.take<Bf16>(queries * size(width));
  sums_ = arena.take<Bf16>(queries * size(latent_columns(latent_.rank)));
  totals_ = arena.take<float>(size(latent_total_floats(processors)));
  partials_ = arena.take<float>(size(latent_partial_floats(latent_.rank)));
}

namespace {

LatentCudaKernels kernels_for(const CudaForwardInput& input) {
  return {.short_context = input.later_clusters == 0 && input.sequences == 1};
}

}  // namespace

void LatentBlock::begin(const CudaForwardInput& input, const float* inv_freq, cudaStream_t stream) const {
  rope_angles_cuda({.inv_freq = inv_freq,
                    .concentration = concentration_,
                    .positions = input.positions,
                    .rows = input.rows,
                    .half = static_cast<int>(latent_.rotated_dim / 2),
                    .cos = cos_,
                    .sin = sin_},
                   stream);
  // Latents see all positions, and so have pages of the first group.
  latent_work_cuda({.kernels = kernels_for(input),
                    .sequences = input.sequence_rows[0],
                    .sequence_count = input.sequences,
                    .heads = heads_,
                    .rows = input.rows,
                    .rows_at_once = rows_at_once_,
                    .work = work_},
                   stream);
}

Status LatentBlock::project(const LatentBlockWeights& weights, const Cache& cache,
                            const CudaForwardInput& input, const Rows& rows, cudaStream_t stream) const {
  const int pairs = static_cast<int>(latent_.rotated_dim / 2),
            query_rank = static_cast<int>(latent_.query_rank);
  const float *const cos = cos_ + size(rows.first) * size(pairs), *const sin =
                                                                      sin_ + size(rows.first) * size(pairs);
  NIBBLE_RETURN_IF_ERROR(multiply(stream_, weights.down,
                                  tiles_from(stream_.normed_tiles, rows.first, rows.count, stream_.hidden),
                                  down_, stream));
  NIBBLE_RETURN_IF_ERROR(latent_rows_cuda({.down = down_,
                                           .stride = weights.down.rows(),
                                           .rows = rows.count,
                                           .eps = latent_norm_eps,
                                           .query_rank = query_rank,
                                           .query_norm = weights.query_norm,
                                           .query_tiles = query_tiles_,
                                           .latent_at = weights.latent_row,
                                           .latent_norm = weights.latent_norm,
                                           .cos = cos,
                                           .sin = sin,
                                           .kv_slots = input.kv_slots[cache.group] + rows.first,
                                           .cache = cache.layer},
                                          stream));
  if (query_rank > 0)
    NIBBLE_RETURN_IF_ERROR(multiply(stream_, weights.query, {query_tiles_, rows.count}, q_, stream));
  const LatentHeadsRepack& shapes = weights.heads;
  NIBBLE_RETURN_IF_ERROR(
      split_queries_cuda({.q = query_rank > 0 ? q_ : down_,
                          .stride = query_rank > 0 ? weights.query.rows() : weights.down.rows(),
                          .rows = rows.count,
                          .heads = heads_,
                          .plain = shapes.plain,
                          .rotated = 2 * pairs,
                          .cos = cos,
                          .sin = sin,
                          .plain_rows = plain_,
                          .rank = shapes.rank,
                          .absorbed = absorbed_},
                         stream));
  return head_products_cuda({.weights = weights.keys,
                             .heads = heads_,
                             .n = shapes.rank,
                             .k = shapes.plain,
                             .x = plain_,
                             .rows = rows.count,
                             .y = absorbed_,
                             .y_head = cache.layer.width()},
                            stream);
}

Status LatentBlock::attend(const Cache& cache, const CudaForwardInput& input, const Rows& rows,
                           cudaStream_t stream) const {
  const std::size_t launch = size(rows.first / rows_at_once_);
  return latent_attention_cuda(
      {.kernels = kernels_for(input),
       .q = absorbed_,
       .rows = rows.count,
       .heads = heads_,
       .work = work_ + launch * size(latent_work_bytes(rows_at_once_, input.sequences, heads_)),
       .sequence_count = input.sequences,
       .rows_at_once = rows_at_once_,
       .page_table = input.page_table,
       .page_size = cache.page_size,
       .cache = cache.layer,
       .settled = input.settled && cache.behind_a_layer && input.rows <= rows_at_once_,
       .scale = scale_,
       .out = sums_,
       .totals = totals_,
       .partials = partials_},
      stream);
}

Status LatentBlock::run(const LatentBlockWeights& weights, const Cache& cache, const PendingSum& pending,
                        const CudaForwardInput& input, cudaStream_t stream) const {
  const RankRows own = stream_.rows_of_rank(input);
  NIBBLE_RETURN_IF_ERROR(stream_.norm_tiles(stream_.norm(weights.norm, pending, nullptr, own), own, stream));
  const bool alone = stream_.is_alone();
  const GatheredProduct::Factors output{.weight = weights.output};
  for (int first = 0; first < input.rows; first += rows_at_once_) {
    const Rows rows{first, std::min(rows_at_once_, input.rows - first)};
    NIBBLE_RETURN_IF_ERROR(project(weights, cache, input, rows, stream));
    NIBBLE_RETURN_IF_ERROR(attend(cache, input, rows, stream));
    NIBBLE_RETURN_IF_ERROR(head_products_cuda({.weights = weights.values,
                                               .heads = heads_,
                                               .n = weights.heads.value_dim,
                                               .k = weights.heads.rank,
                                               .x = sums_,
                                               .rows = rows.count,
                                               .tiles = output_.input(alone ? 0 : first)},
                                              stream));
    if (!alone) continue;
    NIBBLE_RETURN_IF_ERROR(output_.multiply(output, rows.count, {0, rows.count, 0},
                                            stream_.delta + size(first) * size(stream_.hidden), stream));
  }
  return alone ? Status() : output_.multiply(output, input.rows, own, stream_.delta, stream);
}

}  // namespace nibble
