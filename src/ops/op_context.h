// What every op is handed besides its arguments. Passed down from the runtime's worker, never global.
#pragma once

#include "base/thread_pool.h"
#include "ops/linear/dot_tile.h"

namespace nibble {

struct OpContext {
  ThreadPool& threads;  // owned by the worker, which outlives every op it runs
  const DotKernels& dots = best_dot_kernels();
};

}  // namespace nibble
