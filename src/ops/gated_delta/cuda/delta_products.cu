// Of sequences of many rows: products of a chunk's keys with its keys and queries, a block a chunk and head
// of keys; and the sums of g over the chunk for the heads of values that it serves. Both are what delta_rows
// finds row by row.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_chunk.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int product_threads = 256;

template <int key_dim>
struct ProductsShared {
  static constexpr int stride = key_dim + 4;  // rows that are read together meet other banks
  float keys[delta_chunk * stride], queries[delta_chunk * stride];
};

// x . y of two rows, in the order of parts.
template <int key_dim>
__device__ __forceinline__ float product_of(const float* x, const float* y) {
  const auto part = [&](int r) {
    float sum = 0;
#pragma unroll
    for (int four = r; four < key_dim / 4; four += delta_parts) {
      const float4 a = *reinterpret_cast<const float4*>(x + 4 * four),
                   b = *reinterpret_cast<const float4*>(y + 4 * four);
      sum = fmaf(a.x, b.x, sum);
      sum = fmaf(a.y, b.y, sum);
      sum = fmaf(a.z, b.z, sum);
      sum = fmaf(a.w, b.w, sum);
    }
    return sum;
  };
  const auto two = [&](int r) {
    const float low = part(r);
    return __fadd_rn(low, part(r + 4));
  };
  const auto four = [&](int r) {
    const float low = two(r);
    return __fadd_rn(low, two(r + 2));
  };
  const float even = four(0);
  return __fadd_rn(even, four(1));
}

template <int key_dim>
__global__ void __launch_bounds__(product_threads)
    delta_products(const __grid_constant__ DeltaKernelArgs args) {
  auto& shared = *reinterpret_cast<ProductsShared<key_dim>*>(ptx::dynamic_shared());
  constexpr int stride = ProductsShared<key_dim>::stride;
  ptx::grid_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x), key_head = static_cast<int>(blockIdx.y);
  const ChunkRows chunk = chunk_at(args.step, static_cast<int>(blockIdx.x));
  ptx::grid_dependency_wait();
  if (chunk.past == 0) return;
  for (int at = thread; at < delta_chunk * (key_dim / 4); at += product_threads) {
    const int j = at / (key_dim / 4), dimension = at % (key_dim / 4) * 4;
    float4 key = make_float4(0, 0, 0, 0), query = key;
    if (j < chunk.open) {
      key = *reinterpret_cast<const float4*>(in_slot(args.slots.keys, args.slot_bytes, chunk.rows.slot) +
                                             (j * args.key_heads + key_head) * key_dim + dimension);
    } else if (j < chunk.past) {
      const float* const row =
          args.qkv + chunk.row_of(j) * static_cast<std::size_t>(args.channels) + key_head * key_dim;
      query = *reinterpret_cast<const float4*>(row + dimension);
      key = *reinterpret_cast<const float4*>(row + args.keys(key_dim) + dimension);
    }
    *reinterpret_cast<float4*>(shared.keys + j * stride + dimension) = key;
    *reinterpret_cast<float4*>(shared.queries + j * stride + dimension) = query;
  }
  // Sums of g take the places of its rows.
  if (thread < args.served()) {
    const int head = key_head * args.served() + thread;
    const auto kept = [&](int j) -> double {
      return in_slot(args.slots.decays, args.slot_bytes, chunk.rows.slot)[j * args.value_heads + head];
    };
    double sum = chunk.open > 0 ? kept(chunk.open - 1) : 0;
    for (int j = chunk.open; j < chunk.past; ++j) {
      double& g = args.decays[chunk.row_of(j) * static_cast<std::size_t>(args.value_heads) +
                              static_cast<std::size_t>(head)];
      sum = j == 0 ? g : sum + g;
      g = sum;
    }
  }
  __syncthreads();  // the rows are there
  // Neighbours have neighbouring rows j of one row p.
  for (int at = chunk.open * delta_chunk + thread; at < chunk.past * delta_chunk; at += product_threads) {
    const int p = at / delta_chunk, j = at % delta_chunk;
    if (j > p) continue;
    float* const out = args.products + (chunk.row_of(p) * static_cast<std::size_t>(args.key_heads) +
                                        static_cast<std::size_t>(key_head)) *
                                           (2 * delta_chunk);
    out[j] = product_of<key_dim>(shared.keys + j * stride, shared.keys + p * stride);
    out[delta_chunk + j] = product_of<key_dim>(shared.keys + j * stride, shared.queries + p * stride);
  }
}

}  // namespace

void launch_delta_products(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    constexpr std::size_t bytes = sizeof(ProductsShared<key_dim>);
    cuda_check(cudaFuncSetAttribute(delta_products<key_dim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)));
    launch_kernel(
        {.blocks = dim3(static_cast<unsigned>(most_chunks(args.step)), static_cast<unsigned>(args.key_heads)),
         .threads = product_threads,
         .shared_bytes = bytes,
         .stream = stream,
         .overlaps = true},
        delta_products<key_dim>, args);
  });
}

}  // namespace nibble
