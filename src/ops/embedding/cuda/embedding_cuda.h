// embedding (ops/embedding/embedding.h) on a GPU; exact.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "formats/bf16.h"
#include "ops/sample/cuda/sample_cuda.h"

namespace nibble {

// All pointers are to device memory.
struct EmbeddingCudaArgs {
  const Bf16* table = nullptr;  // [vocabulary, hidden]
  // [rows]: inside the table, or -1 - i for the token of chosen[i], which the step before left there.
  const std::int32_t* ids = nullptr;
  const SampledToken* chosen = nullptr;
  int rows = 0;
  int hidden = 0;        // a multiple of 8
  float* out = nullptr;  // [rows, hidden]
};

Status embedding_cuda(const EmbeddingCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
