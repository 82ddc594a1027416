// CUDA graphs of a model's decode steps: one for each size of batch up to 8 and each multiple of 8 behind it;
// of sizes for which attention has kernels of its own for short contexts, another one for those. A step of
// another number of sequences runs in the next larger one, filled up with rows that belong to nobody, choose
// no expert and change no other row.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "models/cuda/cuda_model.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/step_inputs.h"

namespace nibble {

class DecodeGraphs {
 public:
  struct Captured {
    int size;  // sequences
    bool short_contexts;
    CudaGraphExec exec;
    LaunchCounts launches;  // of one replay

    void launch(cudaStream_t stream) const;
  };

  // Captures them, each of which reads its inputs where `inputs` has those of its size. `launches` are those
  // that the model counts.
  Status capture(CudaModel& model, const StepInputs& inputs, float* logits, int max_sequences,
                 LaunchCounts& launches, cudaStream_t stream);

  // The size that a step of so many sequences runs in; 0: in none.
  int size_for(int sequences) const;
  // The graph of a step of such a size.
  const Captured& graph_of(int size, bool short_contexts) const;
  std::span<const Captured> all() const { return graphs_; }

 private:
  Status capture(CudaModel& model, const CudaForwardInput& input, float* logits, LaunchCounts& launches,
                 cudaStream_t stream);

  std::vector<Captured> graphs_;  // by ascending size, for short contexts behind the other one
};

// Of steps of so many sequences.
StepShape decode_shape(int sequences);

}  // namespace nibble
