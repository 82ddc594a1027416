// A block copies a piece of a row, then changes what the row's list has of it, a thread each id. Bytes: 8 a
// logit, from and to the second-level cache: 1.6 MB a row of gpt-oss.
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/sample/cuda/change_logits_cuda.h"

namespace nibble {
namespace {

constexpr int change_threads = 256;
constexpr int piece_ids = 8 * change_threads;

__device__ __forceinline__ float kept_within(float logit) {
  if (logit < -largest_changed_logit) return -largest_changed_logit;
  return largest_changed_logit < logit ? largest_changed_logit : logit;
}

__device__ __forceinline__ float changed_by(float logit, const LogitChange& change) {
  switch (change.kind) {
    case LogitChangeKind::add: return __fadd_rn(logit, change.value);
    case LogitChangeKind::penalize: return logit > 0 ? logit / change.value : __fmul_rn(logit, change.value);
    case LogitChangeKind::subtract: return __fsub_rn(logit, change.value);
    default: return -largest_changed_logit;
  }
}

// The first of a row's changes, in [begin, end), whose id is not below `id`.
__device__ __forceinline__ int first_from(const LogitChange* changes, int begin, int end, int id) {
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (changes[middle].id < id) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The row's mask; null: every id may come.
__device__ __forceinline__ const std::uint32_t* mask_of(const ChangeLogitsCudaArgs& args, int row) {
  if (args.mask_rows == nullptr || args.mask_rows[row] < 0) return nullptr;
  return args.masks + static_cast<std::size_t>(args.mask_rows[row]) *
                          static_cast<std::size_t>((args.vocabulary + 31) / 32);
}

__device__ __forceinline__ bool may_come(const std::uint32_t* mask, int id) {
  return mask == nullptr || (mask[id / 32] >> id % 32 & 1) != 0;
}

__global__ void __launch_bounds__(change_threads)
    change_logits_rows(const __grid_constant__ ChangeLogitsCudaArgs args) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x) * piece_ids, past = min(first + piece_ids, args.vocabulary);
  const std::size_t stride = static_cast<std::size_t>(args.stride);
  const float* const from = args.logits + static_cast<std::size_t>(args.logit_rows[row]) * stride;
  float* const to = args.changed + static_cast<std::size_t>(row) * stride;
  const std::uint32_t* const mask = mask_of(args, row);
#pragma unroll
  for (int i = 0; i < piece_ids; i += change_threads) {
    const int id = first + i + thread;
    if (id < past) to[id] = may_come(mask, id) ? kept_within(from[id]) : masked_logit;
  }
  const int end = args.starts[row + 1];
  const int begin = first_from(args.changes, args.starts[row], end, first);
  const int past_end = first_from(args.changes, begin, end, past);
  __syncthreads();  // the copies are written, which changes overwrite
  for (int i = begin + thread; i < past_end; i += change_threads) {
    const int id = args.changes[i].id;
    if (i > begin && args.changes[i - 1].id == id) continue;  // the thread of the id's first change has it
    if (!may_come(mask, id)) continue;
    float logit = from[id];
    for (int next = i; next < past_end && args.changes[next].id == id; ++next)
      logit = changed_by(logit, args.changes[next]);
    to[id] = kept_within(logit);
  }
}

}  // namespace

Status change_logits_cuda(const ChangeLogitsCudaArgs& args, cudaStream_t stream) {
  if (args.stride < args.vocabulary) {
    return invalid_argument("rows of " + std::to_string(args.vocabulary) +
                            " logits need a stride of as many, not " + std::to_string(args.stride));
  }
  if (args.rows == 0) return {};
  launch_kernel({.blocks = dim3(static_cast<unsigned>((args.vocabulary + piece_ids - 1) / piece_ids),
                                static_cast<unsigned>(args.rows)),
                 .threads = change_threads,
                 .stream = stream,
                 .overlaps = true},
                change_logits_rows, args);
  return {};
}

}  // namespace nibble
