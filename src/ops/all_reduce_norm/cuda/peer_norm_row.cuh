// Parts of a norm over a row that came in parts, for the kernels of all_reduce_norm. Sums travel and are
// added four columns a thread, neighbours side by side, so that a warp's store to a peer fills whole lines;
// then the row lies in shared memory, and for its norm a thread has the columns that norm_row.cuh gives it.
#pragma once

#include "comm/cuda/peer_slots.cuh"
#include "ops/all_reduce_norm/cuda/all_reduce_norm_cuda.h"
#include "ops/all_reduce_norm/cuda/peer_norm_codes.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/rms_norm/cuda/norm_row.cuh"

namespace nibble {

__device__ __forceinline__ float weight_of(std::uint32_t bits, bool less_one) {
  const float weight = __uint_as_float(bits);
  return less_one ? __fadd_rn(1.0f, weight) : weight;
}
__device__ __forceinline__ std::uint32_t weighted_pair(float a, float b, float scale, std::uint32_t weights,
                                                       bool less_one) {
  return ptx::pack_bf16x2(__fmul_rn(__fmul_rn(a, scale), weight_of(weights << 16, less_one)),
                          __fmul_rn(__fmul_rn(b, scale), weight_of(weights & 0xffff0000u, less_one)));
}
__device__ __forceinline__ uint4 weighted(const Eight& eight, float scale, const uint4& weights,
                                          bool less_one) {
  return make_uint4(weighted_pair(eight.low.x, eight.low.y, scale, weights.x, less_one),
                    weighted_pair(eight.low.z, eight.low.w, scale, weights.y, less_one),
                    weighted_pair(eight.high.x, eight.high.y, scale, weights.z, less_one),
                    weighted_pair(eight.high.z, eight.high.w, scale, weights.w, less_one));
}

// Columns up to here are written: those of the row, and zeros in what pads it.
__device__ __forceinline__ int columns_written(const Bf16Rows& out, int hidden) {
  const int tiled = out.tiles == nullptr ? 0 : DenseShape{0, hidden}.padded_cols();
  return max(tiled, out.rows == nullptr ? 0 : out.stride);
}

// `Words`: uint4 for eight columns of the norm, uint2 for four.
template <class Words>
__device__ __forceinline__ void put_norm(const Bf16Rows& out, const RowPlace& at, const Words& words) {
  if (out.rows != nullptr && at.column < out.stride) {
    *reinterpret_cast<Words*>(
        out.rows + static_cast<std::size_t>(at.row) * static_cast<std::size_t>(out.stride) + at.column) =
        words;
  }
  const DenseShape shape{0, at.hidden};
  if (out.tiles != nullptr && at.column < shape.padded_cols())
    *reinterpret_cast<Words*>(out.tiles + token_offset(shape.blocks(), at.row, at.column)) = words;
}
__device__ __forceinline__ void put_four(const Bf16Rows& out, const RowPlace& at, const uint2& words) {
  put_norm(out, at, words);
}

__device__ __forceinline__ std::size_t row_begin(const AllReduceNormCudaArgs& args, int row) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(args.hidden);
}

// The balanced tree over members (comm/leaves.h); parts have been canonical since they were sent.
template <int members, int places>
__device__ __forceinline__ float4 tree_of(const uint4 (&words)[places], int first) {
  float4 sums[members];
#pragma unroll
  for (int i = 0; i < members; ++i) sums[i] = floats_of(words[first + i]);
#pragma unroll
  for (int apart = 1; apart < members; apart *= 2) {
#pragma unroll
    for (int i = 0; i + apart < members; i += 2 * apart) sums[i] = add(sums[i], sums[i + apart]);
  }
  return sums[0];
}

// How many groups of four columns a thread awaits at once, from all members.
template <int members>
inline constexpr int fours_at_once = members == 8 ? 2 : 4;
inline constexpr int fours_of_passes = 2 * norm_passes;

