// sample and row_statistics (ops/sample/sample.h) on a GPU, with the CPU's bits: for the same logits the same
// tokens and the same log-probabilities. What crosses to the host is a token and a few floats a row.
//
// The softmax's sum runs in the CPU's order; filters and draws add whole numbers, whose sums have none.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
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

// All pointers but one are to device memory. Log-probabilities are of the softmax over `logits`.
struct SampleCudaArgs {
  const float* logits = nullptr;  // [rows, stride]
  int rows = 0;
  int vocabulary = 0;
  int stride = 0;
  const SampleCudaParams* params = nullptr;  // [rows]
  SampledToken* tokens = nullptr;            // [rows]
  // The same in pinned memory of the host, as a copy behind the kernels would take longer. Null: nowhere.
  SampledToken* host_tokens = nullptr;  // [rows]
  // What tokens are chosen from where that is not `logits` (change_logits_cuda.h): rows of the same stride,
  // and for each row of logits its number among them, -1: unchanged. Null: no row was changed.
  const float* changed = nullptr;
  const std::int32_t* changed_rows = nullptr;  // [rows]
  // Ids whose log-probability is wanted too, -1: none. Null: of no row.
  const std::int32_t* targets = nullptr;  // [rows]
  float* target_logprobs = nullptr;       // [rows]; left alone where there is no target
  // The likeliest ids of each row of `logits` in descending order and their log-probabilities, if wanted.
  int likeliest = 0;                      // at most 32 and the vocabulary
  std::int32_t* likeliest_ids = nullptr;  // [rows, likeliest]
  float* likeliest_logprobs = nullptr;    // [rows, likeliest]
  // [sample_cuda_workspace_bytes], aligned to 16; what it holds before and after means nothing.
  std::uint8_t* workspace = nullptr;
  // Blocks that share a row, at most: what the device runs as one cluster (sample_cuda_cluster). A power of
  // two. No bit depends on it.
  int most_row_blocks = 8;
};

constexpr int sample_cuda_blocks(int vocabulary) {
  return (vocabulary + sample_cuda_block - 1) / sample_cuda_block;
}

// How the blocks of a launch share rows, and what they hand each other.
struct SampleCudaShares {
  static constexpr int most_blocks = 256;        // of the rows of a launch: about those that run at once
  static constexpr int most_ids = 1 << 18;       // of a block: their masses' parts fit 32 bits
  static constexpr int levels = 7, bins = 2048;  // histograms of a row
  static constexpr int gathered = 1024;          // ids of a row whose order decides

  static constexpr int most_row_blocks = 16;

  // Blocks a row, a power of two up to `most`, or what the vocabulary needs at least.
  static constexpr int blocks(int rows, int vocabulary, int most) {
    int count = most;
    while (count > 1 && (count * rows > most_blocks || count > sample_cuda_blocks(vocabulary))) count /= 2;
    while (count * most_ids < vocabulary) count *= 2;
    return count;
  }
  static constexpr std::size_t row_bytes(int vocabulary) {
    return (std::size_t{levels} * bins + gathered +
            4 * static_cast<std::size_t>(sample_cuda_blocks(vocabulary))) *
               8 +
           64;
  }
};

// Enough for any number of rows up to this one.
constexpr std::size_t sample_cuda_workspace_bytes(int rows, int vocabulary) {
  return static_cast<std::size_t>(std::min(rows, SampleCudaShares::most_blocks)) *
         SampleCudaShares::row_bytes(vocabulary);
}

// The largest cluster of a row's blocks that the device in use can run, asked once when memory is taken: 16
// is more than every device with clusters promises.
int sample_cuda_cluster();

Status sample_cuda(const SampleCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
