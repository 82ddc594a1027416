// paged_attention for sequences of many rows (prefill), with the bits of the kernel for few (attention_cuda.h
// has the order of additions).
//
// FLOPs: 4 x 64 a query and position; 550 GFLOP for gpt-oss's 8,192 rows, 0.70 ms at 790 TFLOP/s. As dear are
// the weights: one exponential a query and position, 16 a cycle and multiprocessor, 0.56 ms. So while one
// warpgroup's products run, another takes exponentials. A block has two of them, each with 64 queries (8 rows
// of gpt-oss), and a warp that asks for keys and values, which both read. Within a warpgroup the product with
// a step's values runs beside the next step's exponentials.
//
// Tiles are dealt from a sequence's end, where they are largest, in rounds of alternating direction.
#include <algorithm>

#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int groups = 2;  // warpgroups that read
constexpr int group_queries = 64;
constexpr int tile_queries = groups * group_queries;
constexpr int readers = groups * 128;
constexpr int many_threads = 128 + readers;
constexpr int slots = 8;
constexpr int step_sums = attention_step / 2;  // a thread's: two rows of the step's scores
constexpr int out_sums = kv_head_dim / 2;

using Ring = KvRing<slots, readers / 32>;

struct alignas(128) ManyShared {
  std::uint8_t ring[slots * attention_slot_bytes];
  std::uint64_t full[slots], empty[slots];
  long long before[attention_max_sequences + 1];  // tiles
};

// For a thread's two rows, in lanes.
struct Scalars {
  float m[2], l[2];
};

__device__ __forceinline__ bool begins_split(int step) {
  return attention_split_begin(attention_split_of(step)) == step;
}

// s = q keys: under way when it returns.
__device__ __forceinline__ void multiply_keys(float (&s)[step_sums], const TileQueries& q,
                                              const std::uint8_t* keys) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    ptx::wgmma_bf16(s, q.step[k], ptx::wgmma_operand<kv_group_elements * 2>(keys + k * 256), k > 0);
  ptx::wgmma_commit();
}

// o = weights values, plus what o held if `add`: under way when it returns.
__device__ __forceinline__ void multiply_values(float (&o)[out_sums], const std::uint32_t (&weights)[8][4],
                                                const std::uint8_t* values, bool add) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    ptx::wgmma_bf16(o, weights[k],
                    ptx::wgmma_operand<kv_group_elements * 2>(values + k / 4 * kv_chunk_bytes + k % 4 * 256),
                    add || k > 0);
  }
  ptx::wgmma_commit();
}

// Scores into weights; the scales of what the split has summed up so far.
__device__ __forceinline__ void weigh(float (&s)[step_sums], Scalars& split, float (&scales)[2],
                                      float exponents) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = fmaxf(s[4 * i + 2 * row], s[4 * i + 2 * row + 1]);
#pragma unroll
    for (int i = 4; i < step_sums / 4; ++i)
      four[i % 4] = fmaxf(four[i % 4], fmaxf(s[4 * i + 2 * row], s[4 * i + 2 * row + 1]));
    float largest = fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float m = fmaxf(split.m[row], exponent_of(__fmul_rn(largest, exponents)));
    const float from = finite_exponent(m);
    scales[row] = power_of_two(__fsub_rn(split.m[row], m));
    split.m[row] = m;
    float sums[8];  // of sixteen positions each
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& weight = s[8 * i + e / 2 * 4 + 2 * row + e % 2];
        weight = ptx::exp2_fast(fmaf(weight, exponents, -from));
        sums[i] = e == 0 ? weight : __fadd_rn(sums[i], weight);
      }
    }
#pragma unroll
    for (int apart = 1; apart < 8; apart *= 2) {
#pragma unroll
      for (int i = 0; i < 8; i += 2 * apart) sums[i] = __fadd_rn(sums[i], sums[i + apart]);
    }
    split.l[row] = fmaf(split.l[row], scales[row], sums[0]);
  }
}

