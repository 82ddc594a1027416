// A warp a head of a row. Bytes: 4 in and 2 out a value; in decode latency is all that counts. So all that a
// head needs is asked for at once, and few rows' warps do all of it once before, on whatever is in memory and
// storing nothing: code that a multiprocessor has to fetch takes longer than running it.
#include <cuda_bf16.h>

#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "ops/rope/cuda/turn_heads_cuda.h"

namespace nibble {
namespace {

constexpr int turn_warps = 4;
constexpr int turn_rehearsed_rows = 8;

// What a lane turns its values by: of values i and i + 32 * pairs those at i; of a part narrower than two
// warps, whose lanes have a value each, the first.
template <int dims>
struct HeadAngles {
  static constexpr int count = dims / 64;
  float cos[count], sin[count];

  // Past the first-level cache, where a rehearsal may have left what came before.
  __device__ __forceinline__ void load(const TurnHeadsCudaArgs& args, int row, int lane) {
    const int half = args.rotary_dim / 2;
    const std::ptrdiff_t first = std::ptrdiff_t{row} * half;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      cos[i] = sin[i] = 0;
      if (i > 0 && 32 * i >= half) continue;
      const int at = half < 32 ? lane % half : lane + 32 * i;
      cos[i] = __ldcg(args.cos + first + at);
      sin[i] = __ldcg(args.sin + first + at);
    }
  }
};

// A lane's values of a head: dimension lane + 32 i is value i.
template <int dims>
struct HeadValues {
  static constexpr int count = dims / 32;
  float x[count];

  __device__ __forceinline__ void load(const float* head, int lane) {
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = __ldcg(head + lane + 32 * i);
  }
  // weights: each with what is added to it.
  __device__ __forceinline__ void norm(const float (&weights)[count], float eps) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) sum = __fadd_rn(sum, __fmul_rn(x[i], x[i]));
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
      sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, apart));
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(dims) + eps);
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], scale), weights[i]);
  }
  // The first 64 * turned dimensions.
  template <int turned>
  __device__ __forceinline__ void turn(const HeadAngles<dims>& angles) {
#pragma unroll
    for (int i = 0; i < turned; ++i) {
      const float first = x[i], second = x[i + turned], c = angles.cos[i], s = angles.sin[i];
      x[i] = __fsub_rn(__fmul_rn(first, c), __fmul_rn(second, s));
      x[i + turned] = __fadd_rn(__fmul_rn(second, c), __fmul_rn(first, s));
    }
  }
  // The first 2 * half, of which lanes have one each.
  __device__ __forceinline__ void turn_lanes(int half, const HeadAngles<dims>& angles, int lane) {
    const float other = __shfl_xor_sync(0xffffffffu, x[0], half), c = angles.cos[0], s = angles.sin[0];
    const float turned = lane < half ? __fsub_rn(__fmul_rn(x[0], c), __fmul_rn(other, s))
                                     : __fadd_rn(__fmul_rn(x[0], c), __fmul_rn(other, s));
    if (lane < 2 * half) x[0] = turned;
  }
  __device__ __forceinline__ void turn(int rotary_dim, const HeadAngles<dims>& angles, int lane) {
    if (rotary_dim == dims) {
      turn<count / 2>(angles);
    } else if (rotary_dim == 64) {
      turn<1>(angles);
    } else if (count >= 4 && rotary_dim == 128) {
      turn<(count >= 4 ? 2 : 1)>(angles);
    } else {
      turn_lanes(rotary_dim / 2, angles, lane);
    }
  }
};

