// paged_attention for sequences of many rows (prefill) and heads of 256, with the bits of the kernel for few
// (attention_cuda.h has the order of additions).
//
// A query's total and its split are 512 sums, so a warpgroup has room for half of the dimensions of 64
// queries. Two warpgroups share a tile of 64 and take its steps in turns. The owner of a step has its scores,
// and leaves weights, their sums and the largest exponents in shared memory; both multiply the weights with
// their half of the dimensions of the values. While the owner weighs, the tensor cores have both halves of
// the step before, and the next step's keys.
//
// FLOPs: 4 x 256 a query and position, 1,024 cycles a step, and operands from shared memory take 896. Keys
// and values of a step are 64 KB, mostly from the second-level cache, of which 64 bytes a cycle at the very
// most come to a multiprocessor: 1,024 cycles. Products read bfloat16: what comes as e4m3 comes into a ring
// of its own, and warps that have nothing else to do convert it.
//
// Tiles are dealt from a sequence's end, where they are largest, in rounds of alternating direction.
#include "ops/attention/cuda/attention_row_sums.cuh"
#include "ops/attention/cuda/attention_wide_tile.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

using namespace wide;

// Named barriers, the first half's of two: its step's weights are there for the other half, which waits, and
// for itself; it has cleared its values.
constexpr int weights_for_other = 1, weights_for_own = 3, half_cleared = 5;

// A warpgroup's reading of one tile. Halves own steps in turns, from tile to tile.
template <class Kv>
struct WideReading {
  using Ring = WideRing<Kv>;
  using Place = typename Ring::Place;
  WideShared<Kv>& shared;
  const Ring& ring;
  const WideTile& tile;
  int half, lane;
  int first_query;  // of this thread: its row g
  int t;
  Sight sights[2];
  int first, past;              // steps
  int whole_first, whole_past;  // those that all of the warp's queries see
  float per_score;              // exponents
  float s[4 * step_eights], o[own_dims / 2], total[own_dims / 2];
  RowScalars split, of_total;
  bool add;  // whether the next values' product goes on from what o holds

