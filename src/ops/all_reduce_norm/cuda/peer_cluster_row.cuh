// What the kernels with a cluster of blocks a row share. Where a block has a whole row (norm_row.cuh), each
// of its eight warps has 256 columns side by side in each pass; here a block has the columns of some of those
// warps, its parts. A thread has four columns, neighbours side by side so that stores to peers fill whole
// lines. Sums of squares, one a part, go from block to block.
#pragma once

#include "ops/all_reduce_norm/cuda/peer_norm_row.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"

namespace nibble {

inline constexpr int columns_of_part = 32 * 8;  // in a pass
inline constexpr int threads_of_part = columns_of_part / 4;

struct ClusterPlace {
  int block, cluster, pass, part, in_part, column;
};

template <int blocks>
struct PeerCluster {
  static constexpr int parts = norm_warps / blocks;  // of a block
  static constexpr int threads = norm_passes * parts * threads_of_part;

  // In shared memory beyond what the kernel declares.
  struct Shared {
    float4 sums[2][norm_warps];  // of squares, the first of four
    float x[norm_passes][parts][columns_of_part];
  };
  // Told of the sums' arrival. A block may be one row ahead of another, so they and the sums are there twice,
  // used in turns.
  struct Barriers {
    std::uint64_t of_turn[2];
  };

  static __device__ __forceinline__ ClusterPlace place() {
    const int thread = static_cast<int>(threadIdx.x), block = ptx::cluster_rank();
    const int pass = thread / (parts * threads_of_part), part = thread / threads_of_part % parts;
    const int in_part = thread % threads_of_part * 4;
    return {block,   static_cast<int>(blockIdx.x) / blocks,
            pass,    part,
            in_part, pass * norm_pass_columns + (block * parts + part) * columns_of_part + in_part};
  }

  static __device__ __forceinline__ void init(Barriers& barriers) {
    if (threadIdx.x != 0) return;
    for (std::uint64_t& barrier : barriers.of_turn) ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init();
  }

  // The scale of the kernel's row number `turn`, from each thread's four columns (nothing past the row's
  // end).
  static __device__ __forceinline__ float scale(Shared& shared, Barriers& barriers, int turn,
                                                const ClusterPlace& at, int hidden, float eps,
                                                const float4& four) {
    float4* const sums = shared.sums[turn % 2];
    std::uint64_t* const barrier = &barriers.of_turn[turn % 2];
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expecting(barrier, norm_warps * sizeof(float4));
    *reinterpret_cast<float4*>(&shared.x[at.pass][at.part][at.in_part]) = four;
    __syncthreads();  // the block's parts of the row are there
    if (threadIdx.x < 32 * parts) {
      const int lane = static_cast<int>(threadIdx.x) % 32, part = static_cast<int>(threadIdx.x) / 32;
      const int warp = at.block * parts + part;
      float own = 0;
#pragma unroll
      for (int pass = 0; pass < norm_passes; ++pass) {
        // Eight columns, or none: widths are multiples of eight.
        if (pass * norm_pass_columns + warp * columns_of_part + lane * 8 < hidden)
          own = squares(own, eight_of_shared(&shared.x[pass][part][lane * 8]));
      }
      own = sum_of_warp(own);
      if (lane < blocks) ptx::store_to_block(&sums[warp], make_float4(own, 0, 0, 0), barrier, lane);
      __syncwarp();
    }
    ptx::mbarrier_wait(barrier, static_cast<std::uint32_t>(turn / 2 % 2));
    float of_warp[norm_warps];
#pragma unroll
    for (int warp = 0; warp < norm_warps; ++warp) of_warp[warp] = sums[warp].x;
    return norm_scale(of_warp, hidden, eps);
  }
};

// What a cluster makes of its row's norm, four columns a thread: of() of the kernel's row number `turn`,
// behind PeerCluster::scale, by all threads.
template <class Rows, int blocks>
struct ClusterForm;

// Where no block needs anything of another one's columns.
template <int blocks>
struct FormOfOwnColumns {
  using Shared = typename PeerCluster<blocks>::Shared;
  using Barriers = typename PeerCluster<blocks>::Barriers;

