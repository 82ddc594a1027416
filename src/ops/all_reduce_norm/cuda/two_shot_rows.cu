// Two-shot, a block some rows: each row has an owner. Everybody sends the owner its part; the owner adds,
// takes the sum into the residual and norms it; then it sends to all either the normed row, 2 x hidden bytes,
// or, where all keep the residual (or there is no norm), the new residual, 4 x hidden bytes, from which each
// norms the row itself. In place of the normed row go codes with their scales, hidden + 4 bytes of FP8 or
// 3 / 4 x hidden of FP4. Bytes out of a member, a row: 4 x hidden x (members - 1) / members, and as many
// times the row that goes back.
//
// A block has several rows. It sends all its parts first, then adds the rows it owns, then takes in the
// others': no wait comes before a send that somebody else's wait depends on, other than an owner's for parts.
#include <algorithm>

#include "ops/all_reduce_norm/cuda/peer_norm_kernels.h"
#include "ops/all_reduce_norm/cuda/peer_norm_row.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int two_shot_blocks = 256;  // at most, two on each multiprocessor

// A row that its owner has normed: out of the window, which is armed again.
template <int members>
__device__ __forceinline__ void take_normed(const PeerGroup& group, const Bf16Rows& out, int hidden,
                                            std::uint32_t step, int row, PeerWait& wait) {
  const int first = static_cast<int>(threadIdx.x) * 8, past = columns_written(out, hidden);
  const int owner = owner_of_row(row, members);
#pragma unroll 1
  for (int column = first; column < max(past, hidden); column += norm_passes * norm_pass_columns) {
    uint4 words[norm_passes];
    const auto slot = [&](int i) -> uint4* {
      const int here = column + i * norm_pass_columns;
      return here < hidden ? row_slot(group, group.member, row, here) : nullptr;
    };
    await(
        words, armed_row, slot, [&](int) { return owner; }, wait, step, row);
#pragma unroll
    for (int i = 0; i < norm_passes; ++i) {
      if (slot(i) != nullptr) ptx::store_peer(slot(i), four_times(armed_row));
      put_norm(out, {row, column + i * norm_pass_columns, hidden}, words[i]);
    }
  }
}
template <int members, class Rows>
__device__ __forceinline__ void take_normed(const PeerGroup& group, const Rows& out, int hidden,
                                            std::uint32_t step, int row, PeerWait& wait) {
#pragma unroll 1
  for (int base = 0; base < hidden; base += columns_of_fours) {
    RowPlace at[fours_of_passes];
    typename CodesOf<Rows>::Four fours[fours_of_passes];
#pragma unroll
    for (int i = 0; i < fours_of_passes; ++i) at[i] = {row, column_of_four(base, i), hidden};
    take_fours(group, step, owner_of_row(row, members), at, fours, wait);
#pragma unroll
    for (int i = 0; i < fours_of_passes; ++i) put_four(out, at[i], fours[i]);
  }
}

// A row's new residual, or its sum, from its owner, to x; behind a barrier of the block.
template <int members>
__device__ __forceinline__ void take_sums(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                                          std::uint32_t step, int row, float* x, PeerWait& wait) {
  const int hidden = args.hidden, owner = owner_of_row(row, members);
#pragma unroll 1
  for (int base = 0; base < hidden; base += columns_of_fours) {
    uint4 words[fours_of_passes];
    const auto slot = [&](int i) -> uint4* {
      const int here = column_of_four(base, i);
      return here < hidden ? sum_slot(group, group.member, row, here) : nullptr;
    };
    await(
        words, armed_sum, slot, [&](int) { return owner; }, wait, step, row);
#pragma unroll
    for (int i = 0; i < fours_of_passes; ++i) {
      const int here = column_of_four(base, i);
      if (here >= hidden) continue;
      ptx::store_peer(slot(i), four_times(armed_sum));
      const float4 four = floats_of(words[i]);
      if (args.residual != nullptr)
        *reinterpret_cast<float4*>(args.residual + row_begin(args, row) + here) = four;
      *reinterpret_cast<float4*>(x + here) = four;
    }
  }
  __syncthreads();  // the row is there
}

