#include "models/cuda/gathered_product.h"

#include "ops/cuda/absent.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/peer_linear_cuda.h"
#include "ops/peer_gather/cuda/merge_parts_cuda.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"

namespace nibble {

GatheredProduct::GatheredProduct(const Shape& shape, const DecoderStream& stream, CudaPlace& place,
                                 DeviceArena& arena)
    : stream_(stream),
      first_column_(static_cast<int>(shape.columns.begin)),
      columns_(static_cast<int>(shape.columns.count)),
      all_columns_(shape.all_columns) {
  own_ = arena.take<std::uint8_t>(own_shape().token_bytes(shape.rows));
  gathered_ = own_;
  if (place.part.alone()) return;
  gathered_ = place.shared.take<std::uint8_t>(whole_shape().token_bytes(shape.rows));
  if (columns_ * place.part.ranks != all_columns_) return;
  windows_ = place.shared.take<std::uint8_t>(window_bytes());
  gather_steps_ = arena.take<std::uint32_t>(static_cast<std::size_t>(gather_token_steps));
  if (!peer_linear_takes(whole_shape(), place.part.ranks)) return;
  sums_ = place.shared.take<float>(peer_linear_floats(whole_shape()));
  sum_steps_ = arena.take<std::uint32_t>(static_cast<std::size_t>(processors_of_device()));
}

std::size_t GatheredProduct::window_bytes() const { return 2 * whole_shape().token_bytes(gather_few_tokens); }

void GatheredProduct::clear_room(cudaStream_t stream) const {
  if (sums_ != nullptr) make_absent(sums_, peer_linear_floats(whole_shape()), stream);
  if (windows_ != nullptr)
    make_absent(reinterpret_cast<float*>(windows_), window_bytes() / sizeof(float), stream);
}

Status GatheredProduct::gather(int rows, const RankRows& own, cudaStream_t stream) const {
  if (stream_.is_alone()) return {};
  // A group of tokens is a row of whole k64 blocks, of which a rank has those of its columns.
  const auto bytes_of = [](int columns) { return DenseShape{0, columns}.token_bytes(token_group); };
  const int groups = (rows + token_group - 1) / token_group;
  if (stream_.merge != nullptr) {
    stream_.count(LaunchKind::merge_columns);
    return merge_columns_cuda(*stream_.merge,
                              {.from = own_,
                               .to = gathered_,
                               .rows = groups,
                               .row_bytes = bytes_of(all_columns_),
                               .first = bytes_of(first_column_),
                               .bytes = bytes_of(columns_)},
                              stream);
  }
  if (windows_ != nullptr && rows <= gather_few_tokens) {
    stream_.count(LaunchKind::gather_tokens);
    return gather_tokens_cuda(*stream_.room,
                              {.from = own_,
                               .to = gathered_,
                               .windows = windows_,
                               .steps = gather_steps_,
                               .columns = columns_,
                               .tokens = rows},
                              stream);
  }
  stream_.count(LaunchKind::gather_columns);
  return gather_columns_cuda(*stream_.room,
                             {.from = own_,
                              .from_stride = bytes_of(columns_),
                              .to = gathered_ + bytes_of(first_column_),
                              .to_stride = bytes_of(all_columns_),
                              .bytes = bytes_of(columns_),
                              .rows = groups,
                              .rows_a_rank = own.a_rank / token_group},
                             stream);
}

Status GatheredProduct::multiply(const Factors& factors, int rows, const RankRows& own, float* y,
                                 cudaStream_t stream) const {
  const DeviceMatrix& weight = factors.weight;
  if (sums_ != nullptr && stream_.room != nullptr && rows <= peer_linear_tokens && !weight.blocks) {
    stream_.count(LaunchKind::gather_sums);
    return peer_linear_cuda(*stream_.room,
                            {.x = {own_, rows},
                             .weight = weight.tiles,
                             .bias = factors.bias,
                             .y = y,
                             .y_stride = stream_.hidden,
                             .windows = sums_,
                             .steps = sum_steps_,
                             .stuck = stream_.linear.stuck,
                             .beside = factors.beside},
                            stream);
  }
  NIBBLE_RETURN_IF_ERROR(gather(rows, own, stream));
  if (own.count == 0) return {};
  const TokenTiles x = tiles_from(gathered_, own.first, own.count, all_columns_);
  float* const of_rank = y + static_cast<std::size_t>(own.first) * static_cast<std::size_t>(stream_.hidden);
  if (weight.blocks) return multiply_blocks(stream_, *weight.blocks, x, of_rank, stream_.hidden, stream);
  return linear_cuda({.x = x,
                      .weight = weight.tiles,
                      .bias = factors.bias,
                      .y = of_rank,
                      .y_stride = stream_.hidden,
                      .workspace = stream_.linear,
                      .beside = factors.beside},
                     stream);
}

}  // namespace nibble
