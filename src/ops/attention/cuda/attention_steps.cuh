// What both attention kernels do with a tile of 16 queries and a chunk of 64 positions, and with totals.
#pragma once

#include "ops/attention/cuda/attention_cuda.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/load.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

inline constexpr float log2_e = 1.44269504f;
inline constexpr float attention_nothing = -__builtin_inff();

// A lane (g = lane / 4, t = lane % 4) has of each 64 (dimensions, or positions of a chunk) the elements
// 8t .. 8t + 7 and 32 + 8t .. 32 + 8t + 7; a k16 step takes four of them, the first of which is:
__device__ __forceinline__ constexpr int lane_element(int step, int t) {
  return step / 2 * 32 + 8 * t + step % 2 * 4;
}

struct Pieces64 {  // a lane's 16 elements of 64, as operand registers: two words a step
  std::uint32_t step[4][2];
};
__device__ __forceinline__ Pieces64 load_pieces(const Bf16* of_64, int t) {
  const uint4 low = *reinterpret_cast<const uint4*>(of_64 + 8 * t);
  const uint4 high = *reinterpret_cast<const uint4*>(of_64 + 32 + 8 * t);
  return {{{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}}};
}

// The same of what no other warp reads, asked for where this stands.
__device__ __forceinline__ Pieces64 stream_pieces(const Bf16* of_64, int t) {
  const uint4 low = ptx::load_streaming(of_64 + 8 * t), high = ptx::load_streaming(of_64 + 32 + 8 * t);
  return {{{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}}};
}

// Two queries a lane: rows g and g + 8 of the tile. A row past the last one repeats it.
struct TileQueries {
  Pieces64 row[2];
};

// For a lane's two queries: the positions of the chunk they see, and what the tile as a whole sees.
struct Seen {
  int begin[2], end[2];
  int first, past;  // of the tile; values outside may be anything
};

// A chunk's result, a split's or a query's, for a lane's two rows. Of row r dimensions 8j + 2t and + 1 are
// o[j][2r] and o[j][2r + 1].
struct TileTotal {
  float m[2], l[2];
  float o[8][4];
};

// Zeroes what lies outside: weights there are zero, but zero times what is no number is none.
__device__ __forceinline__ void clear_unseen(Pieces64& values, int t, const Seen& seen) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = lane_element(step, t) + i;
      if (position < seen.first || position >= seen.past)
        values.step[step][i / 2] &= i % 2 ? 0x0000ffffu : 0xffff0000u;
    }
  }
}

// values_early: all of the chunk is asked for at once, for 64 registers more, by the only warp that reads it.
template <bool values_early>
__device__ __forceinline__ void attend_chunk(TileTotal& chunk, const TileQueries& q, const Bf16* keys,
                                             const Bf16* values, float scale, const Seen& seen, int lane) {
  const int g = lane / 4, t = lane % 4;
  const auto position_of = [&](int i) { return lane_element(i / 2, g / 2) + 2 * (i % 2) + g % 2; };
  const auto load = [&](const Bf16* of_64) {
    return values_early ? stream_pieces(of_64, t) : load_pieces(of_64, t);
  };
  const auto load_values = [&](int j) { return load(values + (8 * j + g) * kv_chunk_slots); };
  Pieces64 key[8], value[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) key[i] = load(keys + position_of(i) * kv_head_dim);
  if (values_early) {
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j] = load_values(j);
    __syncwarp();  // the assembler would move the loads to where the values are needed, but not past this
  }
  // Column 2t' + e of score tile i is position lane_element(i / 2, t') + 2 (i % 2) + e: where the weights, as
  // operand of the second product, then stand in the lane that has them.
  float s[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::mma_m16n8k16_bf16(s[i], q.row[0].step[step][0], q.row[1].step[step][0], q.row[0].step[step][1],
                             q.row[1].step[step][1], key[i].step[step][0], key[i].step[step][1]);
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float largest = attention_nothing;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int position = lane_element(i / 2, t) + 2 * (i % 2) + e;
        float& score = s[i][2 * row + e];
        score = __fmul_rn(score, scale);
        if (position >= seen.begin[row] && position < seen.end[row]) largest = fmaxf(largest, score);
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int position = lane_element(i / 2, t) + 2 * (i % 2) + e;
        float& weight = s[i][2 * row + e];
        const bool sees = position >= seen.begin[row] && position < seen.end[row];
        weight = sees ? ptx::exp2_fast(__fsub_rn(weight, largest)) : 0.0f;
        sum = __fadd_rn(sum, weight);
      }
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
    chunk.m[row] = largest;
    chunk.l[row] = sum;
  }
  const bool whole = seen.first <= 0 && seen.past >= kv_chunk_slots;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (!values_early) value[j] = load_values(j);
    if (!whole) clear_unseen(value[j], t, seen);
    chunk.o[j][0] = chunk.o[j][1] = chunk.o[j][2] = chunk.o[j][3] = 0;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::mma_m16n8k16_bf16(chunk.o[j], ptx::pack_bf16x2(s[2 * step][0], s[2 * step][1]),
                             ptx::pack_bf16x2(s[2 * step][2], s[2 * step][3]),
                             ptx::pack_bf16x2(s[2 * step + 1][0], s[2 * step + 1][1]),
                             ptx::pack_bf16x2(s[2 * step + 1][2], s[2 * step + 1][3]), value[j].step[step][0],
                             value[j].step[step][1]);
    }
  }
}

