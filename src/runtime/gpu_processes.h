// The other processes whose GPUs share a model, as this one's worker sees them. What the GPUs write each
// other is none of their business here: that is memory that all have mapped (comm/cuda/peer_memory.h). The
// first process has the batches and the samplers. It tells the others each call of a step, and they make the
// same calls in the same order, so that the launches of all GPUs meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/process_links.h"
#include "core/batch.h"
#include "runtime/step_message.h"

namespace nibble {

class GpuProcesses {
 public:
  // Of Worker, in its order; `begin`: all processes have come to where GPUs wait for each other.
  enum class Call : std::uint8_t { begin, forward, choose, finish };

  explicit GpuProcesses(std::unique_ptr<ProcessLinks> links) : links_(std::move(links)) {}
  ~GpuProcesses() { end(); }
  GpuProcesses(const GpuProcesses&) = delete;
  GpuProcesses& operator=(const GpuProcesses&) = delete;

  bool is_first() const { return links_->first_rank() == 0; }
  int first_rank() const { return links_->first_rank(); }
  int ranks_here() const { return links_->ranks_here(); }
  HandleExchange& handles() const { return *links_->handles(); }

  // From here on a process that ends is a failure.
  void begin() { links_->begin(awake_, fault_); }
  // Returns when all have come. Loading may take one minutes longer than another, and a GPU waits for another
  // for seconds. `shared` is then what the first process had in its own.
  Status meet(std::span<std::byte> shared = {});
  // Once steps can come. The first waits for the others.
  Status become_ready();
  // Says so to the others, where the first process has no more steps.
  void end() { links_->end(); }

  // By the first: what all others do now too. Of a forward its batch.
  void tell(Call call, const Batch* batch = nullptr);

  // By the others: the next call; none: the first has ended.
  Result<std::optional<Call>> next();
  // Of the forward that came last.
  const Batch& batch() const { return step_.batch(); }

  // Which process has gone, or that one has failed. Any thread may ask.
  Status failure() const { return status_of(fault_); }
  // What a step of this process has come to: where another process has gone, that is why. The others will
  // take this one for lost.
  Status failed(const Status& why);

 private:
  // A kernel's wait for a rank ends by itself, so nobody has to look at its threads.
  struct Awake final : PeerWatch {
    PeerSight look(int rank) const override { return {.rank = rank, .works = true, .beats = 0, .cpu = {}}; }
  };

  Fault fault_;
  const Awake awake_;
  std::vector<std::byte> message_;
  ReceivedStep step_{1};
  const std::unique_ptr<ProcessLinks> links_;  // ends before what it refers to
};

}  // namespace nibble
