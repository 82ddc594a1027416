// One rank: a model, its KV memory and its threads. Takes a planned batch, gives each sequence's token.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "core/batch.h"
#include "models/model.h"
#include "ops/sample/logit_changes.h"
#include "ops/sample/sample.h"
#include "runtime/kernel_choice.h"
#include "runtime/kv_store.h"

namespace nibble {

struct WorkerLimits {
  int threads = 0;  // 0: one for each CPU the process may use
  int max_rows = 0;
  int max_logit_rows = 0;
  int max_sequences = 0;
  int max_positions = 0;  // of one sequence
  InputValues activations = InputValues::any_float;
  DType kv_dtype = DType::f32;
  int page_size = 0;
  std::array<int, page_groups> page_counts{};
  const DotKernels* dots = nullptr;
  const AttentionKernels* attention = nullptr;
  DenseFormat dense = DenseFormat::bf16;
};

class Worker {
 public:
  // Takes all memory that steps within the limits need.
  // `progress`, which may be empty, tells of a conversion of weights.
  static Result<std::unique_ptr<Worker>> start(std::unique_ptr<Model> model, const WorkerLimits& limits,
                                               const ConversionProgress& progress);

  // results: one a sequence of the batch; what else a sequence asked for goes to its rooms. An error means
  // that the weights are no longer what was loaded; nothing may be run after it.
  Status run(const Batch& batch, std::span<StepResult> results);

  // From now on each run adds its ops' times to the table, which outlives that; null: to none.
  void time_ops(TimeTable* table) { times_ = table; }

  const Model& model() const { return *model_; }
  int threads() const { return threads_->size(); }

 private:
  Worker(std::unique_ptr<ThreadPool> threads, std::unique_ptr<Model> model, const WorkerLimits& limits,
         KvStore kv, Buffer logits);

  // A thread's.
  struct SampleRoom {
    SampleWorkspace sampling;
    LogitChangeRoom changes;
  };

  StepResult sample_sequence(const Batch& batch, const BatchSequence& sequence, SampleRoom& room);
  // `first`: the likeliest token of the unchanged row.
  static TokenId choose(const BatchSequence& sequence, std::span<const float> logits, TokenId first,
                        SampleRoom& room);
  std::span<float> logits_of(int logit_row);

  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Model> model_;
  const DotKernels& dots_;
  const AttentionKernels& attention_;
  InputValues activations_;
  TimeTable* times_ = nullptr;
  KvStore kv_;
  Buffer logits_;  // [max_logit_rows, vocab] float32
  std::vector<int> positions_, logit_rows_;
  std::array<std::vector<SequenceRows>, page_groups> sequences_;  // with each group's page tables
  std::vector<LayerKv> layers_;
  std::vector<SampleRoom> sample_rooms_;  // [threads]
};

}  // namespace nibble
