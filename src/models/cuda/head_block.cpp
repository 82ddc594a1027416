#include "models/cuda/head_block.h"

#include "ops/linear/cuda/norm_linear_cuda.h"
#include "ops/peer_gather/cuda/merge_parts_cuda.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"
#include "tensor/cuda_check.h"

namespace nibble {

HeadBlock::HeadBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
                     CudaPlace& place, DeviceArena& arena)
    : stream_(stream),
      is_first_(place.part.rank == 0),
      own_(place.part.vocabulary),
      vocabulary_(config.vocab_size),
      wanted_tiles_(arena.take<std::uint8_t>(DenseShape{0, stream.hidden}.token_bytes(limits.logit_rows))) {
  if (place.part.alone()) return;
  const std::size_t rows = static_cast<std::size_t>(limits.logit_rows);
  part_ = arena.take<float>(rows * static_cast<std::size_t>(own_.count));
  gathered_ = place.shared.take<float>(rows * static_cast<std::size_t>(vocabulary_));
}

Status HeadBlock::run(const HeadBlockWeights& weights, const PendingSum& pending,
                      const CudaForwardInput& input, float* logits, cudaStream_t stream) const {
  if (stream_.is_alone()) return multiply(weights, pending, input, logits, stream);
  NIBBLE_RETURN_IF_ERROR(multiply(weights, pending, input, part_, stream));
  const auto bytes_of = [](std::int64_t columns) {
    return static_cast<std::size_t>(columns) * sizeof(float);
  };
  if (stream_.merge != nullptr) {
    NIBBLE_RETURN_IF_ERROR(merge_columns_cuda(*stream_.merge,
                                              {.from = part_,
                                               .to = gathered_,
                                               .rows = input.logit_rows,
                                               .row_bytes = bytes_of(vocabulary_),
                                               .first = bytes_of(own_.begin),
                                               .bytes = bytes_of(own_.count)},
                                              stream));
  } else {
    NIBBLE_RETURN_IF_ERROR(gather_columns_cuda(*stream_.room,
                                               {.from = part_,
                                                .from_stride = bytes_of(own_.count),
                                                .to = gathered_ + own_.begin,
                                                .to_stride = bytes_of(vocabulary_),
                                                .bytes = bytes_of(own_.count),
                                                .rows = input.logit_rows,
                                                .wanted_by = 0},
                                               stream));
  }
  if (!is_first_ || logits == gathered_) return {};
  cuda_check(cudaMemcpyAsync(logits, gathered_,
                             static_cast<std::size_t>(input.logit_rows) * bytes_of(vocabulary_),
                             cudaMemcpyDeviceToDevice, stream));
  return {};
}

Status HeadBlock::multiply(const HeadBlockWeights& weights, const PendingSum& pending,
                           const CudaForwardInput& input, float* logits, cudaStream_t stream) const {
  const RankRows own = stream_.rows_of_rank(input);
  const AddRmsNormCudaArgs of_norm = stream_.norm(weights.norm, pending, nullptr, own);
  const int vocabulary = weights.lm_head.shape.rows;
  if (!own.are_shared() && input.logit_rows == input.rows &&
      norm_linear_takes(of_norm, weights.lm_head.shape)) {
    return norm_linear_cuda(of_norm,
                            {.x = {nullptr, 1},
                             .weight = weights.lm_head,
                             .y = logits,
                             .y_stride = vocabulary,
                             .workspace = stream_.linear},
                            stream);
  }
  NIBBLE_RETURN_IF_ERROR(stream_.norm_tiles(of_norm, own, stream));
  const std::uint8_t* wanted = stream_.normed_tiles;
  if (input.wanted_rows != nullptr) {
    NIBBLE_RETURN_IF_ERROR(gather_tokens_cuda({stream_.normed_tiles, input.rows}, stream_.hidden,
                                              input.wanted_rows, input.logit_rows, wanted_tiles_, stream));
    wanted = wanted_tiles_;
  }
  return linear_cuda({.x = {wanted, input.logit_rows},
                      .weight = weights.lm_head,
                      .y = logits,
                      .y_stride = vocabulary,
                      .workspace = stream_.linear},
                     stream);
}

}  // namespace nibble