  __device__ __forceinline__ WideReading(WideShared<Kv>& shared_, const Ring& ring_, const WideTile& tile_,
                                         int half_, int warp, int lane_)
      : shared(shared_),
        ring(ring_),
        tile(tile_),
        half(half_),
        lane(lane_),
        first_query(warp * 16 + lane_ / 4),
        t(lane_ % 4),
        sights{tile_.sight(first_query), tile_.sight(first_query + 8)},
        first(tile_.first_step()),
        past(tile_.past_step()),
        split{{attention_nothing, attention_nothing}, {0, 0}} {
    whole_first = (tile.sight(warp * 16 + 15).first + step_positions - 1) / step_positions;
    whole_past = tile.sight(warp * 16).past / step_positions;
    per_score = __fmul_rn(tile.args.scale, log2_e);
#pragma unroll
    for (int i = 0; i < own_dims / 2; ++i) total[i] = o[i] = 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      of_total.m[row] = tile.sink_exponent(first_query + 8 * row);
      of_total.l[row] = t == 0 ? tile.sink_weight(first_query + 8 * row) : 0;
    }
  }

  __device__ __forceinline__ bool begins(int step) const { return step == first || begins_split(step); }
  __device__ __forceinline__ Place behind_values(const Place& at, int step) const {
    return at.plus(step + 2 < past ? 2 : 1);
  }

  // s = q keys: under way when it returns.
  __device__ __forceinline__ void multiply_keys(const Place& at) {
    ring.wait_full(at);
    const std::uint64_t queries = ptx::wgmma_operand<eight_rows>(shared.queries);
    const std::uint64_t keys = ptx::wgmma_operand<eight_rows>(ring.slot(at));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < wide_dims / 16; ++k) {
      ptx::wgmma_bf16(s, ptx::wgmma_operand_at(queries, k * 256), ptx::wgmma_operand_at(keys, k * 256),
                      k > 0);
    }
    ptx::wgmma_commit();
  }
  // When that is done. Keys are released for the other half, too, which does not read them.
  __device__ __forceinline__ void release_keys(const Place& at, int step) const {
    if (lane < halves) ring.release(at);
    if (step + 2 >= past) release_queries();
  }
  __device__ __forceinline__ void release_queries() const {
    if (lane == 0) ptx::mbarrier_arrive(&shared.queries_empty);
  }

  // o = weights values, of this half's dimensions, plus what o holds within a split: under way when it
  // returns.
  __device__ __forceinline__ void multiply_values(const Place& at, int step, int owner) {
    ring.wait_full(at);
    clear_unseen(ring.slot(at), step);
    const std::uint64_t weights = ptx::wgmma_operand<eight_weights>(shared.weights[owner]);
    const std::uint64_t values = ptx::wgmma_operand<kv_group_bytes<KvBf16>>(
        ring.slot(at) + half * (own_dims / 8) * kv_group_bytes<KvBf16>);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < step_positions / 16; ++k) {
      ptx::wgmma_bf16(o, ptx::wgmma_operand_at(weights, k * 256), ptx::wgmma_operand_at(values, k * 256),
                      add || k > 0);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void release_values(const Place& at) const {
    if (lane == 0) ring.release(at);
  }

  // What the queries do not see of a step.
  __device__ __forceinline__ void hide(int step) {
    if (step >= whole_first && step < whole_past) return;
    const int at = step * step_positions + 2 * t;
#pragma unroll
    for (int i = 0; i < 4 * step_eights; ++i) {
      const int position = at + i / 4 * 8 + i % 2, row = i / 2 % 2;
      if (position < sights[row].first || position >= sights[row].past) s[i] = attention_nothing;
    }
  }

  // Weights are zero where the tile sees nothing, but zero times what is no number is none. A thread has the
  // same eight positions of some of the half's dimensions, and eight threads 128 bytes in a row.
  __device__ __forceinline__ void clear_unseen(std::uint8_t* values, int step) const {
    const int seen_first = tile.first() - step * step_positions;
    const int seen_past = tile.past() - step * step_positions;
    if (seen_first <= 0 && seen_past >= step_positions) return;
    const int thread = static_cast<int>(threadIdx.x) % half_threads, begin = thread / 8 % step_eights * 8;
    std::uint32_t seen[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int low = begin + 2 * i, high = low + 1;
      seen[i] = (low >= seen_first && low < seen_past ? 0x0000ffffu : 0) |
                (high >= seen_first && high < seen_past ? 0xffff0000u : 0);
    }
    if ((seen[0] & seen[1] & seen[2] & seen[3]) != 0xffffffffu) {
      const int from = half * own_dims + thread / step_positions * 8 + thread % 8;
#pragma unroll 1
      for (int i = 0; i < own_dims; i += half_threads / step_eights) {
        uint4* const eight = reinterpret_cast<uint4*>(values + 2 * KvBf16::value_at(begin, from + i));
        const uint4 held = *eight;
        *eight = make_uint4(held.x & seen[0], held.y & seen[1], held.z & seen[2], held.w & seen[3]);
      }
    }
    ptx::fence_shared_writes();
    ptx::named_barrier(half_cleared + half, half_threads);
  }

  // What a step's weights are taken from, and their sum by lanes.
  struct Weighed {
    float m[2], sum[2];
  };

  // The scores of the half's step become weights in shared memory. The other half has multiplied those that
  // were there: it leaves its own when it has.
  __device__ __forceinline__ Weighed weigh(int step) {
    hide(step);
    Weighed weighed;
    std::uint8_t* const weights = shared.weights[half] + first_query / 8 * eight_weights + lane * 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = fmaxf(s[2 * row], s[2 * row + 1]);
#pragma unroll
      for (int i = 1; i < step_eights; ++i)
        largest = fmaxf(largest, fmaxf(s[4 * i + 2 * row], s[4 * i + 2 * row + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float before = begins(step) ? attention_nothing : split.m[row];
      weighed.m[row] = fmaxf(before, exponent_of(__fmul_rn(largest, per_score)));
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float from = finite_exponent(weighed.m[row]);
      float of_eight[step_eights];
#pragma unroll
      for (int i = 0; i < step_eights; ++i) {
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) pair[e] = ptx::exp2_fast(fmaf(s[4 * i + 2 * row + e], per_score, -from));
        of_eight[i] = __fadd_rn(pair[0], pair[1]);
        *reinterpret_cast<std::uint32_t*>(weights + row * eight_weights + i * 128) =
            ptx::pack_bf16x2(pair[0], pair[1]);
      }
#pragma unroll
      for (int apart = 1; apart < step_eights; apart *= 2) {
#pragma unroll
        for (int i = 0; i < step_eights; i += 2 * apart)
          of_eight[i] = __fadd_rn(of_eight[i], of_eight[i + apart]);
      }
      weighed.sum[row] = of_eight[0];
      shared.sums[half][first_query + 8 * row][t] = of_eight[0];
      if (t == 0) shared.exponents[half][first_query + 8 * row] = weighed.m[row];
    }
    ptx::fence_shared_writes();
    return weighed;
  }
  __device__ __forceinline__ void leave_weights() const {
    ptx::named_barrier_arrive(weights_for_other + half, readers);
    ptx::named_barrier(weights_for_own + half, half_threads);
  }
  // Waits for the other half's step.
  __device__ __forceinline__ Weighed weights_of_other() const {
    const int other = 1 - half;
    ptx::named_barrier(weights_for_other + other, readers);
    Weighed weighed;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      weighed.m[row] = shared.exponents[other][first_query + 8 * row];
      weighed.sum[row] = shared.sums[other][first_query + 8 * row][t];
    }
    return weighed;
  }

  // Before the step's values are multiplied: what o holds is scaled, or taken in where a split ends.
  __device__ __forceinline__ void enter(int step, const Weighed& weighed) {
    add = !begins(step);
    if (!add) {
      take_in_split(total, of_total, o, split);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        split.m[row] = weighed.m[row];
        split.l[row] = weighed.sum[row];
      }
      return;
    }
    float scales[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      scales[row] = power_of_two(__fsub_rn(split.m[row], weighed.m[row]));
      split.m[row] = weighed.m[row];
      split.l[row] = fmaf(split.l[row], scales[row], weighed.sum[row]);
    }
    scale(o, scales);
  }

  // steps: of all tiles before, which say whose turn it is.
  __device__ __forceinline__ void run(Place& at, unsigned tiles, int steps) {
    const int other = 1 - half;
    const bool is_second = steps % halves != half;
    int step = first + is_second;  // the half's own; at: of its values
    ptx::mbarrier_wait(&shared.queries_full, tiles & 1);
    if (step < past) {
      multiply_keys(at.plus(is_second));
      ptx::wgmma_wait_all(s);
      release_keys(at.plus(is_second), step);
    } else {
      release_queries();
    }
    at = at.plus(first + 1 < past ? 2 : 1);
    if (is_second) {
      enter(first, weights_of_other());
      multiply_values(at, first, other);
      ptx::wgmma_wait_all(o);
      release_values(at);
      at = behind_values(at, first);
    }
    if (step < past) {
      const Weighed weighed = weigh(step);
      leave_weights();
      enter(step, weighed);
#pragma unroll 1
      for (; step + 2 < past; step += 2) {
        const Place next_keys = at.plus(1), next_values = at.plus(2);
        // Values before the next keys: while those are multiplied, o is scaled or taken in.
        multiply_values(at, step, half);
        multiply_keys(next_keys);
        ptx::wgmma_wait_but<1>(o);
        release_values(at);
        enter(step + 1, weights_of_other());
        multiply_values(next_values, step + 1, other);
        ptx::wgmma_wait_but<1>(s);
        release_keys(next_keys, step + 2);
        const Weighed next = weigh(step + 2);
        ptx::wgmma_wait_all(o);  // with the other half's weights, which it may write over then
        leave_weights();
        release_values(next_values);
        enter(step + 2, next);
        at = behind_values(next_values, step + 1);
      }
      multiply_values(at, step, half);
      ptx::wgmma_wait_all(o);
      release_values(at);
      at = behind_values(at, step);
      if (step + 1 < past) {
        enter(step + 1, weights_of_other());
        multiply_values(at, step + 1, other);
        ptx::wgmma_wait_all(o);
        release_values(at);
        at = behind_values(at, step + 1);
      }
    }
    take_in_split(total, of_total, o, split);
    put_out();
  }

  __device__ __forceinline__ void put_out() const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float l = of_total.l[row];
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
      l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
      const int query = first_query + 8 * row;
      if (query >= tile.count) continue;
      const float factor = 1.0f / l;
      std::uint8_t* const out = tile.out(query, half * own_dims + 2 * t);
