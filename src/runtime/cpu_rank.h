// A rank of a CPU's worker: its part of the model, its heads' keys and values, its threads, and its place
// among the other ranks.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "comm/communicator.h"
#include "core/batch.h"
#include "core/ran_table.h"
#include "models/model.h"
#include "runtime/kv_store.h"
#include "runtime/state_store.h"
#include "runtime/worker.h"

namespace nibble {

// A rank's ends of the groups it is in.
struct RankGroups {
  std::optional<Communicator> world;    // none: there is one rank
  std::optional<Communicator> sharers;  // those with the same sequences, where they are neither all nor one
};

class CpuRank {
 public:
  // Takes all memory that steps within the limits need. limits.threads are this rank's. `progress`, which may
  // be empty, tells of a conversion of weights.
  static Result<std::unique_ptr<CpuRank>> start(std::unique_ptr<Model> model, const RankPart& part,
                                                const WorkerLimits& limits, RankGroups groups,
                                                const ConversionProgress& progress);

  // logits: [batch.logit_rows, vocabulary], or null. `most_rows` is of the rank that has most, where groups
  // have sequences of their own; else 0.
  Status forward(const Batch& batch, float* logits, int most_rows = 0);

  void time_ops(TimeTable* table) { times_ = table; }
  // Of its meetings with others; any thread may ask.
  Status failure() const { return groups_.world ? groups_.world->failure() : Status(); }
  // What it has run so far, by names that live as long as it does.
  void add_ran(RanTable& table) const;
  ThreadPool& threads() { return *threads_; }
  const ThreadPool& threads() const { return *threads_; }
  const Model& model() const { return *model_; }
  TimeTable* times() const { return times_; }

 private:
  CpuRank(std::unique_ptr<ThreadPool> threads, std::unique_ptr<Model> model, const WorkerLimits& limits,
          KvStore kv, StateStore states, RankGroups groups);

  std::span<const BorderState> borders_of(const BatchSequence& sequence);

  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Model> model_;
  const DotKernels& dots_;
  const WeightLines weight_lines_;
  const AttentionKernels& attention_;
  const LatentKernels& latents_;
  const DeltaKernels& deltas_;
  const std::string dots_name_, attention_name_, latents_name_;  // as the plan has them
  const std::string_view exchange_name_;
  const InputValues activations_;
  TimeTable* times_ = nullptr;
  KvStore kv_;
  StateStore states_;
  RankGroups groups_;
  std::vector<int> positions_, logit_rows_;
  std::array<std::vector<SequenceRows>, page_groups> sequences_;  // with each group's page tables
  std::vector<StateRows> state_rows_;
  std::vector<BorderState> borders_;  // that its entries point to
  std::vector<LayerKv> layers_;
};

}  // namespace nibble