// The thread's four columns number `i` of those from `base` on.
inline constexpr int columns_of_fours = fours_of_passes * norm_threads * 4;
__device__ __forceinline__ int column_of_four(int base, int i) {
  return base + (i * norm_threads + static_cast<int>(threadIdx.x)) * 4;
}

// Sums of a row over members in this member's window, armed again; the residual takes them in, and x,
// [hidden] of the block's shared memory, has them behind a barrier of the block.
template <int members>
__device__ __forceinline__ void take_row(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                                         std::uint32_t step, int row, float* x, PeerWait& wait) {
  constexpr int at_once = fours_at_once<members>;
  const int hidden = args.hidden;
  const std::size_t at = row_begin(args, row);
#pragma unroll 1
  for (int base = 0; base < hidden; base += columns_of_fours) {
#pragma unroll
    for (int first = 0; first < fours_of_passes; first += at_once) {
      uint4 words[at_once * members];
      float4 before[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int here = column_of_four(base, first + i);
        before[i] = make_float4(0, 0, 0, 0);
        if (args.residual != nullptr && here < hidden)
          before[i] = __ldcg(reinterpret_cast<const float4*>(args.residual + at + here));
      }
      const auto slot = [&](int i) -> uint4* {
        const int here = column_of_four(base, first + i / members);
        if (here >= hidden) return nullptr;
        return part_slot(group, group.member, step, i % members, row, here);
      };
      await(
          words, armed_sum, slot, [](int i) { return i % members; }, wait, step, row);
#pragma unroll
      for (int i = 0; i < at_once * members; ++i) {
        if (slot(i) != nullptr) ptx::store_peer(slot(i), four_times(armed_sum));
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int here = column_of_four(base, first + i);
        if (here >= hidden) continue;
        float4 four = tree_of<members>(words, i * members);
        if (args.residual != nullptr) {
          four = add(before[i], four);
          *reinterpret_cast<float4*>(args.residual + at + here) = four;
        }
        *reinterpret_cast<float4*>(x + here) = four;
      }
    }
  }
  __syncthreads();  // the row is there
}

// The thread's sum of squares of the row in x.
__device__ __forceinline__ float squares_of_row(const float* x, int hidden) {
  float own = 0;
  for (int column = static_cast<int>(threadIdx.x) * 8; column < hidden; column += norm_pass_columns)
    own = squares(own, eight_of_shared(x + column));
  return own;
}

// This member's part of a row, to holder(i) for each i < count.
template <class Holder>
__device__ __forceinline__ void push_row(const PeerGroup& group, const AllReduceNormCudaArgs& args,
                                         std::uint32_t step, int row, int count, const Holder& holder) {
  const std::size_t at = row_begin(args, row);
#pragma unroll 1
  for (int base = 0; base < args.hidden; base += columns_of_fours) {
    float4 parts[fours_of_passes];
#pragma unroll
    for (int i = 0; i < fours_of_passes; ++i) {
      const int here = column_of_four(base, i);
      if (here < args.hidden) parts[i] = __ldcg(reinterpret_cast<const float4*>(args.parts + at + here));
    }
    for (int to = 0; to < count; ++to) {
#pragma unroll
      for (int i = 0; i < fours_of_passes; ++i) {
        const int here = column_of_four(base, i);
        if (here < args.hidden) push_part(group, holder(to), step, row, here, parts[i]);
      }
    }
  }
}

// The scale of the row in x; a barrier of the block.
__device__ __forceinline__ float scale_of_row(const AllReduceNormCudaArgs& args, const float* x,
                                              float (&of_warp)[norm_warps]) {
  const float own = sum_of_warp(squares_of_row(x, args.hidden));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();  // every warp's sum is there, and every thread has read the row's step
  return norm_scale(of_warp, args.hidden, args.eps);
}

// The weights of a thread's first passes, fetched before the row is there.
struct FirstWeights {
  uint4 of_pass[norm_passes];
};
__device__ __forceinline__ FirstWeights first_weights(const AllReduceNormCudaArgs& args) {
  FirstWeights weights{};
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) {
    const int column = static_cast<int>(threadIdx.x) * 8 + pass * norm_pass_columns;
    if (args.weight != nullptr && column < args.hidden)
      weights.of_pass[pass] = *reinterpret_cast<const uint4*>(args.weight + column);
  }
  return weights;
}

