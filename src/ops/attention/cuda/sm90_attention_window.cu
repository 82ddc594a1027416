// paged_attention for short windows of many sequences of few rows (decode). For the order of additions see
// attention_cuda.h.
//
// A warp has a sequence's KV head: its scores, weights and sums stay in its registers, and it waits for
// nobody. Its keys and values come by bulk copies that it orders itself into a ring of its own, whole chunks
// or the part of one that is seen, bfloat16 by eights of positions. What it sees none of, by sixteens, it
// does not multiply.
//
// Bytes: 256 a position and KV head in bfloat16, and up to an eighth more at the window's ends: 33.5 MB for
// 128 sequences of gpt-oss (7.2 us at 4,650 GB/s), where whole chunks would be half as much again.
// Instructions: about a thousand a warp and step.
#include <algorithm>

#include "ops/attention/cuda/attention_steps.cuh"
#include "ops/attention/cuda/kv_operands.cuh"
#include "ops/cuda/launch.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int most_warps = 4;  // of a block
constexpr int most_slots = 6;  // of a warp's ring: what two steps have of three chunks
constexpr int fewest_slots = 3;
constexpr int sixteens = attention_step / 16;
constexpr int dimension_groups = kv_head_dim / 8;

// Makes values finite that no query of a tile sees, of positions [0, begin) and [end, 64) of a chunk in
// shared memory, as far as products touch them: weights are zero there, but zero times what is no number is
// none. By a warp.
__device__ __forceinline__ void clear_unseen(KvBf16, std::uint8_t* values, int begin, int end, int lane) {
  // Eights of the sixteens that both ends lie in.
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const int eight = i < 2 ? begin / 16 * 2 + i : (end - 1) / 16 * 2 + i - 2;
    const int from = begin - 8 * eight, to = end - 8 * eight;
    if (from <= 0 && to >= 8) continue;
    std::uint32_t keep[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      keep[word] = (2 * word >= from && 2 * word < to ? 0x0000ffffu : 0u) |
                   (2 * word + 1 >= from && 2 * word + 1 < to ? 0xffff0000u : 0u);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int dimension = lane + 32 * half;
      uint4& eight_values = *reinterpret_cast<uint4*>(values + dimension / 8 * kv_group_bytes<KvBf16> +
                                                      eight * 128 + dimension % 8 * 16);
      eight_values = make_uint4(eight_values.x & keep[0], eight_values.y & keep[1], eight_values.z & keep[2],
                                eight_values.w & keep[3]);
    }
  }
}
__device__ __forceinline__ void clear_unseen(KvE4m3, std::uint8_t* values, int begin, int end, int lane) {
  std::uint32_t keep[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int position = 8 * (i / 2) + 2 * (lane % 4) + i % 2;
    if (position >= begin && position < end) keep[i / 4] |= 0xffu << (8 * (i % 4));
  }
#pragma unroll 1
  for (int group = 0; group < dimension_groups; ++group) {
    uint4& of_lane = *reinterpret_cast<uint4*>(values + group * kv_group_bytes<KvE4m3> + lane * 16);
    of_lane = make_uint4(of_lane.x & keep[0], of_lane.y & keep[1], of_lane.z & keep[2], of_lane.w & keep[3]);
  }
}

// What a lane takes of values: 16 positions of all dimensions, as mma_m16n8k16_bf16 wants them of b, for each
// eight dimensions a pair of each eight positions.
template <class Kv>
struct SixteenOperand;

template <>
struct SixteenOperand<KvBf16> {
  std::uint32_t words[dimension_groups][2];

  // The i-th of a chunk.
  __device__ __forceinline__ void load(const std::uint8_t* values, int i, int lane) {
    const std::uint8_t* const row =
        values + lane / 16 * kv_group_bytes<KvBf16> + (2 * i + lane / 8 % 2) * 128 + lane % 8 * 16;
#pragma unroll
    for (int group = 0; group < dimension_groups; group += 2) {
      ptx::load_matrices(words[group][0], words[group][1], words[group + 1][0], words[group + 1][1],
                         row + group * kv_group_bytes<KvBf16>);
    }
  }
  __device__ __forceinline__ std::uint32_t of_loads() const {
    return words[0][0] ^ words[2][0] ^ words[4][0] ^ words[6][0];
  }
  __device__ __forceinline__ std::uint32_t pair(int group, int eight) const { return words[group][eight]; }
};