#pragma unroll
      for (int j = 0; j < own_dims / 8; ++j) {
        // Eight columns further on are 128 bytes (token_offset).
        *reinterpret_cast<std::uint32_t*>(out + 128 * j) = ptx::pack_bf16x2(
            __fmul_rn(total[4 * j + 2 * row], factor), __fmul_rn(total[4 * j + 2 * row + 1], factor));
      }
    }
  }
};

template <class Kv>
__global__ void __launch_bounds__(wide_threads, 1)
    sm90_attention_wide(const __grid_constant__ AttentionCudaArgs args) {
  WideShared<Kv>& shared = *reinterpret_cast<WideShared<Kv>*>(ptx::dynamic_shared());
  ComingShared& of_coming = *reinterpret_cast<ComingShared*>(&shared + 1);  // if anything is converted
  const WideRing<Kv> ring{shared.ring, shared.full, shared.empty};
  const WideComing coming{of_coming.ring, of_coming.full, of_coming.empty};
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.queries_full, 1);
    ptx::mbarrier_init(&shared.queries_empty, readers / 32);
    if constexpr (is_converted<Kv>) {
      ring.init(converters);
      coming.init();
    } else {
      ring.init();
    }
  }
  const int group_bits = group_bits_of(args), tile_rows = tile_queries >> group_bits;
  add_up_units<wide_threads>(shared.before, args.sequence_count, [&](int index) -> long long {
    const SequenceCuda& sequence = args.sequences[index];
    if (sequence.row_count == 0) return 0;
    if (args.rows != AttentionRows::all_as_many && has_few_rows(sequence, group_bits)) return 0;
    return (sequence.row_count + tile_rows - 1) / tile_rows;
  });
  const int units = static_cast<int>(shared.before[args.sequence_count]) * args.cache.kv_heads;
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const auto for_each_tile = [&](const auto& run) {
    for (int begin = 0, round = 0; begin < units; begin += blocks, ++round) {
      const int unit = begin + (round % 2 == 0 ? block : blocks - 1 - block);
      if (unit >= units) continue;
      const int of_all = unit / args.cache.kv_heads;
      const int index = sequence_of(shared.before, args.sequence_count, of_all);
      const SequenceCuda sequence = args.sequences[index];
      const int first_row = (static_cast<int>(shared.before[index + 1]) - 1 - of_all) * tile_rows;
      run(WideTile{args, sequence, unit % args.cache.kv_heads, group_bits, first_row,
                   min(tile_rows, sequence.row_count - first_row) << group_bits});
    }
  };
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  typename WideRing<Kv>::Place at;
  unsigned tiles = 0;
  if (warp < 4) {
    ptx::keep_registers<40>();
    typename WideComing::Place at_coming;
    if (warp == query_warp) {
      for_each_tile([&](const WideTile& tile) { fill_queries(tile, tiles++, shared, lane); });
    } else if (warp >= first_converter) {
      if constexpr (is_converted<Kv>) {
        for_each_tile([&](const WideTile& tile) {
          convert_steps<converters>(coming, at_coming, ring, at, tile.first_step(), tile.past_step(),
                                    warp - first_converter, lane);
        });
      }
    } else {
      for_each_tile([&](const WideTile& tile) {
        if constexpr (is_converted<Kv>) {
          fill_steps(coming, at_coming, tile, lane);
        } else {
          fill_steps(ring, at, tile, lane);
        }
      });
    }
  } else {
    ptx::take_registers<232>();
    const int half = warp / 4 - 1;
    int steps = 0;
    for_each_tile([&](const WideTile& tile) {
      WideReading<Kv>(shared, ring, tile, half, warp % 4, lane).run(at, tiles++, steps);
      steps += tile.past_step() - tile.first_step();
    });
  }
}

template <class Kv>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  cuda_check(cudaFuncSetAttribute(sm90_attention_wide<Kv>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes<Kv>)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                 .threads = wide_threads,
                 .shared_bytes = shared_bytes<Kv>,
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_wide<Kv>, args);
}

}  // namespace

void launch_attention_wide(const AttentionCudaArgs& args, cudaStream_t stream) {
  args.cache.dtype == KvE4m3::dtype ? launch<KvE4m3>(args, stream) : launch<KvBf16>(args, stream);
}

}  // namespace nibble
