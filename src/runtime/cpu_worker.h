// A worker on this machine's CPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/process_links.h"
#include "runtime/cpu_rank.h"
#include "runtime/owner_logits.h"
#include "runtime/owner_steps.h"
#include "runtime/rank_threads.h"
#include "runtime/rank_watch.h"
#include "runtime/row_sampler.h"
#include "runtime/worker.h"

namespace nibble {

class CpuWorker final : public Worker {
 public:
  // Takes all memory that steps within the limits need.
  // `progress`, which may be empty, tells of a conversion of weights.
  static Result<std::unique_ptr<Worker>> start(std::unique_ptr<Model> model, const WorkerLimits& limits,
                                               const ConversionProgress& progress);
  // The same with limits.ranks ranks, each with its part of the weights. Of these the processes of `links`
  // have an equal share each; without it all are here. Only the first process's worker is given batches.
  static Result<std::unique_ptr<Worker>> start(const ModelConfig& config, WeightSource weights,
                                               const WorkerLimits& limits, const ConversionProgress& progress,
                                               std::unique_ptr<ProcessLinks> links = nullptr);
  ~CpuWorker() override;

  // In another process than the first: runs each step that the first one begins, until that has ended.
  // `ready` is called once steps can come.
  static Status follow(const ModelConfig& config, WeightSource weights, const WorkerLimits& limits,
                       std::unique_ptr<ProcessLinks> links, const std::function<void()>& ready);

  Status forward(const Batch& batch) override;
  Status choose(const Batch& batch) override;
  Status finish(const Batch& batch, std::span<StepResult> results) override;
  // Of the first rank: the others do the same work beside it.
  void time_ops(TimeTable* table) override { first().time_ops(table); }
  Status failure() const override;
  RanTable ran() const override;
  int threads() const override;
  std::int64_t mapped_bytes() const override { return first().model().mapped_bytes(); }
  std::int64_t device_bytes() const override { return 0; }

 private:
  // What ranks of a world are seen and joined by; nothing of one rank alone.
  struct Ties {
    std::unique_ptr<RankWatch> watch;
    std::unique_ptr<ProcessLinks> links;
    OwnerLogits logits;
  };
  static Result<std::unique_ptr<CpuWorker>> of(std::vector<std::unique_ptr<CpuRank>> ranks, Ties ties,
                                               const WorkerLimits& limits);
  static Result<std::unique_ptr<CpuWorker>> start_ranks(const ModelConfig& config, WeightSource weights,
                                                        const WorkerLimits& limits,
                                                        const ConversionProgress& progress,
                                                        std::unique_ptr<ProcessLinks> links);
  CpuWorker(std::vector<std::unique_ptr<CpuRank>> ranks, Ties ties, const WorkerLimits& limits,
            Buffer logits);

  enum class Phase : std::uint8_t { forward, choice };
  Status run_all();             // of this process
  Status run_seated(int rank);  // by the thread that calls
  Status run(Phase phase, int rank);
  // `places` are those of the batch's sequences in results_.
  struct Sampled {
    const Batch& batch;
    std::span<const int> places;  // empty: their own
    int logit_begin = 0;
  };
  // Of a group of the first process, and of the others that are dealt to it: those of other processes.
  void sample_owners(int group);
  // With the threads of the group's first rank.
  void sample(int group, const Sampled& step);

  CpuRank& first() { return *ranks_[0]; }
  const CpuRank& first() const { return *ranks_[0]; }
  const float* logits_of(int logit_row) const;

  std::unique_ptr<RankWatch> watch_;  // of several ranks; before who asks it
  std::unique_ptr<ProcessLinks> links_;
  OwnerLogits owner_logits_;
  std::unique_ptr<FirstRankWatch> first_watch_;
  const int first_rank_;                         // of this process, in the world
  std::vector<std::unique_ptr<CpuRank>> ranks_;  // of this process
  std::vector<std::byte> step_message_;
  Buffer logits_;  // [max_logit_rows, vocab] float32
  // [groups whose first rank is in the first process and samples][threads]; none in other processes
  std::vector<std::vector<RowSampler>> samplers_;
  std::vector<StepResult> results_;          // of the step that was chosen last
  const Batch* batch_ = nullptr;             // of the running step
  const int sharers_;                        // ranks of a group
  OwnerSteps own_;                           // of groups; empty where all ranks have all sequences
  Phase phase_ = Phase::forward;             // of it
  std::optional<RankThreads> rank_threads_;  // none of one rank here; they end before what they use
};

}  // namespace nibble
