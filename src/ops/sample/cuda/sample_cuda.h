// sample and row_statistics (ops/sample/sample.h) on a GPU, with the CPU's bits: for the same logits the same
// tokens and the same log-probabilities. What crosses to the host is a token and a few floats a row.
//
// The softmax's sum runs in the CPU's order; filters and draws add whole numbers, whose sums have none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"

namespace nibble {

inline constexpr int sample_cuda_block = 1024;  // ids, as row_block of the CPU's order
inline constexpr int sample_cuda_max_likeliest = 32;
inline constexpr int sample_cuda_max_vocabulary = 1024 * sample_cuda_block;

struct SampleCudaParams {  // of a row; as SampleParams
  float temperature = 1.0f;
  std::int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::uint32_t position = 0;
};

struct SampledToken {
  std::int32_t token = 0;
  std::int32_t finite = 1;  // 0: a NaN or Inf among the logits; the rest then means nothing
  float logprob = 0;
};

// What the kernels of one call hand each other: [rows, blocks of 1024 ids].
struct SampleCudaWorkspace {
  std::uint64_t* likeliest = nullptr;
  double* exp_sums = nullptr;
  std::int64_t* masses = nullptr;
};

// All pointers are to device memory.
struct SampleCudaArgs {
  const float* logits = nullptr;  // [rows, stride]
  int rows = 0;
  int vocabulary = 0;
  int stride = 0;
  const SampleCudaParams* params = nullptr;  // [rows]
  SampledToken* tokens = nullptr;            // [rows]
  // The likeliest ids of each row in descending order and their log-probabilities, if any are wanted.
  int likeliest = 0;                      // at most 32 and the vocabulary
  std::int32_t* likeliest_ids = nullptr;  // [rows, likeliest]
  float* likeliest_logprobs = nullptr;    // [rows, likeliest]
  SampleCudaWorkspace workspace;
};

constexpr int sample_cuda_blocks(int vocabulary) {
  return (vocabulary + sample_cuda_block - 1) / sample_cuda_block;
}

Status sample_cuda(const SampleCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
