// The rank of a token among a row's logits, as the CPU counts it: 1 and how many tokens are likelier. Equal
// logits share a rank.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble {

// All pointers are to device memory.
struct TargetRanksCudaArgs {
  const float* logits = nullptr;  // [rows, stride]
  int rows = 0;
  int vocabulary = 0;
  int stride = 0;
  const std::int32_t* targets = nullptr;  // [rows]; -1: none
  std::int32_t* ranks = nullptr;          // [rows]; left alone where there is no target
};

void target_ranks_cuda(const TargetRanksCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
