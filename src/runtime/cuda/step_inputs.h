// What a step's kernels read, put together on the host and brought to the GPU in one copy.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/batch.h"
#include "models/cuda/cuda_model.h"
#include "ops/sample/cuda/sample_cuda.h"
#include "runtime/worker.h"
#include "tensor/device_buffer.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

static_assert(cuda_page_groups == page_groups);

struct StepShape {
  int rows = 0;
  int sequences = 0;
  int logit_rows = 0;
  // Row i is all that the forward's sequence i has, and its logits are wanted. Drafts then are sequences that
  // have the pages of the one they belong to.
  bool one_row_each = false;
  bool checks_drafts = false;  // some of those rows are
  bool of_prompts = false;     // CudaForwardInput's, as is what follows
  int most_rows = 0;
};

// Byte offsets of a step's parts; the page tables come last, as long as they are.
struct StepLayout {
  std::size_t row_limit, tokens, positions, wanted_rows, targets, params, page_table;
  std::size_t kv_slots[page_groups], sequence_rows[page_groups];
  // Of models whose layers keep states (DeltaStepCuda); else they take nothing.
  std::size_t state_rows, row_sequences, borders;

  StepLayout(const StepShape& shape, bool states);
  // Borders that sequences of such a step can pass.
  static int most_borders(const StepShape& shape) { return shape.rows / delta_chunk + shape.sequences; }
};

class StepInputs {
 public:
  // For steps of the model within the limits. `chosen`, on the device: the tokens that the step before this
  // one gives its logit rows.
  static Result<StepInputs> allocate(const WorkerLimits& limits, const CudaModel& model,
                                     const SampledToken* chosen);

  // The batch, filled up to `shape` with rows that belong to nobody. It may follow one whose copy is still
  // waiting; before a third is filled the first has been copied.
  void fill(const Batch& batch, const StepShape& shape);
  // Whether one run of attention has room for all of the filled step's splits.
  bool is_one_run() const { return runs_.size() == 1; }
  // That all the filled step's contexts need, if they are short ones.
  int later_clusters() const {
    const int needed = std::max(longest_ - 1, 0) / heads_.cluster_positions;
    return needed <= heads_.most_later_clusters ? needed : attention_any_context;
  }
  // Queues the copy of what was filled.
  void copy(cudaStream_t stream);

  // Where steps of that shape lie on the device. attention_runs and later_clusters are those of the filled
  // step.
  CudaForwardInput forward_input(const StepShape& shape) const;
  const SampleCudaParams* params(const StepShape& shape) const;
  // Of each logit row the id whose log-probability is wanted, -1: none.
  const std::int32_t* targets(const StepShape& shape) const;

 private:
  PinnedBuffer& host() { return host_[newest_]; }
  void fill_tokens(const Batch& batch, std::int32_t* tokens);
  // As that many sequences of the forward, from the one `first` on.
  void fill_sequence(const BatchSequence& sequence, int first, int count, const StepLayout& layout);
  std::int32_t fill_pages(std::span<const PageId> pages, int past, const StepLayout& layout);
  void fill_states(const Batch& batch, const StepShape& shape, const StepLayout& layout);
  void add_run(int sequences, int splits);

  PinnedBuffer host_[2];
  int newest_ = 0;  // the filled one of them
  DeviceBuffer device_;
  const SampledToken* chosen_ = nullptr;
  std::vector<std::int32_t> sampled_rows_;  // [max_decode_rows]: where the filled step's tokens will be
  int page_size_ = 0;
  CudaHeads heads_;
  bool states_ = false;           // whether layers keep some
  std::size_t page_entries_ = 0;  // of the filled step's tables
  std::size_t bytes_ = 0;         // of the filled step
  std::vector<int> runs_;
  int run_begin_ = 0, run_splits_ = 0;
  int longest_ = 0;  // positions of a sequence of the filled step
};

}  // namespace nibble
