// Which choices a launch takes (MoeCudaShare), as kernels ask it.
#pragma once

#include <cstdint>

#include "ops/cuda/host_device.h"

namespace nibble {

struct MoeTaken {
  int first_expert, begin, end, turns, turn;

  // The chosen expert's place among the layer's; -1: the choice is not taken, or of none.
  NIBBLE_HOST_DEVICE std::int32_t expert_of(int slot, std::int32_t id) const {
    const bool is_taken = turns > 1 ? id >= 0 && slot % turns == turn : id >= begin && id < end;
    return is_taken ? id - first_expert : -1;
  }
};

}  // namespace nibble