template <>
struct SixteenOperand<KvE4m3> {
  std::uint32_t words[dimension_groups];

  __device__ __forceinline__ void load(const std::uint8_t* values, int i, int lane) {
#pragma unroll
    for (int group = 0; group < dimension_groups; ++group) {
      words[group] = *reinterpret_cast<const std::uint32_t*>(values + group * kv_group_bytes<KvE4m3> +
                                                             lane * 16 + i * 4);
    }
  }
  __device__ __forceinline__ std::uint32_t of_loads() const {
    std::uint32_t mixed = 0;
#pragma unroll
    for (const std::uint32_t word : words) mixed ^= word;
    return mixed;
  }
  __device__ __forceinline__ std::uint32_t pair(int group, int eight) const {
    return ptx::bf16x2_of_e4m3x2(static_cast<std::uint16_t>(words[group] >> (16 * eight)));
  }
};

// A warp's keys and values: of each step the chunks that are seen, keys before values.
template <class Kv>
struct WindowRing {
  std::uint8_t* bytes;  // [slots, kv_chunk_bytes<Kv>]
  std::uint64_t* full;  // [slots]
  int slots;
  const Tile& tile;
  int lane;
  int first, past;  // positions that the tile sees
  int own_chunk;    // lane i's: where chunk first / 64 + i lies
  bool waited;      // for the grids ahead
  // What is asked for next, and where; what is read next.
  int chunk = 0;
  bool values = false;
  int to = 0, at = 0;
  unsigned turn = 0;

  __device__ __forceinline__ WindowRing(std::uint8_t* bytes_, std::uint64_t* full_, int slots_,
                                        const Tile& tile_, int lane_)
      : bytes(bytes_),
        full(full_),
        slots(slots_),
        tile(tile_),
        lane(lane_),
        first(tile_.first()),
        past(tile_.past()),
        waited(!tile_.args.settled) {
    const int own = (first / kv_chunk_slots + lane) * kv_chunk_slots;
    own_chunk = own < past ? tile.chunk_of(own) : 0;
    if (lane == 0) {
      for (int slot = 0; slot < slots; ++slot) ptx::mbarrier_init(&full[slot], 1);
      ptx::fence_mbarrier_init();
    }
    __syncwarp();  // the barriers are ready
  }
  __device__ __forceinline__ void begin() {
    chunk = first / kv_chunk_slots;
    values = false;
#pragma unroll 1
    for (int i = 0; i < slots; ++i) ask();
  }

  __device__ __forceinline__ bool sees(int of) const {
    return (of + 1) * kv_chunk_slots > first && of * kv_chunk_slots < past;
  }
  // Of a chunk's positions, those that the tile sees.
  __device__ __forceinline__ int begin_of(int of) const { return max(first - of * kv_chunk_slots, 0); }
  __device__ __forceinline__ int end_of(int of) const {
    return min(past - of * kv_chunk_slots, kv_chunk_slots);
  }