__device__ __forceinline__ void pack(std::uint32_t (&weights)[8][4], const float (&s)[step_sums]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = ptx::pack_bf16x2(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}

// Products of both rows with powers of two, which are mostly 1.
__device__ __forceinline__ void scale(float (&sums)[out_sums], const float (&by)[2]) {
  if (__ballot_sync(0xffffffffu, by[0] != 1.0f || by[1] != 1.0f) == 0) return;
#pragma unroll
  for (int i = 0; i < out_sums; ++i) sums[i] = __fmul_rn(sums[i], by[i / 2 % 2]);
}

// A split into its query's total.
__device__ __forceinline__ void take_in_split(float (&total)[out_sums], Scalars& scalars,
                                              const float (&o)[out_sums], const Scalars& split) {
  float keep[2], add[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const Scaling scaling = scaling_of(scalars.m[row], split.m[row]);
    keep[row] = scaling.keep;
    add[row] = scaling.add;
    scalars.m[row] = scaling.m;
    scalars.l[row] = take_in(scalars.l[row], split.l[row], scaling);
  }
  scale(total, keep);
#pragma unroll
  for (int i = 0; i < out_sums; ++i) total[i] = fmaf(o[i], add[i / 2 % 2], total[i]);
}

// A warpgroup's reading of one tile.
struct Reading {
  const Ring& ring;
  const Tile& tile;
  int first_query;  // of this thread: its row g
  int t, lane;

  // What the warpgroup's queries do not see of a step.
  __device__ __forceinline__ void hide(float (&s)[step_sums], int step) const {
    const Sight sights[2] = {tile.sight(first_query), tile.sight(first_query + 8)};
    const bool all = sights[0].sees_all(step) && sights[1].sees_all(step);
    if (__ballot_sync(0xffffffffu, !all) == 0) return;
#pragma unroll
    for (int i = 0; i < step_sums; ++i) {
      const int position = step * attention_step + i / 4 * 8 + 2 * t + i % 2;
      const int row = i / 2 % 2;
      if (position < sights[row].first || position >= sights[row].past) s[i] = attention_nothing;
    }
  }

  // Weights are zero where the tile sees nothing, but zero times what is no number is none. By all readers.
  __device__ __forceinline__ void clear_unseen(std::uint8_t* values, int step) const {
    const int first = tile.first() - step * attention_step, past = tile.past() - step * attention_step;
    if (first <= 0 && past >= attention_step) return;
    for (int i = static_cast<int>(threadIdx.x) - 128; i < kv_head_dim * attention_step / 8; i += readers) {
      const int position = i % 16 * 8, dimension = i / 16;
      if (first <= position && position + 8 <= past) continue;
      auto* const eight =
          reinterpret_cast<std::uint16_t*>(values + position / kv_chunk_slots * kv_chunk_bytes +
                                           2 * kv_value_at(position % kv_chunk_slots, dimension));
      for (int j = 0; j < 8; ++j) {
        if (position + j < first || position + j >= past) eight[j] = 0;
      }
    }
    ptx::fence_shared_writes();
    ptx::named_barrier(1, readers);  // all of it is cleared
  }

  __device__ __forceinline__ void release(unsigned at) const {
    if (lane == 0) ring.release(at);
  }

  __device__ __forceinline__ void run(unsigned& at) const {
    const float exponents = __fmul_rn(tile.args.scale, log2_e);
    const TileQueries q(tile.queries(first_query), tile.queries(first_query + 8), t);
    float s[step_sums], o[out_sums], total[out_sums], scales[2];
    std::uint32_t weights[8][4];
    Scalars split{{attention_nothing, attention_nothing}, {0, 0}}, of_total;
#pragma unroll
    for (int i = 0; i < out_sums; ++i) total[i] = o[i] = 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      of_total.m[row] = tile.sink_exponent(first_query + 8 * row);
      of_total.l[row] = t == 0 ? tile.sink_weight(first_query + 8 * row) : 0;
    }
    const int first = tile.first_step(), past = tile.past_step();
    ring.wait_full(at);
    multiply_keys(s, q, ring.slot(at));
    ptx::wgmma_wait_all(s);
    release(at);
    hide(s, first);
    weigh(s, split, scales, exponents);
    pack(weights, s);
    bool add = false;  // whether the values' product goes on from what o holds
#pragma unroll 1
    for (int step = first + 1; step < past; ++step, at += 2) {
      ring.wait_full(at + 2);
      multiply_keys(s, q, ring.slot(at + 2));
      ring.wait_full(at + 1);
      clear_unseen(ring.slot(at + 1), step - 1);
      multiply_values(o, weights, ring.slot(at + 1), add);
      ptx::wgmma_wait_but<1>(s);
      release(at + 2);
      hide(s, step);
      const Scalars last = split;
      const bool begins = begins_split(step);
      if (begins) split = {{attention_nothing, attention_nothing}, {0, 0}};
      weigh(s, split, scales, exponents);
      ptx::wgmma_wait_all(o);
      release(at + 1);
      if (begins) {
        take_in_split(total, of_total, o, last);
      } else {
        scale(o, scales);
      }
      add = !begins;
      pack(weights, s);
    }
    ring.wait_full(at + 1);
    clear_unseen(ring.slot(at + 1), past - 1);
    multiply_values(o, weights, ring.slot(at + 1), add);
    ptx::wgmma_wait_all(o);
    release(at + 1);
    at += 2;
    take_in_split(total, of_total, o, split);
    put_out(total, of_total);
  }

  __device__ __forceinline__ void put_out(const float (&total)[out_sums], const Scalars& scalars) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float l = scalars.l[row];
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
      const int query = first_query + 8 * row;
      if (query >= tile.count) continue;
#pragma unroll
      for (int j = 0; j < kv_head_dim / 8; ++j) {
        *reinterpret_cast<std::uint32_t*>(tile.out(query, 8 * j + 2 * t)) =
            ptx::pack_bf16x2(total[4 * j + 2 * row] / l, total[4 * j + 2 * row + 1] / l);
      }
    }
  }
};

