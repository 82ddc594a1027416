// Between the products that lead to latents and queries: a block a row for norms and the cache, a warp a head
// of a row for queries. Bytes: 4 in and 2 out a value; in decode latency is all that counts.
#include <cuda_bf16.h>

#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/latent_attention/cuda/latent_cuda.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {
namespace {

constexpr int row_threads = 256, row_warps = row_threads / 32, query_warps = 4;

__device__ __forceinline__ void store(Bf16* at, float value) {
  *reinterpret_cast<__nv_bfloat16*>(at) = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void store(E4m3* at, float value) {
  *reinterpret_cast<std::uint8_t*>(at) = ptx::e4m3_of(value);
}

// What columns [0, count) are multiplied by; all threads of the block come here.
__device__ __forceinline__ float scale_of(const float* x, int count, float eps, float (&of_warp)[row_warps]) {
  const int thread = static_cast<int>(threadIdx.x);
  float own = 0;
  for (int i = thread; i < count; i += row_threads) own = __fadd_rn(own, __fmul_rn(x[i], x[i]));
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) own = __fadd_rn(own, __shfl_xor_sync(0xffffffffu, own, apart));
  if (thread % 32 == 0) of_warp[thread / 32] = own;
  __syncthreads();  // every warp's sum is there
  float sum = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < row_warps; ++warp) sum = __fadd_rn(sum, of_warp[warp]);
  return 1.0f / sqrtf(sum / static_cast<float>(count) + eps);
}
__device__ __forceinline__ float normed(float x, float scale, Bf16 weight) {
  return __fmul_rn(__fmul_rn(x, scale), weight.to_float());
}
// Neighbours (x[2i], x[2i + 1]) turned by angle i: x[dimension] of them.
__device__ __forceinline__ float turned(const float* x, int dimension, const float* cos, const float* sin) {
  const int pair = dimension / 2;
  const float a = x[2 * pair], b = x[2 * pair + 1];
  return dimension % 2 == 0 ? __fsub_rn(__fmul_rn(a, cos[pair]), __fmul_rn(b, sin[pair]))
                            : __fadd_rn(__fmul_rn(b, cos[pair]), __fmul_rn(a, sin[pair]));
}

template <class Element>
__global__ void __launch_bounds__(row_threads) latent_rows(const __grid_constant__ LatentRowsCudaArgs args) {
  __shared__ float of_warp[2][row_warps];
  ptx::grid_launch_dependents();
  const int row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  ptx::grid_dependency_wait();
  const float* const down = args.down + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.stride);
  if (args.query_rank > 0) {
    const float scale = scale_of(down, args.query_rank, args.eps, of_warp[0]);
    const int blocks = DenseShape{0, args.query_rank}.blocks();
    for (int i = thread; i < blocks * dense_k; i += row_threads) {
      const float value = i < args.query_rank ? normed(down[i], scale, args.query_norm[i]) : 0.0f;
      store(reinterpret_cast<Bf16*>(args.query_tiles + token_offset(blocks, row, i)), value);
    }
  }
  const float* const latent = down + args.latent_at;
  const int rank = args.cache.rank, pairs = args.cache.rotated / 2, slot = args.kv_slots[row];
  const float scale = scale_of(latent, rank, args.eps, of_warp[1]);
  if (slot < 0) return;
  Element* const to = static_cast<Element*>(args.cache.vectors) +
                      static_cast<std::size_t>(slot) * static_cast<std::size_t>(args.cache.width());
  for (int i = thread; i < args.cache.width(); i += row_threads) {
    store(to + i, i < rank ? normed(latent[i], scale, args.latent_norm[i])
                           : turned(latent + rank, i - rank, args.cos + row * pairs, args.sin + row * pairs));
  }
}

__global__ void __launch_bounds__(query_warps * 32)
    split_queries(const __grid_constant__ SplitQueriesCudaArgs args) {
  ptx::grid_launch_dependents();
  const int at = static_cast<int>(blockIdx.x) * query_warps + static_cast<int>(threadIdx.x) / 32;
  const int row = at / args.heads, head = at - row * args.heads, lane = static_cast<int>(threadIdx.x) % 32;
  ptx::grid_dependency_wait();
  if (row >= args.rows) return;
  const float* const q = args.q + static_cast<std::size_t>(row) * static_cast<std::size_t>(args.stride) +
                         head * (args.plain + args.rotated);
  const int padded = latent_padded(args.plain), pairs = args.rotated / 2;
  Bf16* const plain = args.plain_rows + static_cast<std::size_t>(at) * static_cast<std::size_t>(padded);
  for (int i = lane; i < padded; i += 32) store(plain + i, i < args.plain ? q[i] : 0.0f);
  Bf16* const rotated = args.absorbed +
                        static_cast<std::size_t>(at) * static_cast<std::size_t>(args.rank + args.rotated) +
                        args.rank;
  for (int i = lane; i < args.rotated; i += 32)
    store(rotated + i, turned(q + args.plain, i, args.cos + row * pairs, args.sin + row * pairs));
}

}  // namespace

Status latent_rows_cuda(const LatentRowsCudaArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return {};
  launch_kernel({.blocks = dim3(static_cast<unsigned>(args.rows)),
                 .threads = row_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                args.cache.dtype == DType::f8_e4m3 ? latent_rows<E4m3> : latent_rows<Bf16>, args);
  return {};
}

Status split_queries_cuda(const SplitQueriesCudaArgs& args, cudaStream_t stream) {
  if (args.stride < args.heads * (args.plain + args.rotated)) {
    return invalid_argument(std::to_string(args.heads) + " heads of queries of " +
                            std::to_string(args.plain) + " and " + std::to_string(args.rotated) +
                            " dimensions do not lie in rows of " + std::to_string(args.stride));
  }
  if (args.rows == 0) return {};
  const int heads = args.rows * args.heads;
  launch_kernel({.blocks = dim3(static_cast<unsigned>((heads + query_warps - 1) / query_warps)),
                 .threads = query_warps * 32,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.rows)},
                split_queries, args);
  return {};
}

}  // namespace nibble
