#include "models/cuda/head_block.h"

#include "ops/linear/cuda/norm_linear_cuda.h"

namespace nibble {

HeadBlock::HeadBlock(const CudaForwardLimits& limits, const DecoderStream& stream, DeviceArena& arena)
    : stream_(stream),
      wanted_tiles_(arena.take<std::uint8_t>(DenseShape{0, stream.hidden}.token_bytes(limits.logit_rows))) {}

Status HeadBlock::run(const HeadBlockWeights& weights, const PendingSum& pending,
                      const CudaForwardInput& input, float* logits, cudaStream_t stream) const {
  const AddRmsNormCudaArgs of_norm = stream_.norm(weights.norm, pending, nullptr, input.rows);
  const int vocabulary = weights.lm_head.shape.rows;
  if (input.logit_rows == input.rows && norm_linear_takes(of_norm, weights.lm_head.shape)) {
    return norm_linear_cuda(of_norm,
                            {.x = {nullptr, 1},
                             .weight = weights.lm_head,
                             .y = logits,
                             .y_stride = vocabulary,
                             .workspace = stream_.linear},
                            stream);
  }
  NIBBLE_RETURN_IF_ERROR(add_rms_norm_cuda(of_norm, stream));
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
