// What the attention kernels know of their work: which steps a query sees, where its pages lie, how totals
// are scaled, and which sequence a unit of work belongs to.
#pragma once

#include "ops/attention/cuda/attention_cuda.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

inline constexpr float log2_e = 1.44269504f;
inline constexpr float attention_nothing = -__builtin_inff();
template <class Kv, int head_dim = kv_head_dim>
inline constexpr int attention_slot_bytes =  // a step's keys, or values, of one head
    kv_chunk_bytes<Kv>* attention_step_of(head_dim) / kv_chunk_slots*(head_dim / kv_head_dim);

inline constexpr int step_warps = 8;  // of a block, which share each step of sequences of few rows
// What a warp has of a step: so many groups (kv_cuda.h) of its keys and as many of its values.
template <int dims>
struct WarpPart {
  static constexpr int step = attention_step_of(dims);
  static constexpr int eights = step / step_warps / 8;      // of positions, of the scores
  static constexpr int dim_eights = dims / step_warps / 8;  // of dimensions, of the outputs
  static constexpr int sixteens = step / 16;                // of positions, of the whole step
  static constexpr int groups = dims > 128 ? 4 : 2;
  static_assert(eights * dim_eights == groups);
};

// 2^d for a whole d <= 0: 0 below -126, and where d is no number. 2^23 puts the exponent into the lowest
// bits.
__device__ __forceinline__ float power_of_two(float d) {
  return __uint_as_float(__float_as_uint(__fadd_rn(fmaxf(d, -127.0f), 8388608.0f + 127.0f)) << 23);
}
// A total's largest exponent once a step's largest score (times c) has entered.
__device__ __forceinline__ float exponent_of(float largest) { return ceilf(largest); }
// What a score's exponent is taken from: the total's, or anything finite where nothing has been seen.
__device__ __forceinline__ float finite_exponent(float m) { return m == attention_nothing ? 0.0f : m; }

// How both sides of a taking-in are scaled.
struct Scaling {
  float m, keep, add;
};
__device__ __forceinline__ Scaling scaling_of(float m, float other) {
  const float larger = fmaxf(m, other);
  return {larger, power_of_two(__fsub_rn(m, larger)), power_of_two(__fsub_rn(other, larger))};
}
__device__ __forceinline__ float take_in(float total, float other, const Scaling& scaling) {
  return fmaf(other, scaling.add, __fmul_rn(total, scaling.keep));
}

// A total, a split's or a query's, as a lane has it: its part of l, and pairs of dimensions.
template <int pairs>
struct QueryTotal {
  float m, l, o[pairs][2];

  __device__ __forceinline__ void take_in_all(const QueryTotal& split) {
    const Scaling scaling = scaling_of(m, split.m);
    m = scaling.m;
    l = take_in(l, split.l, scaling);
#pragma unroll
    for (int i = 0; i < 2 * pairs; ++i)
      o[i / 2][i % 2] = take_in(o[i / 2][i % 2], split.o[i / 2][i % 2], scaling);
  }
};

// The positions that a query sees: [first, past).
struct Sight {
  int first, past;

  __device__ Sight(int position, int window)
      : first(window > 0 ? max(0, position - window + 1) : 0), past(position + 1) {}
};

// A tile: `count` queries of one sequence and KV head, query i being head i % group of row first_row + i /
// group, for groups of 1 << group_bits heads. A query past the last one repeats it.
template <int head_dim>
struct HeadTile {
  static constexpr int step = attention_step_of(head_dim);
  const AttentionCudaArgs& args;
  SequenceCuda sequence;
  int kv_head, group_bits, first_row, count;  // first_row: counted from the sequence's first

  __device__ int row_of(int query) const { return first_row + (min(query, count - 1) >> group_bits); }
  __device__ int head_of(int query) const {
    return (kv_head << group_bits) + (min(query, count - 1) & ((1 << group_bits) - 1));
  }
  __device__ Sight sight(int query) const { return {sequence.first_position + row_of(query), args.window}; }
  // What the tile as a whole sees: positions and steps.
  __device__ int first() const { return sight(0).first; }
  __device__ int past() const { return sight(count - 1).past; }
  __device__ int first_step() const { return first() / step; }
  __device__ int past_step() const { return (past() - 1) / step + 1; }

