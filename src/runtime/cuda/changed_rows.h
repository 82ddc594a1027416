// Copies on the GPU of those rows of a step's logits that a token is chosen from after changes: penalties,
// biases, masks, tokens that may not come yet. Their lists are put together on the host while the forward
// runs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/batch.h"
#include "ops/sample/logit_change_list.h"
#include "runtime/worker.h"
#include "tensor/device_buffer.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

class ChangedRows {
 public:
  static Result<ChangedRows> allocate(const WorkerLimits& limits, int vocabulary);
  static std::size_t device_bytes(const WorkerLimits& limits, int vocabulary);

  // A step of so many rows of logits begins.
  void begin(std::size_t logit_rows);
  // Lists what the sequence wants changed of the row behind so many drafts; false where the room has not
  // enough left. The lists of the last step that had any have been copied by then.
  bool add(const BatchSequence& sequence, int drafts);
  // Queues the copies and their changes.
  Status queue(const float* logits, cudaStream_t stream);

  // As sample_cuda takes them; null where the step changes no row.
  const float* rows() { return count_ > 0 ? changed_.as<float>() : nullptr; }
  const std::int32_t* of_logit_rows();

  // [max_decode_rows, vocabulary] on the device, nobody's between steps.
  float* room_between_steps() { return changed_.as<float>(); }

 private:
  // Byte offsets within the lists.
  struct Layout {
    std::size_t of_logit_rows, logit_rows, starts, mask_rows, changes, masks, bytes;
    Layout(const WorkerLimits& limits, int vocabulary, std::size_t room);
  };

  ChangedRows(const WorkerLimits& limits, int vocabulary);

  std::size_t mask_bytes() const;  // of one

  int vocabulary_;
  std::size_t most_;  // rows that a step changes
  std::size_t room_;  // changes of a step
  Layout layout_;
  DeviceBuffer changed_;               // [most_, vocabulary]
  DeviceBuffer device_;                // the lists
  PinnedBuffer host_;                  // likewise
  std::vector<LogitChange> changes_;   // [room_]
  std::vector<std::uint32_t> counts_;  // [vocabulary], all 0 between calls
  // Of the step: all of them, those that are changed, of those the ones with a mask.
  std::size_t logit_rows_ = 0, count_ = 0, masked_ = 0;
};

}  // namespace nibble
