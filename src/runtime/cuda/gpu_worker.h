// A worker on one GPU.
//
// A step: its inputs are put together in pinned memory and copied in one piece; the forward is a captured
// graph where every sequence has one row, and a list of launches otherwise; sampling follows on the GPU; a
// few numbers a sequence come back. All of it is queued on one stream, the sampling once masks are there,
// while the forward runs. The next step's forward may be queued behind it before its results are read: that
// takes its tokens where this one's sampling left them.
#pragma once

#include <memory>

#include "models/cuda/cuda_model.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/cuda_kv_store.h"
#include "runtime/cuda/decode_graphs.h"
#include "runtime/cuda/gpu_sampler.h"
#include "runtime/cuda/step_inputs.h"
#include "runtime/worker.h"

namespace nibble {

class GpuWorker final : public Worker {
 public:
  // On the device that the limits name, which it makes the calling thread's. Steps may run on another thread.
  static Result<std::unique_ptr<Worker>> start(const ModelConfig& config, WeightFeed& feed,
                                               const WorkerLimits& limits);

  ~GpuWorker() override { stream_->wait(); }

  Status forward(const Batch& batch) override;
  Status choose(const Batch& batch) override;
  Status finish(const Batch& batch, std::span<StepResult> results) override;
  bool may_begin_behind(const Batch& next) const override;
  bool may_choose_behind(const Batch& next) const override;
  void time_ops(TimeTable* table) override { times_ = table; }
  int threads() const override { return 1; }
  std::int64_t mapped_bytes() const override { return 0; }
  std::int64_t device_bytes() const override { return device_bytes_; }

 private:
  // Where the worker's kernels run, and the word in which one that gives up leaves its name.
  struct Place {
    int device = 0;
    PinnedBuffer stuck;
    std::unique_ptr<CudaStream> stream;
  };
  GpuWorker(Place place, std::unique_ptr<CudaModel> model, CudaKvStore kv, StepInputs inputs,
            GpuSampler sampler);

  // One step of each size with its graph and without: refused where a bit differs.
  Status hold_graphs_to_eager_bits(const WorkerLimits& limits);
  Status queue_forward(const StepShape& shape, bool in_graph);
  // A call that waited for the GPU: stops the process where that failed, and says which kernel gave up.
  void require(cudaError_t error) const;

  int device_;
  PinnedBuffer stuck_;                  // one word (ops/cuda/stuck.h)
  std::unique_ptr<CudaStream> stream_;  // what runs on it is waited for before memory goes
  std::unique_ptr<CudaModel> model_;
  CudaKvStore kv_;
  StepInputs inputs_;
  GpuSampler sampler_;
  DecodeGraphs graphs_;
  CudaEvent done_[2];  // by GpuSampler::Place: that its step is done
  GpuSampler::Place newest_ = GpuSampler::first;
  int begun_ = 0;  // steps, and not finished
  StepShape newest_shape_;
  bool chosen_ = true;  // the newest step's tokens
  TimeTable* times_ = nullptr;
  std::int64_t device_bytes_ = 0;
};

}  // namespace nibble
