// CUDA graphs of a model's decode steps: one for each size of batch up to 8 and each multiple of 8 behind it.
// A step of another number of sequences runs in the next larger one, filled up with rows that belong to
// nobody, choose no expert and change no other row.
#pragma once

#include <vector>

#include "base/status.h"
#include "models/cuda/cuda_model.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/step_inputs.h"

namespace nibble {

class DecodeGraphs {
 public:
  // Captures them, each of which reads its inputs where `inputs` has those of its size.
  Status capture(CudaModel& model, const StepInputs& inputs, float* logits, int max_sequences,
                 cudaStream_t stream);

  // The size that a step of so many sequences runs in; 0: in none.
  int size_for(int sequences) const;
  void launch(int size, cudaStream_t stream) const;
  std::vector<int> sizes() const;

 private:
  struct Captured {
    int size;
    CudaGraphExec exec;
  };
  std::vector<Captured> graphs_;  // ascending
};

// Of steps of so many sequences.
StepShape decode_shape(int sequences);

}  // namespace nibble