// How both sides of a taking-in are scaled.
struct Scaling {
  float m, keep, add;
};
__device__ __forceinline__ Scaling scaling_of(float m, float other) {
  const float larger = fmaxf(m, other);
  return {larger, ptx::exp2_fast(__fsub_rn(m, larger)), ptx::exp2_fast(__fsub_rn(other, larger))};
}
__device__ __forceinline__ float take_in(float total, float other, const Scaling& scaling) {
  return fmaf(other, scaling.add, __fmul_rn(total, scaling.keep));
}

// The chunks that a position sees: [first, past) of them, and of chunk c the positions [begin, end).
struct Sight {
  int first_position, last_position;

  __device__ Sight(int position, int window)
      : first_position(window > 0 ? max(0, position - window + 1) : 0), last_position(position) {}
  __device__ int begin(int chunk) const {
    return min(max(first_position - chunk * kv_chunk_slots, 0), kv_chunk_slots);
  }
  __device__ int end(int chunk) const {
    return min(max(last_position + 1 - chunk * kv_chunk_slots, 0), kv_chunk_slots);
  }
  __device__ bool sees(int chunk) const { return begin(chunk) < end(chunk); }
};

// A tile: `count` queries of one sequence and KV head, query i being head i % group of row first_row + i /
// group.
struct Tile {
  const AttentionCudaArgs& args;
  SequenceCuda sequence;
  int kv_head, group, first_row, count;  // first_row: counted from the sequence's first

  __device__ int row_of(int query) const { return first_row + min(query, count - 1) / group; }
  __device__ int head_of(int query) const { return kv_head * group + min(query, count - 1) % group; }
  __device__ int position_of(int query) const { return sequence.first_position + row_of(query); }
  __device__ Sight sight(int query) const { return {position_of(query), args.window}; }
  __device__ int first_chunk() const { return sight(0).first_position / kv_chunk_slots; }
  __device__ int past_chunk() const { return position_of(count - 1) / kv_chunk_slots + 1; }

  __device__ const Bf16* queries(int query) const {
    return args.q + (static_cast<std::size_t>(sequence.row_begin + row_of(query)) *
                         static_cast<std::size_t>(args.heads) +
                     static_cast<std::size_t>(head_of(query))) *
                        kv_head_dim;
  }
  __device__ TileQueries load_queries(int lane) const {
    return {{load_pieces(queries(lane / 4), lane % 4), load_pieces(queries(lane / 4 + 8), lane % 4)}};
  }
  __device__ Seen seen(int chunk, int lane) const {
    const Sight low = sight(lane / 4), high = sight(lane / 4 + 8);
    return {{low.begin(chunk), high.begin(chunk)},
            {low.end(chunk), high.end(chunk)},
            sight(0).begin(chunk),
            sight(count - 1).end(chunk)};
  }
  // Where the chunk's keys and values of the KV head lie, in elements.
  __device__ std::size_t chunk_at(int chunk) const {
    const int position = chunk * kv_chunk_slots, page = position / args.page_size;
    const int slot =
        args.page_table[sequence.pages_at + page] * args.page_size + position - page * args.page_size;
    return (static_cast<std::size_t>(kv_head) * static_cast<std::size_t>(args.cache.slots / kv_chunk_slots) +
            static_cast<std::size_t>(slot / kv_chunk_slots)) *
           kv_chunk_elements;
  }
  template <bool values_early>
  __device__ void attend(TileTotal& result, const TileQueries& q, int chunk, int lane) const {
    const std::size_t at = chunk_at(chunk);
    attend_chunk<values_early>(result, q, args.cache.keys + at, args.cache.values + at,
                               __fmul_rn(args.scale, log2_e), seen(chunk, lane), lane);
  }
  // The logit that a query's total begins with, in powers of two, and its weight.
  __device__ float sink(int query) const {
    return args.sinks == nullptr ? attention_nothing : __fmul_rn(args.sinks[head_of(query)], log2_e);
  }
  __device__ float sink_weight() const { return args.sinks == nullptr ? 0.0f : 1.0f; }
  __device__ std::uint8_t* out(int query, int dimension) const {
    return args.out + token_offset(args.heads, sequence.row_begin + row_of(query),
                                   head_of(query) * kv_head_dim + dimension);
  }
};

// How many units of work each sequence is, added up: units of sequence i are [before[i], before[i + 1]).
// By all threads of a block of 128; before: [sequences + 1] in shared memory.
template <class UnitsOf>
__device__ __forceinline__ void add_up_units(std::int32_t* before, int sequences, const UnitsOf& units_of) {
  constexpr int threads = 128;
  __shared__ std::int32_t of_warp[threads / 32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int each = (sequences + threads - 1) / threads;
  const int begin = min(thread * each, sequences), end = min(begin + each, sequences);
  int own = 0;
  for (int i = begin; i < end; ++i) own += units_of(i);
  int sum = own;
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += left;
  }
  if (lane == 31) of_warp[thread / 32] = sum;
  __syncthreads();  // every warp's sum is there
  int at = sum - own;
  for (int warp = 0; warp < thread / 32; ++warp) at += of_warp[warp];
  for (int i = begin; i < end; ++i) {
    before[i] = at;
    at += units_of(i);
  }
  if (thread == threads - 1) before[sequences] = at;
  __syncthreads();  // the table is complete
}

// The sequence that has unit `unit`.
__device__ __forceinline__ int sequence_of(const std::int32_t* before, int sequences, int unit) {
  int low = 0, high = sequences;  // before[low] <= unit < before[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (before[middle] <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ __forceinline__ bool has_few_rows(const SequenceCuda& sequence, int group) {
  return sequence.row_count * group <= attention_tile;
}

void launch_attention_few(const AttentionCudaArgs& args, cudaStream_t stream);
void launch_attention_many(const AttentionCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
