// A row as sampling's kernels share it: what it asks for, and what they hand each other.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/sample/cuda/sample_search.cuh"

namespace nibble::sampling {

using Shares = SampleCudaShares;
constexpr int most_parts = sample_cuda_max_vocabulary / block_ids;  // a part: 1,024 ids
constexpr int small_top_k = 128;                                    // at most: they are listed by one block
constexpr int gatherings = 16;                                      // of a row, at most

// What the blocks of a row hand each other.
struct RowWorkspace {
  std::uint64_t* likeliest;  // [2, parts]: of the logits, of what is chosen from
  double* exp_sums;          // [parts]
  Mass* masses;              // [parts]
  unsigned long long* bins;  // [Shares::levels, Shares::bins]
  unsigned* counts;          // [gatherings]
  std::uint64_t* gathered;   // [Shares::gathered]
};

__device__ __forceinline__ RowWorkspace workspace_of(const SampleCudaArgs& args, int row) {
  const std::size_t parts = static_cast<std::size_t>(sample_cuda_blocks(args.vocabulary));
  std::uint8_t* at = args.workspace + static_cast<std::size_t>(row) * Shares::row_bytes(args.vocabulary);
  RowWorkspace room{};
  room.bins = reinterpret_cast<unsigned long long*>(at);
  room.gathered = reinterpret_cast<std::uint64_t*>(room.bins + Shares::levels * Shares::bins);
  room.exp_sums = reinterpret_cast<double*>(room.gathered + Shares::gathered);
  room.masses = reinterpret_cast<Mass*>(room.exp_sums + parts);
  room.likeliest = reinterpret_cast<std::uint64_t*>(room.masses + parts);
  room.counts = reinterpret_cast<unsigned*>(room.likeliest + 2 * parts);
  return room;
}

// What a row asks for.
struct Wishes {
  bool draws, few, small, mass;  // small: top_k leaves so few that one block lists them

  __device__ Wishes(const SampleCudaArgs& args, const SampleCudaParams& params) {
    draws = params.temperature > 0;
    few = draws && params.top_k > 0 && params.top_k < args.vocabulary;
    small = few && params.top_k <= small_top_k;
    mass = draws && params.top_p < 1;
  }
  __device__ bool searches() const { return !small && (few || mass); }
  __device__ bool by_weight() const { return mass && !few; }        // kernel 2 fills a histogram
  __device__ bool whole() const { return draws && !few && !mass; }  // kernel 2 finds what to draw from
};

// A row: its logits and what is chosen from.
struct RowLogits {
  const float *logits, *from;

  __device__ RowLogits(const SampleCudaArgs& args, int row) {
    const std::size_t stride = static_cast<std::size_t>(args.stride);
    const int changed = args.changed_rows == nullptr ? -1 : args.changed_rows[row];
    logits = args.logits + static_cast<std::size_t>(row) * stride;
    from = changed < 0 ? logits : args.changed + static_cast<std::size_t>(changed) * stride;
  }
};

// The likeliest id of the row, to all threads.
template <int threads>
__device__ __forceinline__ std::uint64_t likeliest_of_row(std::uint64_t* of_warps,
                                                          const std::uint64_t* of_parts, int parts) {
  std::uint64_t own = 0;
  for (int part = static_cast<int>(threadIdx.x); part < parts; part += threads)
    own = max(own, __ldcg(of_parts + part));
  own = greatest_of_warp(own);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
  __syncthreads();  // every warp's is there
  for (int warp = 0; warp < threads / 32; ++warp) own = max(own, of_warps[warp]);
  __syncthreads();  // they have been read
  return own;
}

// Adds the block's histogram to the row's of this level.
template <int threads>
__device__ __forceinline__ void publish(const Histogram& histogram, const RowWorkspace& workspace,
                                        int level) {
  for (int i = static_cast<int>(threadIdx.x); i < Shares::bins; i += threads) {
    const Mass sum = histogram.sum(i);
    if (sum != 0) add_to(workspace.bins + level * Shares::bins + i, sum);
  }
}

// Queues kernels 1 and 2 for rows that begin with `first_row`.
void run_parts(const SampleCudaArgs& args, int first_row, int rows, cudaStream_t stream);

}  // namespace nibble::sampling
