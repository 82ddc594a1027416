// From the logits of a step, which stay on the GPU, to its results: changed rows, tokens, log-probabilities
// and lists of the likeliest are made there, and the log-probabilities and ranks of a prompt's own tokens.
// Lists longer than the kernels', and changes for which a step has no room, are the host's work, on a copy of
// that sequence's rows: both give the same bits.
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
  // `logits`, if there is such a place already: [max_logit_rows, vocabulary] on the device.
  static Result<GpuSampler> allocate(const WorkerLimits& limits, int vocabulary, float* logits = nullptr);
  static std::size_t device_bytes(const WorkerLimits& limits, int vocabulary);

  float* logits() { return logits_; }
  // Room for the rows of a step that only decodes, nobody's between steps.
  float* spare_logits() { return changed_.room_between_steps(); }
  // On the device: the tokens of the last step's logit rows, until the next one's are there.
  const SampledToken* chosen() const { return room_.tokens; }

  // Two steps may be on their way: what comes back from them lies apart. A step that changes logits is
  // queued only once the one before it was collected, and so is a step after one that the host samples of.
  enum Place : int { first, second };
  // Queues what the GPU does for the logit rows of `batch`.
  Status queue(const Batch& batch, const SampleCudaParams* params, const std::int32_t* targets, Place place,
               cudaStream_t stream);
  // Whether all tokens of the step queued there are chosen on the GPU.
  bool is_gpus_alone(Place place) const;
  // Once that is done: one result a sequence, and what else it asked for in its rooms.
  void collect(const Batch& batch, Place place, std::span<StepResult> results);

 private:
  GpuSampler(const WorkerLimits& limits, int vocabulary, ChangedRows changed, DeviceBuffer room_memory,
             DeviceArena room);
  // Where the kernels work and put what they find.
  struct Room {
    std::uint8_t* workspace = nullptr;
    SampledToken* tokens = nullptr;         // [max_logit_rows]
    float* target_logprobs = nullptr;       // [max_logit_rows]
    std::int32_t* target_ranks = nullptr;   // [max_logit_rows]
    std::int32_t* likeliest_ids = nullptr;  // [max_logit_rows, likeliest]
    float* likeliest_logprobs = nullptr;    // [max_logit_rows, likeliest]
    Room(const WorkerLimits& limits, int vocabulary, DeviceArena& arena);
  };

  // What comes back from a step: tokens, which the kernel stores here itself, and copies of what else was
  // asked for.
  struct Brought {
    PinnedBuffer tokens, targets, ranks, ids, logprobs;  // as in Room
    std::vector<char> of_host;                           // [max_sequences]: whether the host samples it
    std::size_t sequences = 0;
    int likeliest = 0;    // tokens listed of each row
    bool scores = false;  // whether it has targets
    bool ranked = false;  // whether ranks of any are wanted

    // False where a logit of the prompt's rows is no number.
    bool score(const Batch& batch, const BatchSequence& sequence);
    StepResult result_of(const Batch& batch, const BatchSequence& sequence);
    void list_likeliest(std::size_t row, std::span<TokenLogprob> top);
  };

  // Decides of each sequence where it is sampled, and lists what is changed of its logits.
  void share_out(const Batch& batch, Brought& step);
  // Lists the changes of each of the sequence's rows that a token may be chosen from; false where there is no
  // room for them.
  bool list_changes(const Batch& batch, const BatchSequence& sequence);
  Status sample(const Batch& batch, const SampleCudaParams* params, const std::int32_t* targets,
                Brought& step, cudaStream_t stream);
  // Queues the copies.
  void bring_results(const Batch& batch, Brought& step, cudaStream_t stream);

  int vocabulary_;
  int cluster_;  // blocks that share a row
  RowSampler on_host_;
  ChangedRows changed_;
  DeviceBuffer logits_memory_;  // empty where they lie elsewhere
  float* logits_ = nullptr;     // [max_logit_rows, vocabulary]
  DeviceBuffer room_memory_;
  Room room_;
  Brought steps_[2];
  PinnedBuffer host_logits_;  // [max_logit_rows, vocabulary]: rows of what the host samples
};

}  // namespace nibble