template <int members>
__device__ __forceinline__ void give_sums(const PeerGroup& group, const AllReduceNormCudaArgs& args, int row,
                                          const float* x) {
  for (int column = static_cast<int>(threadIdx.x) * 4; column < args.hidden; column += norm_threads * 4) {
    const float4 four = *reinterpret_cast<const float4*>(x + column);
    // The residual of -0.0f and a sum of +0.0f is +0.0f, so this is never the armed value either.
#pragma unroll
    for (int i = 1; i < members; ++i)
      ptx::store_peer(sum_slot(group, (group.member + i) % members, row, column), words_of(four));
  }
}

// What a row's owner has normed, to all others: eight columns of bfloat16, or four of codes.
template <int members>
__device__ __forceinline__ void give_normed(const PeerGroup& group, const RowPlace& at, const uint4& words) {
#pragma unroll
  for (int i = 1; i < members; ++i)
    ptx::store_peer(row_slot(group, (group.member + i) % members, at.row, at.column), words);
}
template <int members, class Four>
__device__ __forceinline__ void give_normed(const PeerGroup& group, const RowPlace& at, const Four& four) {
  give_codes<members>(group, at, four);
}

template <class Rows, int members>
__global__ void __launch_bounds__(norm_threads, 2)
    two_shot_rows(const __grid_constant__ PeerGroup group, const __grid_constant__ AllReduceNormCudaArgs args,
                  const __grid_constant__ Rows out, const bool sums_go_back) {
  float* const x = reinterpret_cast<float*>(ptx::dynamic_shared());  // [hidden]
  __shared__ float of_warp[norm_warps];
  ptx::grid_launch_dependents();
  const FirstWeights weights = first_weights(args);
  ptx::grid_dependency_wait();
  // Neighbours, which have different owners.
  const int each = (args.rows + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int begin = static_cast<int>(blockIdx.x) * each, end = min(begin + each, args.rows);
  for (int row = begin; row < end; ++row)
    push_row(group, args, __ldcg(group.steps + row), row, 1, [&](int) { return owner_of_row(row, members); });
  PeerWait wait(group, PeerWait::For::parts), owners(group, PeerWait::For::owner);
  for (int row = begin; row < end; ++row) {
    if (owner_of_row(row, members) != group.member) continue;
    take_row<members>(group, args, __ldcg(group.steps + row), row, x, wait);
    if (sums_go_back) give_sums<members>(group, args, row, x);
    if (args.weight != nullptr) {
      norm_row(args, out, row, x, scale_of_row(args, x, of_warp), weights,
               [&](const RowPlace& at, const auto& normed) {
                 if (!sums_go_back) give_normed<members>(group, at, normed);
               });
    }
    __syncthreads();  // x and the warps' sums have been read
  }
  for (int row = begin; row < end; ++row) {
    if (owner_of_row(row, members) == group.member) continue;
    const std::uint32_t step = __ldcg(group.steps + row);
    if (!sums_go_back) {
      take_normed<members>(group, out, args.hidden, step, row, owners);
      continue;
    }
    take_sums<members>(group, args, step, row, x, owners);
    if (args.weight != nullptr)
      norm_row(args, out, row, x, scale_of_row(args, x, of_warp), weights, [](const auto&...) {});
    __syncthreads();  // x and the warps' sums have been read
  }
  __syncthreads();  // every thread has read the rows' steps
  if (threadIdx.x != 0) return;
  for (int row = begin; row < end; ++row) group.steps[row] = __ldcg(group.steps + row) + 1;
}

template <class Rows>
constexpr OfMembers kernels_two_shot_rows{two_shot_rows<Rows, 2>, two_shot_rows<Rows, 4>,
                                          two_shot_rows<Rows, 8>};

}  // namespace

void load_two_shot_rows(int members) {
  for_each_form([&]<class Rows>(const Rows&) { kernels_two_shot_rows<Rows>.load(members); });
}

void launch_two_shot_rows(const PeerGroup& group, const AllReduceNormCudaArgs& args, cudaStream_t stream) {
  const Launch launch{.blocks = dim3(static_cast<unsigned>(std::min(args.rows, two_shot_blocks))),
                      .threads = norm_threads,
                      .shared_bytes = static_cast<std::size_t>(args.hidden) * sizeof(float),
                      .stream = stream,
                      .overlaps = true,
                      .share = share_of(args.rows)};
  with_form(args, [&]<class Rows>(const Rows& out) {
    launch_kernel(launch, kernels_two_shot_rows<Rows>.of(group.layout.members), group, args, out,
                  gives_sums(args));
  });
}

}  // namespace nibble
