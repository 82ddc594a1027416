// How fast this machine reads memory: the bound of a decode step, measured in the same run.
#pragma once

#include "base/status.h"

namespace nibble {

// Bytes a second that `threads` threads read together from a buffer far larger than the caches, with lines
// asked for ahead or without; the best of a few passes.
Result<double> measure_read_bandwidth(int threads);

}  // namespace nibble