  // The next part of the keys and values, if there is one, into the next slot, which has been read.
  __device__ __forceinline__ void ask() {
    if (!sees(chunk)) return;
    if (!waited && chunk * kv_chunk_slots + end_of(chunk) > tile.sequence.first_position) {
      ptx::grid_dependency_wait();  // these rows' own keys and values
      waited = true;
    }
    constexpr bool in_eights = Kv::dtype == DType::bf16;  // values, too
    const int begin = begin_of(chunk) / 8, end = (end_of(chunk) + 7) / 8;
    const bool cut = values && end - begin < 8;
    // One copy; or for each eight dimensions one.
    const int bytes_of_eight = cut && in_eights ? 128 : kv_group_bytes<Kv>;
    const int from = cut && !in_eights ? 0 : begin, count = cut && !in_eights ? 8 : end - begin;
    const int copies = cut && in_eights ? dimension_groups : 1;
    const std::uint32_t size = static_cast<std::uint32_t>(count * bytes_of_eight);
    const int where = __shfl_sync(0xffffffffu, own_chunk, chunk - first / kv_chunk_slots);
    if (lane == 0) ptx::mbarrier_arrive_expecting(&full[to], static_cast<std::uint32_t>(copies) * size);
    __syncwarp();  // bytes are announced before any come
    if (lane < copies) {
      const int offset = lane * kv_group_bytes<Kv> + from * bytes_of_eight;
      const void* const layer = values ? tile.args.cache.values : tile.args.cache.keys;
      ptx::bulk_copy_once_to_shared(bytes + to * kv_chunk_bytes<Kv> + offset,
                                    static_cast<const std::uint8_t*>(layer) +
                                        static_cast<std::size_t>(where) * kv_chunk_bytes<Kv> + offset,
                                    size, &full[to]);
    }
    __syncwarp();
    if (++to == slots) to = 0;
    ++chunk;
    if (chunk % 2 == 0 || !sees(chunk)) {  // all of the step's
      values = !values;
      if (values) chunk = max((chunk - 1) / 2 * 2, first / kv_chunk_slots);
    }
  }

  __device__ __forceinline__ std::uint8_t* wait() const {
    ptx::mbarrier_wait(&full[at], turn);
    return bytes + at * kv_chunk_bytes<Kv>;
  }
  // The slot that was waited for has been read; words: of every load one, mixed.
  __device__ __forceinline__ void release(std::uint32_t words) {
    ptx::await_loads(words);
    __syncwarp();  // all lanes have what they read
    if (++at == slots) {
      at = 0;
      turn ^= 1;
    }
    ask();
  }
};

// A total of query g: lane t's part of l, and dimensions 8i + 2t and + 1.
using Total = QueryTotal<dimension_groups>;

// A warp's steps, of up to eight queries.
template <class Kv>
struct WindowSteps {
  WindowRing<Kv>& ring;
  const TileQueries& q;  // the second rows are not looked at
  int first, past;       // positions that query g sees, counted from 2t
  float exponents;       // a score's

  // Whether any query sees positions [sixteen, sixteen + 16).
  __device__ __forceinline__ bool sees(int sixteen) const {
    return sixteen + 16 > ring.first && sixteen < ring.past;
  }