__global__ void __launch_bounds__(many_threads, 1)
    sm90_attention_many(const __grid_constant__ AttentionCudaArgs args) {
  ManyShared& shared = *reinterpret_cast<ManyShared*>(ptx::dynamic_shared());
  const Ring ring{shared.ring, shared.full, shared.empty};
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (threadIdx.x == 0) ring.init();
  const int group = args.heads / args.cache.kv_heads, tile_rows = tile_queries / group;
  add_up_units<many_threads>(shared.before, args.sequence_count, [&](int index) -> long long {
    const SequenceCuda& sequence = args.sequences[index];
    if (sequence.row_count == 0) return 0;
    if (args.rows != AttentionRows::all_as_many && has_few_rows(sequence, group)) return 0;
    return (sequence.row_count + tile_rows - 1) / tile_rows;
  });
  const int units = static_cast<int>(shared.before[args.sequence_count]) * args.cache.kv_heads;
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const auto for_each_tile = [&](const auto& run) {
    for (int begin = 0, round = 0; begin < units; begin += blocks, ++round) {
      const int unit = begin + (round % 2 == 0 ? block : blocks - 1 - block);
      if (unit >= units) continue;
      const int tile = unit / args.cache.kv_heads;
      const int index = sequence_of(shared.before, args.sequence_count, tile);
      const SequenceCuda sequence = args.sequences[index];
      const int first_row = (static_cast<int>(shared.before[index + 1]) - 1 - tile) * tile_rows;
      run(Tile{args, sequence, unit % args.cache.kv_heads, group, first_row,
               min(tile_rows, sequence.row_count - first_row) * group});
    }
  };
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  unsigned at = 0;
  if (warp < 4) {
    ptx::keep_registers<40>();
    if (warp > 0) return;
    for_each_tile([&](const Tile& tile) {
      ring.fill(at, tile, tile.first_step(), tile.past_step(), lane, [](int) {});
    });
  } else {
    ptx::take_registers<232>();
    for_each_tile([&](const Tile& tile) {
      Reading{ring, tile, (warp - 4) * 16 + lane / 4, lane % 4, lane}.run(at);
    });
  }
}

}  // namespace

void launch_attention_many(const AttentionCudaArgs& args, cudaStream_t stream) {
  int device = 0, processors = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  cuda_check(cudaFuncSetAttribute(sm90_attention_many, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(ManyShared))));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(processors)),
                 .threads = many_threads,
                 .shared_bytes = sizeof(ManyShared),
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_many, args);
}

}  // namespace nibble
