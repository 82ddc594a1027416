// Slots for states in the tests of the gated delta rule, full of garbage: nothing is read before it is
// written.
#pragma once

#include <cstring>

#include "ops/aligned_bytes.h"
#include "ops/gated_delta/delta_state.h"

namespace nibble {

class DeltaSlots {
 public:
  DeltaSlots(const DeltaShape& shape, int count, int snapshots = 1)
      : shape_(shape),
        bytes_(static_cast<std::size_t>(delta_state_bytes(shape) * count)),
        snapshots_(static_cast<std::size_t>(delta_snapshot_bytes(shape) * snapshots)) {
    for (AlignedBytes* each : {&bytes_, &snapshots_})
      std::memset(each->data(), 0xff, each->span().size());  // NaN as a float
  }
  DeltaLayer layer() { return {.shape = shape_, .memory = bytes_.data(), .snapshots = snapshots_.data()}; }

 private:
  DeltaShape shape_;
  AlignedBytes bytes_, snapshots_;
};

}  // namespace nibble
