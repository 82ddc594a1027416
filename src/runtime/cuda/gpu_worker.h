// A worker on one GPU, or on several that share the model.
//
// A step: its inputs are put together in pinned memory and copied in one piece; the forward is a captured
// graph where every sequence has one row, and a list of launches otherwise; sampling follows on the first
// GPU; a few numbers a sequence come back. All of it is queued on one stream a GPU, the sampling once masks
// are there, while the forward runs. The next step's forward may be queued behind it before its results are
// read: that takes its tokens where this one's sampling left them.
//
// Ranks have a thread each and do all of it alike, but for sampling, whose tokens the first one gives to all.
// Where each has sequences of its own, it has their part of a step, and samples them.
//
// Ranks may be of several processes, neighbours in each, of one host or, where they merge by NCCL, of
// several. Then the first process, with the first rank, has the batches and the results, and the others make
// each call of a step that it makes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/cuda/peer_rooms.h"
#include "comm/cuda/rank_merge.h"
#include "runtime/cuda/gpu_rank.h"
#include "runtime/cuda/gpu_sampler.h"
#include "runtime/gpu_processes.h"
#include "runtime/owner_steps.h"
#include "runtime/rank_threads.h"
#include "runtime/worker.h"

namespace nibble {

class GpuWorker final : public Worker {
 public:
  // Loads a rank's weights, on the rank's thread and device.
  using LoadRank = std::function<Result<std::unique_ptr<GpuRank>>(const CudaPlace& place, int device)>;

  // On the device that the limits name, which it makes the calling thread's. Steps may run on another thread.
  static Result<std::unique_ptr<Worker>> start(const ModelConfig& config, WeightFeed& feed,
                                               const WorkerLimits& limits);
  // On limits.ranks devices from limits.device on; without `links` all are here. With them this is the first
  // process, which waits for the others.
  static Result<std::unique_ptr<Worker>> start(const ModelConfig& config, const LoadRank& load,
                                               const WorkerLimits& limits,
                                               std::unique_ptr<ProcessLinks> links = nullptr);
  // In another process than the first: makes the calls that the first one makes, until that has ended.
  // `ready` is called once steps can come.
  static Status follow(const ModelConfig& config, const LoadRank& load, const WorkerLimits& limits,
                       std::unique_ptr<ProcessLinks> links, const std::function<void()>& ready);

  ~GpuWorker() override;

  Status forward(const Batch& batch) override;
  Status choose(const Batch& batch) override;
  Status finish(const Batch& batch, std::span<StepResult> results) override;
  bool may_begin_behind(const Batch& next) const override;
  bool may_choose_behind(const Batch& next) const override;
  void time_ops(TimeTable* table) override { times_ = table; }
  Status failure() const override;
  RanTable ran() const override;
  int threads() const override { return static_cast<int>(ranks_.size()); }
  std::int64_t mapped_bytes() const override { return 0; }
  std::int64_t device_bytes() const override { return device_bytes_; }

 private:
  // What ranks with the same sequences share, and what all share where groups have their own; both outlive
  // the ranks' memory.
  struct Rooms {
    int sharers = 1;                                 // ranks of a group
    std::vector<std::unique_ptr<PeerRooms>> groups;  // none where each rank is one of its own
    std::unique_ptr<PeerRooms> all;                  // null where all ranks have all sequences
    // Instead of rooms, of each rank of this process, where ranks cannot write each other's memory.
    std::vector<std::unique_ptr<RankMerge>> merges;
    std::vector<DeviceBuffer> merged;
    Status failure(int rank) const;
    std::optional<int> missed_by(int rank) const;  // whom it waited for in vain
  };
  // The parts of this process's ranks, and what of their rooms each begins with.
  struct Places {
    Rooms rooms;
    std::vector<CudaPlace> places;
    std::vector<SampledToken*> tokens;
  };
  static Result<Places> places_of(const ModelConfig& config, const WorkerLimits& limits,
                                  const GpuProcesses* processes);
  static Result<std::unique_ptr<GpuWorker>> start_ranks(const ModelConfig& config, const LoadRank& load,
                                                        const WorkerLimits& limits,
                                                        std::unique_ptr<ProcessLinks> links);

  // A rank with what it has for steps of this worker.
  struct Member {
    std::unique_ptr<GpuRank> rank;
    std::optional<GpuSampler> sampler;  // of the first of each group with sequences of its own
    SampledToken* tokens = nullptr;     // on others: where the first one's tokens come to
    CudaEvent done[2];                  // by GpuSampler::Place: that its step is done
  };
  struct Ties {
    std::unique_ptr<GpuProcesses> processes;
    Rooms rooms;
  };
  GpuWorker(Ties ties, std::vector<Member> ranks, const WorkerLimits& limits);

  // The plan's names of what runs.
  struct Names {
    std::string_view experts, attention;
  };

  GpuRank& first() const { return *ranks_[0].rank; }
  int first_rank() const { return processes_ == nullptr ? 0 : processes_->first_rank(); }
  bool is_first_of_several() const { return processes_ != nullptr && processes_->is_first(); }
  // Which rank the others waited for in vain; ok: none. Any thread may ask.
  Status missing_rank() const;
  // Whether the others have long been done and the first is not.
  Status first_is_late() const;
  // Why a step has failed, told to the other processes.
  Status failed(const Status& why) const;
  // task(index) on the thread of each rank of this process; the first one's is the caller's.
  Status on_all(std::function<Status(int)> task);
  Status run_all();
  // One step of each size with its graph and without: refused where a bit differs.
  Status hold_graphs_to_eager_bits(int index, const WorkerLimits& limits);
  Status choose_on(int index, const Batch& batch);
  // Where the tokens of a rank's sequences are chosen; null: in another process.
  const SampledToken* chosen_for(int index) const {
    const auto& sampler = ranks_[static_cast<std::size_t>(index / rooms_.sharers * rooms_.sharers)].sampler;
    return sampler ? sampler->chosen() : nullptr;
  }
  // Returns when the older step is done; its place.
  Result<GpuSampler::Place> await_oldest();
  Status await(int index, const CudaEvent& done);
  // All ranks of all processes, once they have loaded, where they merge.
  Status join_merges();
  // What a rank has of the step at that place.
  const Batch& batch_of(int index, GpuSampler::Place place, const Batch& batch) const;

  Names names_;
  std::unique_ptr<GpuProcesses> processes_;  // null: this one is alone
  Rooms rooms_;
  std::vector<Member> ranks_;  // of this process
  const std::chrono::milliseconds first_patience_, merge_patience_;
  OwnerSteps own_[2];  // by place; empty where all ranks have all sequences
  std::vector<StepResult> own_results_;
  GpuSampler::Place newest_ = GpuSampler::first;
  int begun_ = 0;       // steps, and not finished
  bool chosen_ = true;  // the newest step's tokens
  // When somebody first asked and a rank was missing; 0: none was.
  mutable std::atomic<Stillness::Clock::rep> missing_since_ = 0;
  TimeTable* times_ = nullptr;
  std::int64_t device_bytes_ = 0;
  std::function<Status(int)> task_;
  std::optional<RankThreads> threads_;  // of several ranks
};

}  // namespace nibble
