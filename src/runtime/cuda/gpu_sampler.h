// From the logits of a step, which stay on the GPU, to its results: changed rows, tokens, log-probabilities
// and lists of the likeliest are made there, and the log-probabilities of a prompt's own tokens. Lists longer
// than the kernels', and changes for which a step has no room, are the host's work, on a copy of that
// sequence's rows: both give the same bits.
#pragma once

#include <span>
#include <vector>

#include "core/batch.h"
#include "ops/sample/cuda/sample_cuda.h"
#include "runtime/cuda/changed_rows.h"
#include "runtime/row_sampler.h"
#include "runtime/worker.h"
#include "tensor/device_arena.h"
#include "tensor/device_buffer.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

class GpuSampler {
 public:
  static Result<GpuSampler> allocate(const WorkerLimits& limits, int vocabulary);
  static std::size_t device_bytes(const WorkerLimits& limits, int vocabulary);

  float* logits() { return logits_.as<float>(); }
  // Queues what the GPU does for the logit rows of `batch`.
  Status queue(const Batch& batch, const SampleCudaParams* params, const std::int32_t* targets,
               cudaStream_t stream);
  // Once that is done: one result a sequence, and what else it asked for in its rooms.
  void collect(const Batch& batch, std::span<StepResult> results);

 private:
  GpuSampler(const WorkerLimits& limits, int vocabulary, ChangedRows changed, DeviceBuffer room_memory,
             DeviceArena room);
  // Where the kernels work and put what they find.
  struct Room {
    std::uint8_t* workspace = nullptr;
    SampledToken* tokens = nullptr;         // [max_logit_rows]
    float* target_logprobs = nullptr;       // [max_logit_rows]
    std::int32_t* likeliest_ids = nullptr;  // [max_logit_rows, likeliest_]
    float* likeliest_logprobs = nullptr;    // [max_logit_rows, likeliest_]
    Room(const WorkerLimits& limits, int vocabulary, DeviceArena& arena);
  };

  // Decides of each sequence where it is sampled, and lists what is changed of its logits.
  void share_out(const Batch& batch);
  Status sample(const Batch& batch, const SampleCudaParams* params, const std::int32_t* targets,
                cudaStream_t stream);
  void bring_results(const Batch& batch, cudaStream_t stream);
  void list_likeliest(std::size_t row, std::span<TokenLogprob> top);
  StepResult collect_sequence(const Batch& batch, const BatchSequence& sequence);

  int vocabulary_;
  RowSampler on_host_;
  ChangedRows changed_;
  std::vector<char> of_host_;  // [max_sequences]: whether the host samples it
  DeviceBuffer logits_;        // [max_logit_rows, vocabulary]
  DeviceBuffer room_memory_;
  Room room_;
  int likeliest_ = 0;    // of the step
  bool scores_ = false;  // likewise: whether it has targets
  PinnedBuffer host_targets_, host_tokens_, host_ids_, host_logprobs_, host_logits_;
};

}  // namespace nibble
