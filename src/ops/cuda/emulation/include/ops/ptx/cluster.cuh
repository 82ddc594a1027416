// The twin of src/ops/ptx/cluster.cuh on the emulation.
#pragma once

#include "ops/cuda/emulation/emulation.h"

namespace nibble::ptx {

inline void cluster_barrier() { emulation::cluster_barrier(); }

}  // namespace nibble::ptx
