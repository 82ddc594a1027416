// A rank of a GPU's worker: its part of the model, its heads' keys and values, its stream and graphs. Alone
// it has the whole model.
//
// Every rank is given the same batches in the same order, each by a thread of its own (the kernels of ranks
// wait for each other), and queues the same launches. Ranks with sequences of their own are given those of
// the same steps, some none; what meets others' launches is the same on all.
#pragma once

#include <memory>

#include "base/time_table.h"
#include "core/batch.h"
#include "models/cuda/cuda_model.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/cuda_kv_store.h"
#include "runtime/cuda/cuda_state_store.h"
#include "runtime/cuda/decode_graphs.h"
#include "runtime/cuda/step_inputs.h"
#include "runtime/worker.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

CudaForwardLimits forward_limits(const WorkerLimits& limits);

class GpuRank {
 public:
  // Loads the model on a device and takes what its forward needs. place.shared begins with what the ranks
  // share beside it.
  static Result<std::unique_ptr<GpuRank>> load(const ModelConfig& config, const CudaPlace& place, int device,
                                               WeightFeed& feed, const WorkerLimits& limits);
  ~GpuRank() { stream_->wait(); }

  // Makes its device the calling thread's, which every thread must before anything else of a rank.
  void use_device() const;
  // Where steps find the tokens that the one before chose, and leave their logits, null on other ranks than
  // the first; then captures the graphs.
  Status prepare(const SampledToken* chosen, float* logits, const WorkerLimits& limits);

  // Queues the batch's inputs and its forward. Of steps two may be on their way. most_rows: of any rank.
  Status forward(const Batch& batch, int most_rows, TimeTable* times);
  // After the first rank's `rows` tokens are chosen: brings them from there to `to`, in the ranks' room.
  Status share_tokens(const SampledToken* from, SampledToken* to, int rows);

  // What steps have run since forget_ran().
  struct Ran {
    LaunchCounts launches;
    std::uint64_t graphs = 0, eager = 0;  // steps as a graph, and launch by launch
  };
  Ran ran() const { return {*launches_, graph_steps_, eager_steps_}; }
  void forget_ran();

  // The bits of a graph beside those of its launches, at the inputs of the batch.
  Status run_eager(const Batch& batch, float* logits);
  void run_graph(std::size_t index) { graphs_.all()[index].launch(stream_->get()); }

  // A call that waited for the GPU: stops the process where that failed, and says which kernel gave up.
  void require(cudaError_t error) const;

  CudaModel& model() { return *model_; }
  const CudaModel& model() const { return *model_; }
  const DecodeGraphs& graphs() const { return graphs_; }
  const StepInputs& inputs() const { return inputs_; }
  const StepShape& newest_shape() const { return newest_shape_; }
  const CudaStream& stream() const { return *stream_; }
  int device() const { return device_; }

 private:
  // What layers keep of sequences.
  struct Caches {
    CudaKvStore kv;
    CudaStateStore states;
  };

  // What the model points to.
  struct Told {
    PinnedBuffer stuck;  // one word (ops/cuda/stuck.h)
    std::unique_ptr<LaunchCounts> launches;
  };

  GpuRank(int device, const CudaPlace& place, Told told, std::unique_ptr<CudaStream> stream,
          std::unique_ptr<CudaModel> model, Caches caches);

  int device_;
  // Its ends of what ranks with the same sequences share; neither: alone.
  const PeerRoom* room_;
  const RankMerge* merge_;
  bool is_first_;  // of them
  PinnedBuffer stuck_;
  std::unique_ptr<LaunchCounts> launches_;
  std::uint64_t graph_steps_ = 0, eager_steps_ = 0;
  std::unique_ptr<CudaStream> stream_;  // what runs on it is waited for before memory goes
  std::unique_ptr<CudaModel> model_;
  Caches caches_;
  StepInputs inputs_;
  bool rounds_prompts_ = false;  // steps of prompts compute as such
  float* logits_ = nullptr;
  DecodeGraphs graphs_;
  StepShape newest_shape_;
};

}  // namespace nibble
