// cuda_check: a call to the CUDA runtime that must succeed. A device failure is neither a caller's mistake
// nor repairable: the process says where and stops.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/check.h"

namespace nibble {

inline void cuda_check(cudaError_t error, SourceLocation where = SourceLocation::current()) {
  if (error == cudaSuccess) [[likely]]
    return;
  check_failed("cudaSuccess", std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error), where);
}

}  // namespace nibble