  // Of sixteen i the positions 8n + 2t + e: scores[i][2n + e].
  __device__ __forceinline__ void multiply_keys(float (&scores)[sixteens][4], int step) {
#pragma unroll
    for (int i = 0; i < sixteens * 4; ++i) scores[i / 4][i % 4] = attention_nothing;
#pragma unroll 1
    for (int chunk = 2 * step; chunk < 2 * step + 2; ++chunk) {
      // The chunk's are made in the second half; so both are made by the same code.
#pragma unroll
      for (int i = 0; i < sixteens * 2; ++i) scores[i / 4][i % 4] = scores[sixteens / 2 + i / 4][i % 4];
#pragma unroll
      for (int i = sixteens * 2; i < sixteens * 4; ++i) scores[i / 4][i % 4] = attention_nothing;
      if (!ring.sees(chunk)) continue;
      const std::uint8_t* const keys = ring.wait();
      std::uint32_t loaded = 0;
#pragma unroll
      for (int eight = 0; eight < kv_chunk_slots / 8; ++eight) {
        GroupOperand<Kv> key;
        key.load(keys + eight * kv_group_bytes<Kv>, ring.lane);
        loaded ^= key.of_loads();
        float s[4] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          ptx::mma_m16n8k16_bf16(s, q.step[k][0], 0, q.step[k][2], 0, key.pair(2 * k), key.pair(2 * k + 1));
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = chunk * kv_chunk_slots + 8 * eight + e;
          scores[(sixteens + eight) / 2][eight % 2 * 2 + e] =
              at < first || at >= past ? attention_nothing : s[e];
        }
      }
      ring.release(loaded);
    }
  }

  // Scores to weights, packed as operands; returns what the split's sums so far are multiplied by.
  __device__ __forceinline__ float weigh(Total& split, const float (&scores)[sixteens][4],
                                         uint2 (&weights)[sixteens]) const {
    float largest[sixteens];
#pragma unroll
    for (int i = 0; i < sixteens; ++i)
      largest[i] = fmaxf(fmaxf(scores[i][0], scores[i][1]), fmaxf(scores[i][2], scores[i][3]));
#pragma unroll
    for (int apart = sixteens / 2; apart > 0; apart /= 2) {
#pragma unroll
      for (int i = 0; i < apart; ++i) largest[i] = fmaxf(largest[i], largest[i + apart]);
    }
    float most = largest[0];
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float m = fmaxf(split.m, exponent_of(__fmul_rn(most, exponents)));
    const float from = finite_exponent(m), scale = power_of_two(__fsub_rn(split.m, m));
    split.m = m;
    float sums[sixteens];
#pragma unroll
    for (int i = 0; i < sixteens; ++i) {
      float four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = ptx::exp2_fast(fmaf(scores[i][j], exponents, -from));
      sums[i] = __fadd_rn(__fadd_rn(__fadd_rn(four[0], four[1]), four[2]), four[3]);
      weights[i] = make_uint2(ptx::pack_bf16x2(four[0], four[1]), ptx::pack_bf16x2(four[2], four[3]));
    }
#pragma unroll
    for (int apart = 1; apart < sixteens; apart *= 2) {
#pragma unroll
      for (int i = 0; i < sixteens; i += 2 * apart) sums[i] = __fadd_rn(sums[i], sums[i + apart]);
    }
    split.l = fmaf(split.l, scale, sums[0]);
    return scale;
  }

  // o: [dimension_groups, 4], of which query g has the first two of each.
  __device__ __forceinline__ void multiply_values(float (&o)[dimension_groups][4], uint2 (&weights)[sixteens],
                                                  int step) {
#pragma unroll 1
    for (int chunk = 2 * step; chunk < 2 * step + 2; ++chunk) {
      if (ring.sees(chunk)) {
        std::uint8_t* const values = ring.wait();
        const int begin = ring.begin_of(chunk), end = ring.end_of(chunk);
        if (begin > 0 || end < kv_chunk_slots) {
          clear_unseen(Kv{}, values, begin, end, ring.lane);
          ptx::fence_shared_writes();  // before the copy that overwrites them
          __syncwarp();                // other lanes' values are cleared
        }
        std::uint32_t loaded = 0;
#pragma unroll
        for (int i = 0; i < sixteens / 2; ++i) {
          if (!sees(chunk * kv_chunk_slots + 16 * i)) continue;
          SixteenOperand<Kv> value;
          value.load(values, i, ring.lane);
          loaded ^= value.of_loads();
#pragma unroll
          for (int group = 0; group < dimension_groups; ++group) {
            ptx::mma_m16n8k16_bf16(o[group], weights[i].x, 0, weights[i].y, 0, value.pair(group, 0),
                                   value.pair(group, 1));
          }
        }
        ring.release(loaded);
      }
#pragma unroll
      for (int i = 0; i < sixteens / 2; ++i) weights[i] = weights[sixteens / 2 + i];
    }
  }

  __device__ __forceinline__ void run(Total& split, int step) {
    float scores[sixteens][4];
    multiply_keys(scores, step);
    uint2 weights[sixteens];
    const float scale = weigh(split, scores, weights);
    // Products of weights that are zero, which are left out, would make +0 of -0 and else change nothing.
    const float before = sees(step * attention_step) ? -0.0f : 0.0f,
                behind = sees((step + 1) * attention_step - 16) ? -0.0f : 0.0f;
    float o[dimension_groups][4] = {};
#pragma unroll
    for (int i = 0; i < 2 * dimension_groups; ++i)
      o[i / 2][i % 2] = __fadd_rn(__fmul_rn(split.o[i / 2][i % 2], scale), before);
    multiply_values(o, weights, step);
#pragma unroll
    for (int i = 0; i < 2 * dimension_groups; ++i) split.o[i / 2][i % 2] = __fadd_rn(o[i / 2][i % 2], behind);
  }
};