__device__ __forceinline__ void store(Bf16* at, float value) {
  *reinterpret_cast<__nv_bfloat16*>(at) = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void store(E4m3* at, float value) {
  *reinterpret_cast<std::uint8_t*>(at) = ptx::e4m3_of(value);
}

template <class Kv, int dims>
__device__ __forceinline__ void keep(const HeadValues<dims>& head, const KvCudaLayer& cache, int kv_head,
                                     bool value, int slot, int lane, bool stores) {
  using Element = typename Kv::Element;
  const std::size_t chunk =
      static_cast<std::size_t>(kv_head) * static_cast<std::size_t>(cache.slots / kv_chunk_slots) +
      static_cast<std::size_t>(slot / kv_chunk_slots);
  Element* const to =
      static_cast<Element*>(value ? cache.values : cache.keys) + chunk * (kv_chunk_slots * dims);
  const int in_chunk = slot % kv_chunk_slots;
#pragma unroll
  for (int i = 0; i < head.count; ++i) {
    const int dimension = lane + 32 * i;
    if (stores)
      store(to + (value ? Kv::value_at(in_chunk, dimension) : Kv::key_at(in_chunk, dimension, dims)),
            head.x[i]);
  }
}

template <class Kv, int dims>
__global__ void __launch_bounds__(turn_warps * 32)
    turn_heads(const __grid_constant__ TurnHeadsCudaArgs args, bool rehearses) {
  ptx::grid_launch_dependents();
  const int heads = args.heads + 2 * args.cache.kv_heads, lane = static_cast<int>(threadIdx.x) % 32;
  const int at = static_cast<int>(blockIdx.x) * turn_warps + static_cast<int>(threadIdx.x) / 32;
  const int row = at / heads, head = at - row * heads;
  if (row >= args.rows) return ptx::grid_dependency_wait();
  const bool of_queries = head < args.heads, of_values = head >= args.heads + args.cache.kv_heads;
  const int gates = args.gated ? args.heads : 0;
  const int part = of_queries ? head + (args.gated ? head : 0) : head + gates;  // of the row
  const float* const from =
      args.qkv + (static_cast<std::size_t>(row) * static_cast<std::size_t>(heads + gates) +
                  static_cast<std::size_t>(part)) *
                     dims;
  Bf16* const to = args.q + (static_cast<std::size_t>(row) * static_cast<std::size_t>(args.heads) +
                             static_cast<std::size_t>(head)) *
                                dims;
  const Bf16* const norm = of_values ? nullptr : of_queries ? args.q_norm : args.k_norm;
  float weights[dims / 32] = {};
  if (norm != nullptr) {
    const float centre = args.norm_less_one ? 1.0f : -0.0f;
#pragma unroll
    for (int i = 0; i < dims / 32; ++i) weights[i] = __fadd_rn(norm[lane + 32 * i].to_float(), centre);
  }
#pragma unroll 1
  for (int rehearsal = rehearses ? 1 : 0; rehearsal >= 0; --rehearsal) {
    if (rehearsal == 0) ptx::grid_dependency_wait();
    HeadValues<dims> values;
    HeadAngles<dims> angles;
    values.load(from, lane);
    angles.load(args, row, lane);
    const int slot = of_queries ? -1 : __ldcg(args.kv_slots + row);
    if (norm != nullptr) values.norm(weights, args.eps);
    if (!of_values) values.turn(args.rotary_dim, angles, lane);
    if (of_queries) {
#pragma unroll
      for (int i = 0; i < values.count; ++i) {
        if (rehearsal == 0) store(to + lane + 32 * i, values.x[i]);
      }
    } else if (slot >= 0) {
      keep<Kv>(values, args.cache, head - args.heads - (of_values ? args.cache.kv_heads : 0), of_values, slot,
               lane, rehearsal == 0);
    }
  }
}

template <class Kv>
auto kernel_of(int head_dim) {
  return head_dim == 64 ? turn_heads<Kv, 64> : head_dim == 128 ? turn_heads<Kv, 128> : turn_heads<Kv, 256>;
}

}  // namespace

bool turn_heads_takes(int rotary_dim, int head_dim) {
  return rotary_dim == head_dim || (rotary_dim < head_dim && (rotary_dim == 16 || rotary_dim == 32 ||
                                                              rotary_dim == 64 || rotary_dim == 128));
}

Status turn_heads_cuda(const TurnHeadsCudaArgs& of_caller, cudaStream_t stream) {
  TurnHeadsCudaArgs args = of_caller;
  const KvCudaLayer& cache = args.cache;
  if (cache.head_dim != 64 && cache.head_dim != 128 && cache.head_dim != 256)
    return invalid_argument("heads of 64, 128 or 256 dimensions are turned, not of " +
                            std::to_string(cache.head_dim));
  if (args.rotary_dim == 0) args.rotary_dim = cache.head_dim;
  if (!turn_heads_takes(args.rotary_dim, cache.head_dim))
    return invalid_argument("of a head 16, 32, 64, 128 or all dimensions are turned, not " +
                            std::to_string(args.rotary_dim));
  if (cache.slots % kv_chunk_slots != 0) return invalid_argument("a cache's slots come in chunks of 64");
  if (args.rows == 0) return {};
  const int heads = args.rows * (args.heads + 2 * cache.kv_heads);
  launch_kernel(
      {.blocks = dim3(static_cast<unsigned>((heads + turn_warps - 1) / turn_warps)),
       .threads = turn_warps * 32,
       .stream = stream,
       .overlaps = true,
       .share = share_of(args.rows)},
      cache.dtype == KvE4m3::dtype ? kernel_of<KvE4m3>(cache.head_dim) : kernel_of<KvBf16>(cache.head_dim),
      args, args.rows <= turn_rehearsed_rows);
  return {};
}

}  // namespace nibble