  __device__ const Bf16* queries(int query) const {
    return args.q + (static_cast<std::size_t>(sequence.row_begin + row_of(query)) *
                         static_cast<std::size_t>(args.heads) +
                     static_cast<std::size_t>(head_of(query))) *
                        head_dim;
  }
  // Which chunk of the layer has the KV head's positions from `position` on, a multiple of 64.
  __device__ int chunk_of(int position) const {
    const int page = position / args.page_size;
    const int slot =
        args.page_table[sequence.pages_at + page] * args.page_size + position - page * args.page_size;
    return kv_head * (args.cache.slots / kv_chunk_slots) + slot / kv_chunk_slots;
  }
  // The exponent that a query's total begins with, and lane 0's weight.
  __device__ float sink_exponent(int query) const {
    return args.sinks == nullptr ? attention_nothing
                                 : exponent_of(__fmul_rn(args.sinks[head_of(query)], log2_e));
  }
  __device__ float sink_weight(int query) const {
    if (args.sinks == nullptr) return 0;
    const float logit = __fmul_rn(args.sinks[head_of(query)], log2_e);
    return ptx::exp2_fast(__fsub_rn(logit, finite_exponent(exponent_of(logit))));
  }
  __device__ std::uint8_t* out(int query, int dimension) const {
    return args.out + token_offset(args.heads * (head_dim / dense_k), sequence.row_begin + row_of(query),
                                   head_of(query) * head_dim + dimension);
  }
};
using Tile = HeadTile<kv_head_dim>;

// Two queries' dimensions as operands of the tensor core: of k16 step s a lane has what mma_m16n8k16_bf16
// wants of rows g and g + 8.
template <int head_dim>
struct HeadQueries {
  static constexpr int steps = head_dim / 16;
  std::uint32_t step[steps][4];

  __device__ __forceinline__ HeadQueries(const Bf16* low, const Bf16* high, int t) {
#pragma unroll
    for (int s = 0; s < steps; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 16 * s + 8 * half + 2 * t;
        step[s][2 * half] = *reinterpret_cast<const std::uint32_t*>(low + at);
        step[s][2 * half + 1] = *reinterpret_cast<const std::uint32_t*>(high + at);
      }
    }
  }
  // Of every load a word (ptx::await_loads).
  __device__ __forceinline__ std::uint32_t of_loads() const {
    std::uint32_t words = 0;
#pragma unroll
    for (int s = 0; s < steps; ++s) words ^= step[s][0] ^ step[s][1] ^ step[s][2] ^ step[s][3];
    return words;
  }
};
using TileQueries = HeadQueries<kv_head_dim>;

// A place in a ring, and the parity of its turn there.
template <int slots>
struct RingPlace {
  int slot = 0;
  unsigned turn = 0;

  __device__ RingPlace plus(int by) const {  // at most `slots`
    const bool wraps = slot + by >= slots;
    return {slot + by - (wraps ? slots : 0), turn ^ (wraps ? 1u : 0u)};
  }
};

// The keys and values of steps, coming into a ring of slots in shared memory: a step's keys, its values, the
// next one's keys. Whoever counts slots counts them alike.
template <class Kv, int slots, int readers, int head_dim = kv_head_dim>
struct KvRing {
  using Format = Kv;
  using OfTile = HeadTile<head_dim>;
  static constexpr int dims = head_dim, step_chunks = OfTile::step / kv_chunk_slots;
  using Place = RingPlace<slots>;
  std::uint8_t* bytes;   // [slots, attention_slot_bytes<Kv, head_dim>]
  std::uint64_t* full;   // [slots]
  std::uint64_t* empty;  // [slots]: an arrival of each of the readers
  bool once = false;     // nobody reads the bytes again before the second-level cache is full of others

  __device__ std::uint8_t* slot(const Place& at) const {
    return bytes + at.slot * attention_slot_bytes<Kv, head_dim>;
  }
  __device__ void wait_full(const Place& at) const { ptx::mbarrier_wait(&full[at.slot], at.turn); }
  __device__ void wait_empty(const Place& at) const { ptx::mbarrier_wait(&empty[at.slot], at.turn ^ 1); }
  __device__ void release(const Place& at) const { ptx::mbarrier_arrive(&empty[at.slot]); }
  // fillers: arrivals that fill a slot.
  __device__ void init(unsigned fillers = 1) const {
    for (int i = 0; i < slots; ++i) {
      ptx::mbarrier_init(&full[i], fillers);
      ptx::mbarrier_init(&empty[i], readers);
    }
    ptx::fence_mbarrier_init();
  }

