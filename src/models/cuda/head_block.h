// The end of a decoder on one GPU: the last norm, and the vocabulary for the rows whose logits are wanted.
#pragma once

#include "models/cuda/cuda_part.h"
#include "models/cuda/decoder_stream.h"

namespace nibble {

struct HeadBlockWeights {
  Bf16* norm = nullptr;  // [hidden], on the device
  DenseTiles lm_head;    // [vocab, hidden], of the rank
};

class HeadBlock {
 public:
  // Takes its room. Without memory it only counts.
  HeadBlock(const ModelConfig& config, const CudaForwardLimits& limits, const DecoderStream& stream,
            CudaPlace& place, DeviceArena& arena);

  // Where ranks gather logits, [limits.logit_rows, vocabulary]; null where this one is alone.
  float* gathered() const { return gathered_; }

  // logits: [input.logit_rows, vocabulary], of the first rank; gathered() costs no copy.
  Status run(const HeadBlockWeights& weights, const PendingSum& pending, const CudaForwardInput& input,
             float* logits, cudaStream_t stream) const;

 private:
  Status multiply(const HeadBlockWeights& weights, const PendingSum& pending, const CudaForwardInput& input,
                  float* logits, cudaStream_t stream) const;

  DecoderStream stream_;
  bool is_first_;  // rank
  Run own_;        // of the vocabulary
  std::int64_t vocabulary_;
  float* part_ = nullptr;  // [logit_rows, own_.count]
  float* gathered_ = nullptr;
  std::uint8_t* wanted_tiles_;  // token tiles of hidden columns
};

}  // namespace nibble
