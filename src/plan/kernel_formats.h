// Which formats of experts a kernel takes.
#pragma once

#include "plan/kernel_table.h"

namespace nibble {

// A CPU's kernels decode whichever format a checkpoint has (ops/linear/weight_matrix.h); one of a GPU is made
// for one, that of FP8 in blocks for FP8 by row too.
inline bool takes_format(const ExpertKernel& kernel, StoredFormat format) {
  return kernel.facts.device == DeviceKind::cpu || kernel.format == format ||
         (kernel.format == StoredFormat::fp8_block && format == StoredFormat::fp8_row);
}

}  // namespace nibble