  // By a whole warp: asks for steps [begin, end) of a tile, those chunks of them that it sees. A table's
  // entries are fetched 32 at a time. before(position): called before positions up to that one are asked for.
  template <class Before>
  __device__ void fill(Place& at, const OfTile& tile, int begin, int end, int lane,
                       const Before& before) const {
    const int first = tile.first(), past = tile.past();
#pragma unroll 1
    for (int step = begin; step < end; step += 32 / step_chunks) {
      const int own = (step_chunks * step + lane) * kv_chunk_slots;
      const int chunk = own + kv_chunk_slots > first && own < past ? tile.chunk_of(own) : -1;
#pragma unroll 1
      for (int i = 0; i < min(32 / step_chunks, end - step); ++i) {
        const int low = __shfl_sync(0xffffffffu, chunk, step_chunks * i);
        const int high = step_chunks == 1 ? -1 : __shfl_sync(0xffffffffu, chunk, step_chunks * i + 1);
        before(min((step + i + 1) * OfTile::step, past));
        if (lane == 0) {
          ask(at, tile.args.cache.keys, low, high);
          ask(at.plus(1), tile.args.cache.values, low, high);
        }
        __syncwarp();  // lanes go on together, which exchanges are cheaper for
        at = at.plus(2);
      }
    }
  }
  // Up to two chunks' keys or values; -1: not seen.
  __device__ void ask(const Place& at, const void* layer, int low, int high) const {
    wait_empty(at);
    constexpr int bytes_of_chunk = kv_chunk_bytes<Kv> * (head_dim / kv_head_dim);
    const int chunks = (low >= 0) + (high >= 0);
    ptx::mbarrier_arrive_expecting(&full[at.slot], static_cast<std::uint32_t>(chunks * bytes_of_chunk));
    for (int half = 0; half < step_chunks; ++half) {
      const int chunk = half == 0 ? low : high;
      if (chunk < 0) continue;
      std::uint8_t* const to = slot(at) + half * bytes_of_chunk;
      const std::uint8_t* const from =
          static_cast<const std::uint8_t*>(layer) + static_cast<std::size_t>(chunk) * bytes_of_chunk;
      if (once) {
        ptx::bulk_copy_once_to_shared(to, from, bytes_of_chunk, &full[at.slot]);
      } else {
        ptx::bulk_copy_to_shared(to, from, bytes_of_chunk, &full[at.slot]);
      }
    }
  }
};

// How much work each sequence is, added up: sequence i has [before[i], before[i + 1]) of the units in the low
// 32 bits, likewise in the high ones. By all `threads` of a block; before: [sequences + 1] in shared memory.
// Returns the most units, of the low bits, that a sequence has.
template <int threads, class UnitsOf>
__device__ __forceinline__ int add_up_units(long long* before, int sequences, const UnitsOf& units_of) {
  __shared__ long long of_warp[threads / 32];
  __shared__ unsigned most_of_warp[threads / 32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int each = (sequences + threads - 1) / threads;
  const int begin = min(thread * each, sequences), end = min(begin + each, sequences);
  long long own = 0;
  unsigned most = 0;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const long long units = units_of(i);
    own += units;
    most = max(most, static_cast<unsigned>(units));
  }
  long long sum = own;
  for (int step = 1; step < 32; step *= 2) {
    const long long left = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += left;
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (lane == 31) {
    of_warp[thread / 32] = sum;
    most_of_warp[thread / 32] = most;
  }
  __syncthreads();  // every warp's sum is there
  long long at = sum - own;
  for (int warp = 0; warp < thread / 32; ++warp) at += of_warp[warp];
  for (int warp = 0; warp < threads / 32; ++warp) most = max(most, most_of_warp[warp]);
  if (thread == threads - 1) before[sequences] = at + own;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    before[i] = at;
    if (i + 1 < end) at += units_of(i);
  }
  __syncthreads();  // the table is complete
  return static_cast<int>(most);
}

// The sequence that has unit `unit` of those in the low bits.
__device__ __forceinline__ int sequence_of(const long long* before, int sequences, int unit) {
  int low = 0, high = sequences;  // before[low] <= unit < before[high]
#pragma unroll 1
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (static_cast<int>(before[middle]) <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ __forceinline__ int group_bits_of(const AttentionCudaArgs& args) {
  return __ffs(args.heads / args.cache.kv_heads) - 1;
}
__device__ __forceinline__ bool has_few_rows(const SequenceCuda& sequence, int group_bits) {
  return sequence.row_count << group_bits <= attention_tile;
}

// A window that lies in two steps. Windows of wider heads, whose steps are shorter, have no kernels.
inline bool is_short_window(int window, int head_dim) {
  return head_dim == kv_head_dim && window > 0 && window <= attention_step;
}

// What launch_attention_few would take as well: short windows of few sequences, short contexts of one, and
// short windows of many.
void launch_attention_short(const AttentionCudaArgs& args, cudaStream_t stream);
void launch_attention_alone(const AttentionCudaArgs& args, cudaStream_t stream);
void launch_attention_window(const AttentionCudaArgs& args, cudaStream_t stream);
void launch_attention_few(const AttentionCudaArgs& args, cudaStream_t stream);
void launch_attention_many(const AttentionCudaArgs& args, cudaStream_t stream);
void launch_attention_wide(const AttentionCudaArgs& args, cudaStream_t stream);  // many, for heads of 256

// In a step of decode alone, what all of its kernels ask for.
inline SharedShare share_of_attention(const AttentionCudaArgs& args) {
  return args.rows == AttentionRows::one ? share_of(args.sequence_count) : shared_196_kb;
}
// Bytes a block.
int shared_of_attention_short();
int shared_of_attention_alone(int head_dim, int later_clusters);
int shared_of_attention_few(int sequences, int head_dim);

}  // namespace nibble
