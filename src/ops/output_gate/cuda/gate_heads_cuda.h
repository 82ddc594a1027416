// gate_outputs (ops/output_gate/output_gate.h) on a GPU: what attention's heads give, in bfloat16, times the
// sigmoid of their gates, in float32, rounded to bfloat16 again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"

namespace nibble {

// All pointers are to device memory.
struct GateHeadsCudaArgs {
  std::uint8_t* out =
      nullptr;  // token tiles (ops/linear/cuda/dense_tiles.h) of heads * head_dim columns, updated
  const float* gates = nullptr;  // the first head's; the next one's is 2 * head_dim further on
  int stride = 0;                // floats from a row's gates to the next one's
  int rows = 0;
  int heads = 0;
  int head_dim = 0;  // a multiple of 64
};

Status gate_heads_cuda(const GateHeadsCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
