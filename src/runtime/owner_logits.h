// Where groups of ranks have sequences of their own and lie in several processes, the logits of each group
// come to the first process. Tokens are chosen there: masks, penalties, seeds and the rooms for results lie
// in the scheduler, and masks are only found while the forward runs. A row of logits is no more than --tp's
// ranks send each other of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/process_links.h"
#include "runtime/owner_steps.h"
#include "runtime/worker.h"

namespace nibble {

class OwnerLogits {
 public:
  OwnerLogits() = default;  // nothing travels
  // A group of the first rank and each owner's first that is in another process than that. All processes
  // make them alike.
  static Result<OwnerLogits> join(const WorkerLimits& limits, std::size_t slot_bytes,
                                  const Communicator::Options& options);

  // By a rank's thread, behind its forward: gives or takes what is its to give or take.
  // logits: [rows of the whole step, vocabulary]
  Status travel(int rank, const OwnerSteps& steps, std::int64_t vocabulary, float* logits);

 private:
  struct End {
    int owner = 0;
    Communicator communicator;
  };
  static constexpr int taker = 0, giver = 1;  // members of such a group

  std::vector<End> ends_;             // of this process's ranks
  std::vector<std::uint8_t> givers_;  // [max_logit_rows]: who has a row
};

}  // namespace nibble