  static __device__ __forceinline__ void init(Barriers& barriers) { PeerCluster<blocks>::init(barriers); }
};

template <int blocks>
struct ClusterForm<Bf16Rows, blocks> : FormOfOwnColumns<blocks> {
  using Form = FormOfOwnColumns<blocks>;
  using Four = uint2;
  static constexpr bool whole_warps = false;  // fours travel by whole warps

  static __device__ __forceinline__ Four of(typename Form::Shared&, typename Form::Barriers&, int, int,
                                            const uint2& words, float) {
    return words;
  }
};

template <int blocks>
struct ClusterForm<Nvfp4Rows, blocks> : FormOfOwnColumns<blocks> {
  using Form = FormOfOwnColumns<blocks>;
  using Four = Nvfp4Four;
  static constexpr bool whole_warps = true;

  static __device__ __forceinline__ Four of(typename Form::Shared&, typename Form::Barriers&, int, int,
                                            const uint2& words, float global_scale) {
    return nvfp4_four(words, global_scale);
  }
};

// Every warp sends its largest magnitude to all blocks. One place each does: a block sends a row's only when
// it has all sums of squares of that row, which others send when they are done with the row before.
template <int blocks>
struct ClusterForm<E4m3Rows, blocks> {
  static constexpr int warps = PeerCluster<blocks>::threads / 32;  // of a block
  static_assert(blocks * warps == 32, "a lane looks at each");
  struct Shared : PeerCluster<blocks>::Shared {
    float4 largest[blocks * warps];  // bits, the first of four
  };
  struct Barriers : PeerCluster<blocks>::Barriers {
    std::uint64_t of_largest;
  };
  using Four = E4m3Four;
  static constexpr bool whole_warps = false;

  static __device__ __forceinline__ void init(Barriers& barriers) {
    if (threadIdx.x == 0) ptx::mbarrier_init(&barriers.of_largest, 1);
    PeerCluster<blocks>::init(barriers);
  }
  static __device__ __forceinline__ Four of(Shared& shared, Barriers& barriers, int turn, int block,
                                            const uint2& words, float) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    std::uint64_t* const barrier = &barriers.of_largest;
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expecting(barrier, sizeof shared.largest);
    const unsigned own = __reduce_max_sync(whole_warp, largest_of(words));
    if (lane < blocks) {
      ptx::store_to_block(&shared.largest[block * warps + warp], make_float4(__uint_as_float(own), 0, 0, 0),
                          barrier, lane);
    }
    __syncwarp();
    ptx::mbarrier_wait(barrier, static_cast<std::uint32_t>(turn % 2));
    return e4m3_four(words, __reduce_max_sync(whole_warp, __float_as_uint(shared.largest[lane].x)));
  }
};

// Of so many clusters of `blocks` blocks, for a call of so many rows.
template <class Rows, int blocks>
Launch cluster_launch(int clusters, int rows, cudaStream_t stream) {
  return {.blocks = dim3(static_cast<unsigned>(clusters * blocks)),
          .threads = PeerCluster<blocks>::threads,
          .shared_bytes = sizeof(typename ClusterForm<Rows, blocks>::Shared),
          .stream = stream,
          .overlaps = true,
          .cluster = blocks,
          .share = share_of(rows)};
}