__device__ __forceinline__ void put_out(const Tile& tile, const Total& total, int query, int t) {
  float l = total.l;
  l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
  l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
  const float factor = 1.0f / l;
  if (query >= tile.count) return;
  std::uint8_t* const out = tile.out(query, 2 * t);
#pragma unroll
  for (int i = 0; i < dimension_groups; ++i) {
    *reinterpret_cast<std::uint32_t*>(out + token_offset(0, 0, 8 * i)) =
        ptx::pack_bf16x2(__fmul_rn(total.o[i][0], factor), __fmul_rn(total.o[i][1], factor));
  }
}

// Of a tile eight queries, from `from` on.
template <class Kv>
__device__ __forceinline__ void read_queries(const Tile& tile, WindowRing<Kv>& ring, int from) {
  const int query = from + ring.lane / 4, t = ring.lane % 4;
  Total total{tile.sink_exponent(query), t == 0 ? tile.sink_weight(query) : 0.0f, {}};
  const Bf16* const of_query = tile.queries(query);
  ptx::grid_dependency_wait();  // queries
  const TileQueries q(of_query, of_query, t);
  const Sight sight = tile.sight(query);
  WindowSteps<Kv> steps{ring, q, sight.first - 2 * t, sight.past - 2 * t, __fmul_rn(tile.args.scale, log2_e)};
  const int past = tile.past_step();
  Total split{};
#pragma unroll 1
  for (int step = tile.first_step(), of = -1; step < past; ++step) {
    if (attention_split_of(step) != of) split = {attention_nothing, 0, {}};
    of = attention_split_of(step);
    steps.run(split, step);
    if (step + 1 == past || attention_split_of(step + 1) != of) total.take_in_all(split);
  }
  put_out(tile, total, query, t);
}

template <class Kv>
__global__ void __launch_bounds__(most_warps * 32, 2)
    sm90_attention_window(const __grid_constant__ AttentionCudaArgs args, int slots) {
  __shared__ std::uint64_t full[most_warps][most_slots];
  ptx::grid_launch_dependents();
  if (!args.settled) ptx::grid_dependency_wait();
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int pair = static_cast<int>(blockIdx.x * (blockDim.x / 32)) + warp;
  const int index = pair / args.cache.kv_heads, group_bits = group_bits_of(args);
  SequenceCuda sequence{};
  if (index < args.sequence_count) sequence = args.sequences[index];
  if (sequence.row_count == 0 || !has_few_rows(sequence, group_bits)) {
    // Who waits for this grid waits for the one before it.
    if (pair == 0) ptx::grid_dependency_wait();
    return;
  }
  const Tile tile{args,       sequence, pair % args.cache.kv_heads,
                  group_bits, 0,        sequence.row_count << group_bits};
  WindowRing<Kv> ring(ptx::dynamic_shared() + warp * slots * kv_chunk_bytes<Kv>, full[warp], slots, tile,
                      lane);
#pragma unroll 1
  for (int from = 0; from < tile.count; from += 8) {
    ring.begin();
    read_queries(tile, ring, from);
  }
}

template <class Kv>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  const int processors = processors_of_device(), pairs = args.sequence_count * args.cache.kv_heads;
  const int warps = std::clamp((pairs + processors - 1) / processors, 1, most_warps);
  // Two blocks of a multiprocessor have room, or one with all that its warps will read.
  const int slots = Kv::dtype == DType::bf16 && pairs > most_warps * processors ? fewest_slots : most_slots;
  const int bytes = warps * slots * kv_chunk_bytes<Kv>;
  cuda_check(
      cudaFuncSetAttribute(sm90_attention_window<Kv>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>((pairs + warps - 1) / warps)),
                 .threads = warps * 32,
                 .shared_bytes = static_cast<std::size_t>(bytes),
                 .stream = stream,
                 .overlaps = true},
                sm90_attention_window<Kv>, args, slots);
}

}  // namespace

void launch_attention_window(const AttentionCudaArgs& args, cudaStream_t stream) {
  args.cache.dtype == KvE4m3::dtype ? launch<KvE4m3>(args, stream) : launch<KvBf16>(args, stream);
}

}  // namespace nibble
