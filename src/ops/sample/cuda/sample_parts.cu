// Sampling's kernels 1 and 2 (sample_rows.cu), a warp a part of 1,024 ids. An exponential costs some 25
// instructions: a pass of them over 64 rows of gpt-oss takes the machine 12 us.
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/load_ahead.cuh"
#include "ops/sample/cuda/sample_row.cuh"

namespace nibble {
namespace {

using namespace sampling;

constexpr int sum_lanes = 16;
constexpr int part_warps = 4;
constexpr int part_threads = part_warps * 32;

__device__ __forceinline__ std::uint64_t likeliest_of_part(const float* row, int first, int past) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float some[block_ids / 32];
#pragma unroll
  for (int i = 0; i < block_ids / 32; ++i)
    some[i] = ptx::load_ahead(row + min(first + i * 32 + lane, past - 1));
  std::uint32_t most = 0;
  int most_id = 0x7fffffff;
#pragma unroll
  for (int i = 0; i < block_ids / 32; ++i) {
    const int id = first + i * 32 + lane;
    const std::uint32_t rank = is_finite(some[i]) ? rank_of(some[i]) : not_finite;
    if (id < past && rank > most) most = rank, most_id = id;  // ids ascend: the first of a tie stays
  }
  return greatest_of_warp(key_of(most, most_id));
}

// Kernel 1; and what is counted up later is set to zero.
__global__ void __launch_bounds__(part_threads)
    sample_scan(const __grid_constant__ SampleCudaArgs args, int first_row) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = first_row + static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const RowWorkspace workspace = workspace_of(args, static_cast<int>(blockIdx.y));
  const RowLogits view(args, row);
  const int parts = sample_cuda_blocks(args.vocabulary), step = static_cast<int>(gridDim.x);
  for (int part = static_cast<int>(blockIdx.x) * part_warps + thread / 32; part < parts;
       part += step * part_warps) {
    const int first = part * block_ids, past = min(first + block_ids, args.vocabulary);
    const std::uint64_t own = likeliest_of_part(view.logits, first, past);
    const std::uint64_t chosen = view.from == view.logits ? own : likeliest_of_part(view.from, first, past);
    if (thread % 32 == 0) workspace.likeliest[part] = own, workspace.likeliest[parts + part] = chosen;
  }
  if (!Wishes(args, args.params[row]).searches()) return;
  for (int i = static_cast<int>(blockIdx.x) * part_threads + thread; i < Shares::levels * Shares::bins;
       i += step * part_threads)
    workspace.bins[i] = 0;
  if (blockIdx.x == 0 && thread < gatherings) workspace.counts[thread] = 0;
}