// Four columns of a row from all members' parts in this member's window, armed again; the residual takes them
// in.
template <int members>
__device__ __forceinline__ float4 take_four(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                                            std::uint32_t step, int row, int column) {
  const std::size_t in_row = row_begin(args, row) + static_cast<std::size_t>(column);
  float4 before = make_float4(0, 0, 0, 0);
  if (args.residual != nullptr) before = __ldcg(reinterpret_cast<const float4*>(args.residual + in_row));
  const auto slot = [&](int i) { return part_slot(group, group.member, step, i, row, column); };
  uint4 words[members];
  PeerWait wait(group, PeerWait::For::parts);
  await(
      words, armed_sum, slot, [](int i) { return i; }, wait, step, row);
#pragma unroll
  for (int i = 0; i < members; ++i) ptx::store_peer(slot(i), four_times(armed_sum));
  float4 four = tree_of<members>(words, 0);
  if (args.residual != nullptr) {
    four = add(before, four);
    *reinterpret_cast<float4*>(args.residual + in_row) = four;
  }
  return four;
}

// Four columns of this member's part.
__device__ __forceinline__ float4 part_of(const AllReduceNormCudaArgs& args, int row, int column) {
  return __ldcg(
      reinterpret_cast<const float4*>(args.parts + row_begin(args, row) + static_cast<std::size_t>(column)));
}

__device__ __forceinline__ uint2* four_of_row_slot(const PeerGroup& group, int holder, int row, int column) {
  return reinterpret_cast<uint2*>(row_slot(group, holder, row, column));
}

// Four columns of a new residual, or of a sum, from the row's owner.
__device__ __forceinline__ float4 take_four_of_owner(const PeerGroup& group,
                                                     const AllReduceNormCudaArgs& args, std::uint32_t step,
                                                     int owner, int row, int column) {
  uint4 words[1];
  PeerWait wait(group, PeerWait::For::owner);
  const auto slot = [&](int) { return sum_slot(group, group.member, row, column); };
  await(
      words, armed_sum, slot, [&](int) { return owner; }, wait, step, row);
  ptx::store_peer(slot(0), four_times(armed_sum));
  const float4 four = floats_of(words[0]);
  if (args.residual != nullptr) {
    *reinterpret_cast<float4*>(args.residual + row_begin(args, row) + static_cast<std::size_t>(column)) =
        four;
  }
  return four;
}

// Of a normed row.
__device__ __forceinline__ void take_normed_four(const PeerGroup& group, std::uint32_t step, int owner,
                                                 const RowPlace& at, uint2& four) {
  if (!at.inside()) return;
  uint2 words[1];
  PeerWait wait(group, PeerWait::For::owner);
  const auto slot = [&](int) { return four_of_row_slot(group, group.member, at.row, at.column); };
  await(
      words, armed_row, slot, [&](int) { return owner; }, wait, step, at.row);
  ptx::store_peer(slot(0), make_uint2(armed_row, armed_row));
  four = words[0];
}
template <class Four>
__device__ __forceinline__ void take_normed_four(const PeerGroup& group, std::uint32_t step, int owner,
                                                 const RowPlace& at, Four& four) {
  PeerWait wait(group, PeerWait::For::owner);
  Four fours[1];
  take_fours(group, step, owner, {at}, fours, wait);
  four = fours[0];
}

// Four columns that this member owns, to all others: a new residual, or a sum.
template <int members>
__device__ __forceinline__ void give_four(const PeerGroup& group, int row, int column, const float4& four) {
  // The residual of -0.0f and a sum of +0.0f is +0.0f, so this is never the armed value.
#pragma unroll
  for (int i = 1; i < members; ++i)
    ptx::store_peer(sum_slot(group, (group.member + i) % members, row, column), words_of(four));
}
// Of a normed row.
template <int members>
__device__ __forceinline__ void give_normed_four(const PeerGroup& group, const RowPlace& at,
                                                 const uint2& words) {
  if (!at.inside()) return;
#pragma unroll
  for (int i = 1; i < members; ++i)
    ptx::store_peer(four_of_row_slot(group, (group.member + i) % members, at.row, at.column), words);
}
template <int members, class Four>
__device__ __forceinline__ void give_normed_four(const PeerGroup& group, const RowPlace& at,
                                                 const Four& four) {
  give_codes<members>(group, at, four);
}

}  // namespace nibble
