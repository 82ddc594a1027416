// From the logits of a step, which stay on the GPU, to its results: tokens, log-probabilities and lists of
// the likeliest are made there, and the log-probabilities of a prompt's own tokens. Changed logits and longer
// lists are the host's work, on a copy of that sequence's rows: both give the same bits.
#pragma once

#include <span>

#include "core/batch.h"
#include "ops/sample/cuda/sample_cuda.h"
#include "runtime/row_sampler.h"
#include "runtime/worker.h"
#include "tensor/device_buffer.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

class GpuSampler {
 public:
  static Result<GpuSampler> allocate(const WorkerLimits& limits, int vocabulary);

  float* logits() { return logits_.as<float>(); }
  // Queues what the GPU does for the logit rows of `batch`.
  Status queue(const Batch& batch, const SampleCudaParams* params, const std::int32_t* targets,
               cudaStream_t stream);
  // Once that is done: one result a sequence, and what else it asked for in its rooms.
  void collect(const Batch& batch, std::span<StepResult> results);

 private:
  explicit GpuSampler(int vocabulary) : vocabulary_(vocabulary), on_host_(vocabulary) {}
  static bool needs_host(const BatchSequence& sequence);
  void list_likeliest(std::size_t row, std::span<TokenLogprob> top);
  StepResult collect_sequence(const Batch& batch, const BatchSequence& sequence);

  int vocabulary_;
  RowSampler on_host_;
  DeviceBuffer logits_;                    // [max_logit_rows, vocabulary]
  DeviceBuffer room_;                      // of the kernels, and their results
  std::uint8_t* workspace_ = nullptr;      // in room_
  SampledToken* tokens_ = nullptr;         // [max_logit_rows], in room_
  std::int32_t* likeliest_ids_ = nullptr;  // [max_logit_rows, likeliest_], likewise
  float* target_logprobs_ = nullptr;       // [max_logit_rows], likewise
  float* likeliest_logprobs_ = nullptr;    // [max_logit_rows, likeliest_], likewise
  int likeliest_ = 0;                      // of the step
  PinnedBuffer host_targets_, host_tokens_, host_ids_, host_logprobs_, host_logits_;
};

}  // namespace nibble