// The norm of four columns.
__device__ __forceinline__ uint2 weighted_four(const float4& four, float scale, const uint2& weights,
                                               bool less_one) {
  return make_uint2(weighted_pair(four.x, four.y, scale, weights.x, less_one),
                    weighted_pair(four.z, four.w, scale, weights.y, less_one));
}

// The norm of a row that lies in x, `also` told of each eight columns of bfloat16, or four of codes.
template <class Also>
__device__ __forceinline__ void norm_row(const AllReduceNormCudaArgs& args, const Bf16Rows& out, int row,
                                         const float* x, float scale, const FirstWeights& weights,
                                         const Also& also) {
  const int first = static_cast<int>(threadIdx.x) * 8,
            past = max(columns_written(out, args.hidden), args.hidden);
  const auto put = [&](int column, const uint4& of_columns) {
    uint4 words = make_uint4(0, 0, 0, 0);
    if (column < args.hidden) {
      words = weighted(eight_of_shared(x + column), scale, of_columns, args.weight_less_one);
      also(RowPlace{row, column, args.hidden}, words);
    }
    put_norm(out, {row, column, args.hidden}, words);
  };
#pragma unroll
  for (int pass = 0; pass < norm_passes; ++pass) {
    const int column = first + pass * norm_pass_columns;
    if (column < past) put(column, weights.of_pass[pass]);
  }
#pragma unroll 1
  for (int column = first + norm_passes * norm_pass_columns; column < past; column += norm_pass_columns) {
    put(column, column < args.hidden ? *reinterpret_cast<const uint4*>(args.weight + column)
                                     : make_uint4(0, 0, 0, 0));
  }
}

// body(at, words) of each four columns' norm, by whole warps, with zeros past the row's end.
template <class Body>
__device__ __forceinline__ void for_fours(const AllReduceNormCudaArgs& args, int row, const float* x,
                                          float scale, const Body& body) {
#pragma unroll 1
  for (int base = 0; base < args.hidden; base += norm_threads * 4) {
    const RowPlace at{row, base + static_cast<int>(threadIdx.x) * 4, args.hidden};
    uint2 words = make_uint2(0, 0);
    if (at.inside()) {
      words = weighted_four(*reinterpret_cast<const float4*>(x + at.column), scale,
                            *reinterpret_cast<const uint2*>(args.weight + at.column), args.weight_less_one);
    }
    body(at, words);
  }
}
template <class Also>
__device__ __forceinline__ void norm_row(const AllReduceNormCudaArgs& args, const E4m3Rows& out, int row,
                                         const float* x, float scale, const FirstWeights&, const Also& also) {
  __shared__ unsigned of_warp[norm_warps];
  unsigned largest = 0;
  for_fours(args, row, x, scale,
            [&](const RowPlace&, const uint2& words) { largest = max(largest, largest_of(words)); });
  largest = __reduce_max_sync(whole_warp, largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();  // every warp's largest is there; it is read before the barrier behind the row
#pragma unroll
  for (int warp = 0; warp < norm_warps; ++warp) largest = max(largest, of_warp[warp]);
  for_fours(args, row, x, scale, [&](const RowPlace& at, const uint2& words) {
    const E4m3Four four = e4m3_four(words, largest);
    put_four(out, at, four);
    also(at, four);
  });
}
template <class Also>
__device__ __forceinline__ void norm_row(const AllReduceNormCudaArgs& args, const Nvfp4Rows& out, int row,
                                         const float* x, float scale, const FirstWeights&, const Also& also) {
  const float global_scale = global_scale_of(out, row);
  for_fours(args, row, x, scale, [&](const RowPlace& at, const uint2& words) {
    const Nvfp4Four four = nvfp4_four(words, global_scale);
    put_four(out, at, four);
    also(at, four);
  });
}

}  // namespace nibble
