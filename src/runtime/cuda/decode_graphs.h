// CUDA graphs of a model's decode steps: one for each number of rows up to 8 and each multiple of 8 behind
// it; of numbers for which attention has kernels of its own for short contexts, others for those, and of
// those that a step with drafts may have, another one for that. A step of another number of rows runs in the
// next larger one, filled up with rows that belong to nobody, choose no expert and change no other row.
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
  struct Step {
    int rows = 0;
    int later_clusters = attention_any_context;
    bool checks_drafts = false;
    bool operator==(const Step&) const = default;
  };
  struct Captured {
    Step step;
    CudaGraphExec exec;
    LaunchCounts launches;  // of one replay

    void launch(cudaStream_t stream) const;
  };
  // What the graphs run. Each reads its inputs where `inputs` has those of its size; `launches` are those
  // that the model counts.
  struct Forward {
    CudaModel& model;
    const StepInputs& inputs;
    float* logits;
    LaunchCounts& launches;
    cudaStream_t stream;
  };
  // Of a step; with_drafts: where it has any, 0: none has.
  struct MostRows {
    int all = 0, with_drafts = 0;
  };

  Status capture(const Forward& forward, const MostRows& most);

  // The rows of the graph that a step of so many runs in; 0: in none.
  int size_for(int rows) const;
  // The graph of a step of such a size; null: there is none.
  const Captured* find(Step step) const;
  std::span<const Captured> all() const { return graphs_; }

 private:
  Status capture(const Forward& forward, const CudaForwardInput& input);

  std::vector<Captured> graphs_;  // by ascending rows
};

// Of steps of so many rows.
StepShape decode_shape(int rows, bool checks_drafts = false);

}  // namespace nibble
