// Products with one matrix in blocks (block_matrices.h) for up to 32 rows of activations a block.
//
// All warps of a block share a granule of 16 rows and take its blocks of 128 columns in turns, since a dense
// matrix has only a few granules for each multiprocessor. What each warp found goes through shared memory,
// where a thread adds the blocks of two rows in their order, a span of K at a time: as many blocks as each
// warp holds the activations of in registers. So those are read once where a span is all of K, and nobody
// waits for them again.
//
// Of up to eight rows 16 warps hold two blocks each: eight would issue too seldom for their bytes. A short K
// is block_products_short.cuh's, one or two rows block_products_long.cuh's. More rows have eight warps with
// more registers.
//
// A warp has a ring of its own that runs ahead from granule to granule and is filled before the kernels ahead
// have ended: 96 KB of FP8 a multiprocessor with 16 warps, 64 KB with eight. More rows than 32 are as many
// times as many blocks, of which two lie on a multiprocessor and find the weights in the second-level cache.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ring_stage.cuh"
#include "ops/linear/cuda/block_operands.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble::block_products {

inline constexpr int few_most_scale_blocks = 256;

template <class Codes, class Store>
struct FewParams {
  BlockMatrices<Codes> weights;
  Inputs x;
  int rows;
  Store store;
  bool lets_beside = false;  // BlockLinearCudaArgs's
};

// Of dense matrices.
template <class Codes>
inline constexpr ColumnOrder column_order =
    std::is_same_v<Codes, E4m3Codes> ? ColumnOrder::steps : ColumnOrder::quarters;

template <class Codes, int eights>
struct FewShared {
  static constexpr int warps = eights == 1 ? 16 : 8, threads = 32 * warps;
  static constexpr int stage_bytes = 2 * Codes::block_bytes;
  static constexpr int stages = eights == 1 ? 3 : 4;  // of a warp's ring, 128 columns each
  static constexpr int held = eights == 4 ? 1 : 2;    // blocks of a span that a warp has
  static constexpr int span = warps * held;
  static constexpr int together = held > 1 ? 2 : 1;  // of which the chains interleave
  alignas(128) std::uint8_t ring[warps][stages][stage_bytes];
  float found[2][span][4 * eights][32];            // of a span's blocks; every other span's
  BlockFactors factors[2][few_most_scale_blocks];  // of a granule
  std::uint64_t full[warps][stages];
};

// What a warp fetches next: every warps-th block from its own on, of each of the block's granules.
template <class Codes, int warps>
struct FewFeed {
  const BlockMatrices<Codes>& weights;
  int granule, past, warp, block;

  __device__ __forceinline__ void fetch(std::uint8_t* to, std::uint64_t* full, int lane) {
    const BlockShape<Codes>& shape = weights.shape;
    if (block >= shape.scale_blocks()) ++granule, block = warp;
    if (granule >= past || block >= shape.scale_blocks()) return;
    const std::uint32_t bytes =
        static_cast<std::uint32_t>(min(2, shape.blocks() - 2 * block) * Codes::block_bytes);
    if (lane == 0) {
      ptx::mbarrier_arrive_expecting(full, bytes);
      ptx::bulk_copy_once_to_shared(to,
                                    weights.data + static_cast<std::size_t>(granule) * shape.granule_bytes() +
                                        static_cast<std::size_t>(block) * 2 * Codes::block_bytes,
                                    bytes, full);
    }
    block += warps;
  }
};

template <class Codes, int eights, class Store>
__global__ void __launch_bounds__(FewShared<Codes, eights>::threads, eights == 2 ? 1 : 2)
    multiply_few(const __grid_constant__ FewParams<Codes, Store> params) {
  using Shared = FewShared<Codes, eights>;
  constexpr int together = Shared::together, warps = Shared::warps, stages = Shared::stages;
  constexpr int pairs = 64 * eights;  // of sums, of the even row and the odd one
  auto& shared = *reinterpret_cast<Shared*>(ptx::dynamic_shared());
  const BlockShape<Codes> shape = params.weights.shape;
  const int warp = ptx::warp_of_block(), thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int blocks = shape.blocks(), scale_blocks = shape.scale_blocks();
  const auto border = [&](unsigned block) {
    return static_cast<int>(static_cast<unsigned>(shape.granules()) * block / gridDim.x);
  };
  const int begin = border(blockIdx.x), past = border(blockIdx.x + 1);
  const int first_row = static_cast<int>(blockIdx.y) * (8 * eights),
            rows = min(params.rows - first_row, 8 * eights);
  FewFeed<Codes, warps> feed{params.weights, begin, past, warp, warp};
  std::uint64_t* const full = shared.full[warp];
  if (lane == 0) {
    for (int i = 0; i < stages; ++i) ptx::mbarrier_init(full + i, 1);
    ptx::fence_mbarrier_init();
  }
  if (!params.lets_beside) ptx::grid_launch_dependents();
#pragma unroll
  for (int into = 0; into < stages; ++into) feed.fetch(shared.ring[warp][into], full + into, lane);
  // A thread's share of a granule's factors, before they are asked for.
  BlockFactors ahead{1.0f, 1.0f};
  const auto read_factor = [&](int granule) {
    if (Codes::scaled && thread < scale_blocks)
      ahead = params.weights.factors[static_cast<std::size_t>(granule) * scale_blocks + thread];
  };
  if (begin < past) read_factor(begin);
  ptx::grid_dependency_wait();
  if (params.lets_beside) ptx::grid_launch_dependents();
  const std::uint8_t* x[eights];
#pragma unroll
  for (int j = 0; j < eights; ++j)  // past the last row the last: columns do not mix
    x[j] = params.x.row_at(first_row + min(8 * j + lane / 4, rows - 1));
  LaneInputs held[Shared::held][2][eights];
  const auto load = [&](int span) {
#pragma unroll
    for (int i = 0; i < Shared::held; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int block = min(2 * (span + i * warps + warp) + half, blocks - 1);
#pragma unroll
        for (int j = 0; j < eights; ++j) {
          held[i][half][j].template load<column_order<Codes>>(
              x[j] + static_cast<std::size_t>(block) * params.x.block, params.x.piece, lane % 4);
        }
      }
    }
  };
  load(0);
  __syncwarp();  // products need all lanes at once
  RingStage place, fetched;
  int turn = 0;
