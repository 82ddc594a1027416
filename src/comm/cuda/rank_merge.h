// How GPUs that cannot write each other's memory, as those of several hosts, get what the others have made:
// by NCCL.
//
// There is one operation. A buffer is laid out alike on all ranks; each has filled its own places, and has
// zeros everywhere else; behind the merge all have all of it. Words are added as integers, and of the words
// of one place all but one are zero. So bits arrive as they were, in whatever order the library adds them.
//
// A merge waits for all ranks, without end. So who waits for a step has to look at the clock, and gives up.
// All of it is the rank's own thread's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/status.h"
#include "comm/cuda/nccl.h"

namespace nibble {

class RankMerge {
 public:
  // Drawn by one rank for all; it also says where that rank listens for the others.
  static Result<NcclId> draw_id();

  RankMerge(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  RankMerge(const RankMerge&) = delete;
  RankMerge& operator=(const RankMerge&) = delete;
  ~RankMerge();

  // On the rank's device; returns once all ranks have joined and one merge has given what it should. Before
  // it nothing can be merged.
  Status join(const NcclId& id, cudaStream_t stream);

  int rank() const { return rank_; }
  // Queues a merge of so many bytes, a multiple of 4. All ranks queue the same ones in the same order, on one
  // stream each.
  Status merge(void* words, std::size_t bytes, cudaStream_t stream) const;
  // What the library has found since: a connection that broke.
  Status failure() const;
  // Merges that are queued end with garbage, and no other may be.
  void give_up();

 private:
  Status check(int result, const char* what) const;

  int rank_, ranks_;
  const NcclFunctions* nccl_ = nullptr;
  NcclComm comm_ = nullptr;  // null: not joined, or given up
};

}  // namespace nibble
