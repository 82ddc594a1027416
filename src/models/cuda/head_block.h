// The end of a decoder on one GPU: the last norm, and the vocabulary for the rows whose logits are wanted.
#pragma once

#include "models/cuda/decoder_stream.h"

namespace nibble {

struct HeadBlockWeights {
  Bf16* norm = nullptr;  // [hidden], on the device
  DenseTiles lm_head;    // [vocab, hidden]
};

class HeadBlock {
 public:
  // Takes its room. Without memory it only counts.
  HeadBlock(const CudaForwardLimits& limits, const DecoderStream& stream, DeviceArena& arena);

  // logits: [input.logit_rows, vocabulary]
  Status run(const HeadBlockWeights& weights, const PendingSum& pending, const CudaForwardInput& input,
             float* logits, cudaStream_t stream) const;

 private:
  DecoderStream stream_;
  std::uint8_t* wanted_tiles_;  // token tiles of hidden columns
};

}  // namespace nibble