// What kernel 2 adds up of a part, by a warp.
struct PartSums {
  double exp_sum;  // of lane 0
  Mass mass;       // of all lanes
};
enum class Masses { none, whole, by_weight };
template <Masses masses>
__device__ __forceinline__ PartSums weigh_part(const RowLogits& view, const SampleCudaParams& params,
                                               float largest, const Weighing& weighing, Histogram& histogram,
                                               int first, int count) {
  constexpr int ahead = 8;  // logits on their way, and exponentials side by side
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool same = view.from == view.logits && weighing.temperature == 1.0f;
  double sum = 0;
  Mass mass = 0;
#pragma unroll 1
  for (int at = lane; at < block_ids; at += ahead * 32) {
    float powers[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
      powers[i] = ptx::load_ahead(view.logits + first + min(at + i * 32, count - 1));
#pragma unroll
    for (int i = 0; i < ahead; ++i)
      powers[i] = at + i * 32 < count ? fixed_exp_of_negative(__fsub_rn(powers[i], largest)) : 0.0f;
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const float next = __shfl_down_sync(all_lanes, powers[i], sum_lanes);
      // Of the first sixteen lanes, as all below. What is not there adds a zero, which changes no sum.
      sum += static_cast<double>(powers[i]);
      sum += static_cast<double>(next);
    }
    if (masses == Masses::none) continue;
    if (!same) {
#pragma unroll
      for (int i = 0; i < ahead; ++i)
        powers[i] = ptx::load_ahead(view.from + first + min(at + i * 32, count - 1));
#pragma unroll
      for (int i = 0; i < ahead; ++i) powers[i] = at + i * 32 < count ? weighing.weight(powers[i]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (masses == Masses::whole) {
        if (powers[i] >= params.min_p) mass += Weighing::mass(powers[i]);
      } else if (Weighing::mass(powers[i]) > 0) {
        histogram.add(static_cast<int>(Weighing::bucket(powers[i])), Weighing::mass(powers[i]));
      }
    }
  }
  for (int width = sum_lanes / 2; width > 0; width /= 2) sum += __shfl_down_sync(all_lanes, sum, width);
  return {sum, masses == Masses::whole ? mass_of_warp(mass) : 0};
}

// Kernel 2.
template <Masses masses>
__device__ __forceinline__ void weigh_parts(const SampleCudaArgs& args, const RowLogits& view,
                                            const RowWorkspace& workspace, const SampleCudaParams& params,
                                            float largest, const Weighing& weighing, Histogram& histogram) {
  const int parts = sample_cuda_blocks(args.vocabulary);
  for (int part = static_cast<int>(blockIdx.x) * part_warps + static_cast<int>(threadIdx.x) / 32;
       part < parts; part += static_cast<int>(gridDim.x) * part_warps) {
    const PartSums sums = weigh_part<masses>(view, params, largest, weighing, histogram, part * block_ids,
                                             min(block_ids, args.vocabulary - part * block_ids));
    if (threadIdx.x % 32 == 0) {
      workspace.exp_sums[part] = sums.exp_sum;
      if (masses == Masses::whole) workspace.masses[part] = sums.mass;
    }
  }
}

__global__ void __launch_bounds__(part_threads)
    sample_weigh(const __grid_constant__ SampleCudaArgs args, int first_row) {
  __shared__ Histogram histogram;
  __shared__ std::uint64_t of_warps[part_warps];
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int row = first_row + static_cast<int>(blockIdx.y), parts = sample_cuda_blocks(args.vocabulary);
  const RowWorkspace workspace = workspace_of(args, static_cast<int>(blockIdx.y));
  const RowLogits view(args, row);
  const SampleCudaParams params = args.params[row];
  const Wishes wishes(args, params);
  const std::uint64_t likeliest = likeliest_of_row<part_threads>(of_warps, workspace.likeliest, parts);
  if (rank_of_key(likeliest) == not_finite) return;
  const std::uint64_t chosen =
      view.from == view.logits ? likeliest
                               : likeliest_of_row<part_threads>(of_warps, workspace.likeliest + parts, parts);
  const float largest = logit_of(rank_of_key(likeliest));
  const Weighing weighing{logit_of(rank_of_key(chosen)), params.temperature};
  if (wishes.by_weight()) {
    histogram.clear<part_threads>();
    weigh_parts<Masses::by_weight>(args, view, workspace, params, largest, weighing, histogram);
    __syncthreads();  // all masses are in the histogram
    publish<part_threads>(histogram, workspace, 0);
  } else if (wishes.whole()) {
    weigh_parts<Masses::whole>(args, view, workspace, params, largest, weighing, histogram);
  } else {
    weigh_parts<Masses::none>(args, view, workspace, params, largest, weighing, histogram);
  }
}

// Blocks a row of kernels 1 and 2: a part a warp where rows are few, more where blocks are many anyway.
int part_blocks(int rows, int vocabulary) {
  const int warps = part_warps * (rows >= 32 ? 4 : rows >= 8 ? 2 : 1);
  return (sample_cuda_blocks(vocabulary) + warps - 1) / warps;
}

}  // namespace

void sampling::run_parts(const SampleCudaArgs& args, int first_row, int rows, cudaStream_t stream) {
  const Launch parts{
      .blocks = dim3(static_cast<unsigned>(part_blocks(rows, args.vocabulary)), static_cast<unsigned>(rows)),
      .threads = part_threads,
      .stream = stream,
      .overlaps = true,
      .share = share_of(args.rows)};
  launch_kernel(parts, sample_scan, args, first_row);
  launch_kernel(parts, sample_weigh, args, first_row);
}

}  // namespace nibble
