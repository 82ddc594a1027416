#include "models/cuda/decoder_stream.h"

#include <algorithm>
#include <type_traits>

#include "ops/peer_gather/cuda/peer_gather_cuda.h"

namespace nibble {
namespace {

// From so many rows on what each rank saves is more than what travels in addition.
constexpr int rows_to_share = 256;

}  // namespace

DecoderStream DecoderStream::lay_out(const ModelConfig& config, const CudaForwardLimits& limits,
                                     CudaPlace& place, int processors, DeviceArena& arena) {
  DecoderStream stream{.room = place.room,
                       .merge = place.merge,
                       .hidden = static_cast<int>(config.hidden_size),
                       .eps = static_cast<float>(config.rms_norm_eps),
                       .norms_less_one = config.zero_centred_norms,
                       .launches = limits.launches};
  const std::size_t rows = static_cast<std::size_t>(limits.rows),
                    hidden = static_cast<std::size_t>(stream.hidden);
  stream.residual = arena.take<float>(rows * hidden);
  stream.delta = arena.take<float>(rows * hidden);
  stream.normed_tiles = place.take_shared<std::uint8_t>(stream.tile_bytes(limits.rows), arena);
  stream.linear.few_sums =
      arena.take<float>(linear_few_floats(processors, std::max(limits.rows, limits.logit_rows)));
  stream.linear.many_sums = arena.take<float>(linear_many_floats(processors));
  stream.linear.arrived = arena.take<std::uint32_t>(static_cast<std::size_t>(processors));
  stream.linear.stuck = limits.stuck;
  return stream;
}

// Where groups have sequences of their own, all groups do it alike.
RankRows DecoderStream::rows_of_rank(const CudaForwardInput& input) const {
  if (room == nullptr || input.most_rows < rows_to_share) return {0, input.rows, 0};
  const int parts = room->ranks * token_group;
  const int a_rank = (input.most_rows + parts - 1) / parts * token_group;
  const int first = std::min(room->rank * a_rank, input.rows);
  return {first, std::min(a_rank, input.rows - first), a_rank};
}

AddRmsNormCudaArgs DecoderStream::norm(const Bf16* weight, const PendingSum& pending, Bf16* plain,
                                       const RankRows& own) const {
  const std::size_t first = static_cast<std::size_t>(own.first),
                    at = first * static_cast<std::size_t>(hidden);
  const auto from_first = [](auto* rows, std::size_t offset) {
    return rows == nullptr ? rows : rows + offset;
  };
  ExpertParts experts = pending.experts;
  const std::size_t choices = static_cast<std::size_t>(experts.top_k);
  experts.products = from_first(experts.products, choices * at);
  experts.expert_ids = from_first(experts.expert_ids, choices * first);
  experts.expert_weights = from_first(experts.expert_weights, choices * first);
  return {.residual = pending.residual + at,
          .residual_out = residual + at,
          .delta = from_first(pending.delta, at),
          .experts = experts,
          .weight = weight,
          .weight_less_one = norms_less_one,
          .out = from_first(plain, first * static_cast<std::size_t>(padded())),
          .out_stride = plain == nullptr ? 0 : padded(),
          .out_tiles = normed_tiles + tile_bytes(own.first),
          .rows = own.count,
          .hidden = hidden,
          .eps = eps};
}

Status DecoderStream::norm_tiles(const AddRmsNormCudaArgs& norm, const RankRows& own,
                                 cudaStream_t stream) const {
  if (own.count > 0) NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda(norm, stream));
  if (!own.are_shared()) return {};
  const std::size_t group = tile_bytes(token_group);
  return gather_rows(normed_tiles, group,
                     {own.first / token_group, (own.count + token_group - 1) / token_group, own.a_rank}, true,
                     stream);
}

Status DecoderStream::gather_rows(void* rows, std::size_t row_bytes, const RankRows& own, bool meets,
                                  cudaStream_t stream) const {
  std::byte* const at = static_cast<std::byte*>(rows) + static_cast<std::size_t>(own.first) * row_bytes;
  return gather_columns_cuda(*room,
                             {.from = at,
                              .from_stride = row_bytes,
                              .to = at,
                              .to_stride = row_bytes,
                              .bytes = row_bytes,
                              .rows = own.count,
                              .meets = meets},
                             stream);
}

Status multiply_blocks(const DecoderStream& decoder, const DenseBlocks& weight, const TokenTiles& x, float* y,
                       int y_stride, cudaStream_t stream) {
  return std::visit(
      [&]<class Codes>(const BlockMatrices<Codes>& matrix) {
        BlockLinearCudaArgs<Codes> args{.x = x, .weight = matrix, .y = y, .y_stride = y_stride};
        if (std::is_same_v<Codes, E4m3Codes>) args.rounding = decoder.rounding;
        return block_linear_cuda(args, stream);
      },
      weight);
}

DenseTiles lay_out_tiles(DeviceArena& arena, std::int64_t rows, std::int64_t cols) {
  const DenseShape shape{static_cast<int>(rows), static_cast<int>(cols)};
  return {arena.take<std::uint8_t>(shape.bytes()), shape};
}

}  // namespace nibble