#pragma unroll 1
  for (int granule = begin; granule < past; ++granule) {
    BlockFactors* const factors = shared.factors[(granule - begin) % 2];
    if (Codes::scaled && thread < scale_blocks) factors[thread] = ahead;
    if (granule + 1 < past) read_factor(granule + 1);
    const int weight_row = granule * block_granule_rows + lane / 4 * 2;
    const RowScales scales = row_scales_of(params.weights, 0, weight_row);
    float even = 0, odd = 0;
#pragma unroll 1
    for (int span = 0; span < scale_blocks; span += Shared::span, turn ^= 1) {
#pragma unroll
      for (int i = 0; i < Shared::held; i += together) {
        const int of_span = i * warps + warp, block = span + of_span;
        if (block >= scale_blocks) break;
        float sums[together][eights][4] = {};
        const std::uint8_t* at[together];
        int count = 0;  // of blocks that there are
#pragma unroll
        for (int u = 0; u < together; ++u) {
          if (block + u * warps >= scale_blocks) break;
          ++count;
          at[u] = shared.ring[warp][place.stage];
          ptx::mbarrier_wait(full + place.stage, place.parity);
          place.next(stages);
        }
        const auto multiply = [&](int u, int half) {
          Share<Codes> share;
          share.load(at[u] + half * Codes::block_bytes, lane);
          multiply_block(sums[u], share, held[i + u][half]);
        };
        if (count == together && 2 * (block + (together - 1) * warps) + 1 < blocks) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {  // chains that do not wait for each other
#pragma unroll
            for (int u = 0; u < together; ++u) multiply(u, half);
          }
        } else {
#pragma unroll
          for (int u = 0; u < together; ++u) {
            if (u >= count) break;
            multiply(u, 0);
            if (2 * (block + u * warps) + 1 < blocks) multiply(u, 1);
          }
        }
#pragma unroll
        for (int u = 0; u < together; ++u) {
          if (u >= count) break;
#pragma unroll
          for (int of = 0; of < 4 * eights; ++of)
            shared.found[turn][of_span + u * warps][of][lane] = sums[u][of / 4][of % 4];
        }
        __syncwarp();  // all lanes have read the stages, which one of them is about to have overwritten
        for (int u = 0; u < count; ++u) {
          feed.fetch(shared.ring[warp][fetched.stage], full + fetched.stage, lane);
          fetched.next(stages);
        }
        __syncwarp();  // the next products need all lanes at once
      }
      if (scale_blocks > Shared::span) load(span + Shared::span < scale_blocks ? span + Shared::span : 0);
      __syncthreads();  // the span's sums are there, and those of the span before last have been read
      if (thread < pairs) {
        const int of = thread / 64 * 4 + thread / 32 % 2, count = min(Shared::span, scale_blocks - span);
        constexpr int at_once = 8;
        for (int first = 0; first < count; first += at_once) {
#pragma unroll
          for (int i = first; i < first + at_once; ++i) {
            if (i >= count) break;
            const BlockFactors factor = Codes::scaled ? factors[span + i] : BlockFactors{1, 1};
            even = add_block<Codes>(even, shared.found[turn][i][of][lane], factor.even);
            odd = add_block<Codes>(odd, shared.found[turn][i][of + 2][lane], factor.odd);
          }
        }
      }
    }
    const int row = thread / 64 * 8 + lane % 4 * 2 + thread / 32 % 2;
    if (thread < pairs && row < rows)
      params.store.put(first_row + row, weight_row,
                       params.store.value(__fmul_rn(even, scales.even), __fmul_rn(odd, scales.odd)));
    __syncwarp();  // the next products need all lanes at once
  }
}

template <int eights, class Codes, class Store>
void launch_few_of(const FewParams<Codes, Store>& params, cudaStream_t stream) {
  using Shared = FewShared<Codes, eights>;
  static_assert(64 * eights <= Shared::threads && few_most_scale_blocks <= Shared::threads);
  const int processors = processors_of_device(), granules = params.weights.shape.granules();
  const auto kernel = multiply_few<Codes, eights, Store>;
  // Of up to eight rows, whose weights one block a multiprocessor reads alone.
  constexpr int bytes = std::max(static_cast<int>(sizeof(Shared)), eights == 1 ? shared_of_lone_block : 0);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const int in_turns = (params.rows + 8 * eights - 1) / (8 * eights);
  launch_kernel({.blocks = dim3(static_cast<unsigned>(granules < processors ? granules : processors),
                                static_cast<unsigned>(in_turns)),
                 .threads = Shared::threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(params.rows)},
                kernel, params);
}

template <class Codes, class Store>
void launch_few(const FewParams<Codes, Store>& params, cudaStream_t stream) {
  if (params.rows <= 8) return launch_few_of<1>(params, stream);
  if (params.rows <= 16) return launch_few_of<2>(params, stream);
  return launch_few_of<4>(params, stream);
}

}  // namespace nibble::block_products
