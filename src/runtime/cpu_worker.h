// A worker on this machine's CPUs.
#pragma once

#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "models/model.h"
#include "runtime/kv_store.h"
#include "runtime/row_sampler.h"
#include "runtime/worker.h"

namespace nibble {

class CpuWorker final : public Worker {
 public:
  // Takes all memory that steps within the limits need.
  // `progress`, which may be empty, tells of a conversion of weights.
  static Result<std::unique_ptr<Worker>> start(std::unique_ptr<Model> model, const WorkerLimits& limits,
                                               const ConversionProgress& progress);

  Status run(const Batch& batch, std::span<StepResult> results) override;
  void time_ops(TimeTable* table) override { times_ = table; }
  int threads() const override { return threads_->size(); }
  std::int64_t mapped_bytes() const override { return model_->mapped_bytes(); }
  std::int64_t device_bytes() const override { return 0; }

 private:
  CpuWorker(std::unique_ptr<ThreadPool> threads, std::unique_ptr<Model> model, const WorkerLimits& limits,
            KvStore kv, Buffer logits);

  const float* logits_of(int logit_row) const;

  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Model> model_;
  const DotKernels& dots_;
  const WeightLines weight_lines_;
  const AttentionKernels& attention_;
  InputValues activations_;
  TimeTable* times_ = nullptr;
  KvStore kv_;
  Buffer logits_;  // [max_logit_rows, vocab] float32
  std::vector<int> positions_, logit_rows_;
  std::array<std::vector<SequenceRows>, page_groups> sequences_;  // with each group's page tables
  std::vector<LayerKv> layers_;
  std::vector<RowSampler> samplers_;  // [threads]
};

}  // namespace nibble
