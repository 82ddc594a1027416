// paged_attention for sequences of few rows (decode). For the order of additions see attention_cuda.h.
//
// Bytes: 256 a position and KV head in bfloat16, 16.8 MB for gpt-oss at 8,192 positions (3.6 us at 4,650
// GB/s), half of that in e4m3, which becomes bfloat16 on its way into products. FLOPs: 4 x 64 a query and
// position, with half of the tensor core's 16 rows used by the 8 heads of one row.
//
// All steps of all sequences and KV heads are one row of work, of which each block has a run of about the
// same length that begins and ends with splits, with whole heads where it can (Work::deal). A warp asks for
// keys and values, by bulk copies into a ring: in each multiprocessor two blocks' 128 KB are on their way
// whatever the arithmetic does. They are the first to leave the second-level cache (5 % sooner done at 32 x
// 8,192 positions). Eight warps share a step: in the first product each has 16 positions, in the second 8
// dimensions (of heads of 128: 8 and 16), and the weights between them pass through shared memory as
// operands.
//
// A KV head's steps in one block end there. Where the ends of runs cut them once at most, the block that has
// the front leaves its total, from which the block that has the rest goes on as the last thing it does. Where
// they may cut them more often, the others leave each split's, and the blocks that have splits share out the
// queries and take in what was left in order. Either way each word says by itself whether it is there, so no
// fence and no counter lies between a sum and its reader, who makes it absent again. Blocks wait for each
// other there: the grid has two for each multiprocessor, which fit, so all of them run.
#include <algorithm>

#include "ops/attention/cuda/attention_few_totals.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

using namespace few_rows;

// A pair's steps on their way into splits' totals, of tiles whose queries are in the first row of every lane,
// or in both. The scores of a step are made while the values of the one before it are multiplied.
template <class Ring, int rows>
struct Steps {
  using Kv = typename Ring::Format;
  using Place = typename Ring::Place;
  static constexpr int dims = Ring::dims, eights = Part<dims>::eights, step_positions = Part<dims>::step;
  static constexpr int groups = Part<dims>::groups;
  using Total = StepTotal<dims>;
  FewShared& shared;
  const Ring& ring;
  const HeadQueries<dims> q;
  const Reader reader;
  // Positions that are seen, counted from this thread's first of step 0: by its queries; and by the tile.
  int first[rows], past[rows], first_of_all, past_of_all;
  float exponents;  // a score's
  Place& at;
  float s[eights][4];
  GroupOperand<Kv> key[groups];  // of 8 positions each, or of 64 dimensions

  __device__ __forceinline__ Steps(FewShared& shared_, const Ring& ring_, const HeadQueries<dims>& q_,
                                   const HeadTile<dims>& tile, const Reader& reader_, Place& at_)
      : shared(shared_), ring(ring_), q(q_), reader(reader_), at(at_) {
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const Sight sight = tile.sight(reader.g + 8 * row);
      first[row] = sight.first - reader.template first<dims>();
      past[row] = sight.past - reader.template first<dims>();
    }
    first_of_all = tile.first();
    past_of_all = tile.past();
    exponents = __fmul_rn(tile.args.scale, log2_e);
  }

  // This warp's positions.
  __device__ __forceinline__ void load_keys(const Place& place) {
    ring.wait_full(place);
    std::uint32_t words = 0;
#pragma unroll
    for (int n = 0; n < groups; ++n) {
      key[n].load(ring.slot(place) + (groups * reader.warp + n) * kv_group_bytes<Kv>, reader.lane);
      words ^= key[n].of_loads();
    }
    ptx::await_loads(words);
    __syncwarp();  // all lanes have their keys
    if (reader.lane == 0) ring.release(place);
  }

  // A quarter k of the scores' chains.
  __device__ __forceinline__ void multiply_keys(int k) {
#pragma unroll
    for (int n = 0; n < groups; ++n) {
      float(&scores)[4] = s[n % eights];
      const int sixteen = eights == 2 ? k : groups * k + n;  // of dimensions
      const GroupOperand<Kv>& from = key[eights == 2 ? n : sixteen / 4];
      if (sixteen == 0) scores[0] = scores[1] = scores[2] = scores[3] = 0;
      const auto& query = q.step[sixteen];
      ptx::mma_m16n8k16_bf16(scores, query[0], rows > 1 ? query[1] : 0, query[2], rows > 1 ? query[3] : 0,
                             from.pair(sixteen % 4 * 2), from.pair(sixteen % 4 * 2 + 1));
    }
  }

  // Leaves the largest of this warp's scores for the others, without a branch: it runs beside products.
  __device__ __forceinline__ void find_largest(int step) {
#pragma unroll
    for (int i = 0; i < 2 * eights * rows; ++i) {
      const int position = step * step_positions + i / 2 % eights * 8 + i % 2, row = i / (2 * eights);
      float& score = s[i / 2 % eights][2 * row + i % 2];
      score = position < first[row] || position >= past[row] ? attention_nothing : score;
    }
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      float largest = fmaxf(s[0][2 * row], s[0][2 * row + 1]);
      if constexpr (eights == 2) largest = fmaxf(largest, fmaxf(s[1][2 * row], s[1][2 * row + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      if (reader.t == 0) shared.largest[reader.g + 8 * row][reader.warp] = largest;
    }
  }

  // Leaves this warp's weights and their sums for the others; scales: of what the split has summed up so far.
  __device__ __forceinline__ void weigh(Total& split, float (&scales)[rows]) {
    float4 low[rows], high[rows];
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const float4* const largest = reinterpret_cast<const float4*>(shared.largest[reader.g + 8 * row]);
      low[row] = largest[0];
      high[row] = largest[1];
    }
    std::uint32_t packed[eights][2] = {};
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      const float most = fmaxf(fmaxf(fmaxf(low[row].x, low[row].y), fmaxf(low[row].z, low[row].w)),
                               fmaxf(fmaxf(high[row].x, high[row].y), fmaxf(high[row].z, high[row].w)));
      const float m = fmaxf(split.m[row], exponent_of(__fmul_rn(most, exponents)));
      const float from = finite_exponent(m);
      scales[row] = power_of_two(__fsub_rn(split.m[row], m));
      split.m[row] = m;
      float weights[2 * eights];
#pragma unroll
      for (int i = 0; i < 2 * eights; ++i)
        weights[i] = ptx::exp2_fast(fmaf(s[i / 2][2 * row + i % 2], exponents, -from));
      float sum = __fadd_rn(weights[0], weights[1]);
#pragma unroll
      for (int i = 2; i < 2 * eights; ++i) sum = __fadd_rn(sum, weights[i]);
      shared.sums[reader.warp][reader.g + 8 * row][reader.t] = sum;
#pragma unroll
      for (int i = 0; i < eights; ++i) packed[i][row] = ptx::pack_bf16x2(weights[2 * i], weights[2 * i + 1]);
    }
    leave_weights(packed);
  }
  // As the operand of a sixteen of positions, all of it or its half.
  __device__ __forceinline__ void leave_weights(const std::uint32_t (&packed)[eights][2]) const {
    if constexpr (eights == 2) {
      if constexpr (rows == 1) {
        one_row_weights()[reader.warp * 32 + reader.lane] = make_uint2(packed[0][0], packed[1][0]);
      } else {
        shared.weights[reader.warp][reader.lane] =
            make_uint4(packed[0][0], packed[0][1], packed[1][0], packed[1][1]);
      }
    } else {
      const int half = 2 * (reader.warp / 2 * 32 + reader.lane) + reader.warp % 2;
      if constexpr (rows == 1) {
        reinterpret_cast<std::uint32_t*>(shared.weights)[half] = packed[0][0];
      } else {
        one_row_weights()[half] = make_uint2(packed[0][0], packed[0][1]);
      }
    }
  }
  __device__ __forceinline__ uint2* one_row_weights() const {
    return reinterpret_cast<uint2*>(shared.weights);
  }
  __device__ __forceinline__ uint4 weights_of(int sixteen) const {
    if constexpr (rows > 1) return shared.weights[sixteen][reader.lane];
    const uint2 both = one_row_weights()[sixteen * 32 + reader.lane];
    return make_uint4(both.x, 0, both.y, 0);
  }

  // This warp's dimensions of the values; on their way until settle_values.
  __device__ __forceinline__ void load_values(GroupOperand<Kv> (&value)[groups], const Place& place) const {
    ring.wait_full(place);
#pragma unroll
    for (int i = 0; i < groups; ++i) {
      const int offset = eights == 2 ? i * kv_chunk_bytes<Kv> + reader.warp * kv_group_bytes<Kv>
                                     : (groups * reader.warp + i) * kv_group_bytes<Kv>;
      value[i].load(ring.slot(place) + offset, reader.lane);
    }
  }
  __device__ __forceinline__ void settle_values(GroupOperand<Kv> (&value)[groups], const Place& place,
                                                int step) const {
    std::uint32_t words = 0;
#pragma unroll
    for (int i = 0; i < groups; ++i) words ^= value[i].of_loads();
    ptx::await_loads(words);
    __syncwarp();  // all lanes have their values
    if (reader.lane == 0) ring.release(place);
    // Weights are zero where the tile sees nothing, but zero times what is no number is none.
    const int begin = first_of_all - step * step_positions, end = past_of_all - step * step_positions;
    if (begin <= 0 && end >= step_positions) return;
#pragma unroll
    for (int i = 0; i < 16 * groups; ++i) {
      const int position = 8 * (i / 2 % (step_positions / 8)) + 2 * reader.t + i % 2;
      if (position < begin || position >= end) value[i / 16].clear(i % 16);
    }
  }

  // Of a row in warps 0, 2, ..., of the other in the odd ones, since that needs no branch: the first two
  // count.
  __device__ __forceinline__ void add_sums(Total& split, const float (&scales)[rows]) const {
    const int row = reader.warp % rows;
    float sums[warps];
#pragma unroll
    for (int i = 0; i < warps; ++i) sums[i] = shared.sums[i][reader.g + 8 * row][reader.t];
#pragma unroll
    for (int apart = 1; apart < warps; apart *= 2) {
#pragma unroll
      for (int i = 0; i < warps; i += 2 * apart) sums[i] = __fadd_rn(sums[i], sums[i + apart]);
    }
    split.l = fmaf(split.l, row == 0 ? scales[0] : scales[rows - 1], sums[0]);
  }

  __device__ __forceinline__ void begin(int step) {
    load_keys(at);
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply_keys(k);
    find_largest(step);
  }

  // A step whose scores have begun, and the beginning of the next one if there is one.
  __device__ __forceinline__ void run(Total& split, int step, bool next) {
    float scales[rows];
    GroupOperand<Kv> value[groups];  // of 64 positions each, or of 8 dimensions
    await_readers();                 // the largest scores are there
    load_values(value, at.plus(1));
    weigh(split, scales);
    settle_values(value, at.plus(1), step);
    if (next) load_keys(at.plus(2));
    await_readers();  // weights and their sums are there, and the largest scores have been read
#pragma unroll
    for (int i = 0; i < 2 * rows * Total::eights; ++i) {
      float& sum = split.o[i / (2 * rows)][i % (2 * rows)];
      sum = __fmul_rn(sum, scales[i % (2 * rows) / 2]);
    }
#pragma unroll
    for (int k = 0; k < Part<dims>::sixteens; ++k) {
      const uint4 weights = weights_of(k);
#pragma unroll
      for (int n = 0; n < Total::eights; ++n) {
        const GroupOperand<Kv>& from = value[eights == 2 ? k / 4 : n];
        ptx::mma_m16n8k16_bf16(split.o[n], weights.x, weights.y, weights.z, weights.w, from.pair(k % 4 * 2),
                               from.pair(k % 4 * 2 + 1));
      }
      if (k < 4) multiply_keys(k);  // without a next step: of what is not looked at
    }
    find_largest(step + 1);
    add_sums(split, scales);
    at = at.plus(2);
  }
};

// Steps [first, past) of a pair.
template <class Ring, int rows>
__device__ __forceinline__ void read_pair(const Work<Ring::dims>& work, const Pair<Ring::dims>& pair,
                                          int first, int past, const Ring& ring, typename Ring::Place& at,
                                          FewShared& shared, const Reader& reader) {
  constexpr int dims = Ring::dims;
  using Total = StepTotal<dims>;
  const HeadTile<dims>& tile = pair.tile;
  const bool front = first == pair.first;
  bool has_total = front;
  Total total{};
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    total.m[row] = tile.sink_exponent(reader.g + 8 * row);
    if (reader.t == 0 && reader.warp == row) total.l = tile.sink_weight(reader.g + 8 * row);
  }
  const Bf16 *const low = tile.queries(reader.g), *const high = tile.queries(reader.g + 8);
  ptx::grid_dependency_wait();  // queries, and the last launch's use of the workspace
  Steps<Ring, rows> steps(shared, ring, HeadQueries<dims>(low, high, reader.t), tile, reader, at);
  float* left = work.partial(pair, attention_split_of(first) - pair.first_split());
  steps.begin(first);
#pragma unroll 1
  for (int step = first; step < past;) {
    const int split_past = min(attention_split_begin(attention_split_of(step) + 1), past);
    Total of_split{{attention_nothing, attention_nothing}, 0, {}};
#pragma unroll 1
    for (; step < split_past; ++step) steps.run(of_split, step, step + 1 < past);
    if (front || work.hands_on) {
      if (!has_total)
        adopt<rows>(work.partial(pair, 0), total, tile.count, reader, work.args.workspace.stuck);
      has_total = true;
      total.template take_in_all<rows>(of_split, reader.warp);
    } else {
      leave<rows>(left, of_split, tile.count, reader);
      left += work.apart();
    }
  }
  if (has_total && past == pair.past) {
    put_out<rows>(tile, total, shared, reader);
  } else if (front) {
    leave<rows>(left, total, tile.count, reader);
  }
}

template <class Ring, int most_rows>
__device__ __forceinline__ void read(const Work<Ring::dims>& work, int begin, int end, const Ring& ring,
                                     FewShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const Reader reader{thread, ptx::warp_of_block(), lane, lane / 4, lane % 4};
  typename Ring::Place at;
  work.for_each_pair(begin, end, [&](const Pair<Ring::dims>& pair, int first, int past) {
    if (most_rows == 1 || pair.tile.count <= 8) {
      read_pair<Ring, 1>(work, pair, first, past, ring, at, shared, reader);
    } else {
      read_pair<Ring, most_rows>(work, pair, first, past, ring, at, shared, reader);
    }
  });
  ptx::mbarrier_wait(&shared.planned, 0);
#pragma unroll 1
  for (int i = 0; i < 2; ++i) end_share(work, shared.shares[i], shared, reader);
}

// By one warp: brings a tile's queries near, which its readers will want after the tile before it.
template <int dims>
__device__ __forceinline__ void touch_queries(const HeadTile<dims>& tile, FewShared& shared, int lane) {
  constexpr int sectors = dims * 2 / 32;  // of a query
#pragma unroll
  for (int i = lane; i < attention_tile * sectors; i += 32)
    ptx::touch_sector(&shared.nobodys, tile.queries(i / sectors) + i % sectors * 16);
}

// By one warp: asks for the block's keys and values, then finds out what it shares.
template <class Ring>
__device__ __forceinline__ void fill(const Work<Ring::dims>& work, int begin, int end, const Ring& ring,
                                     FewShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  typename Ring::Place at;
  bool waited = !work.args.settled;
  work.for_each_pair(begin, end, [&](const Pair<Ring::dims>& pair, int first, int past) {
    if (waited) touch_queries(pair.tile, shared, lane);
    ring.fill(at, pair.tile, first, past, lane, [&](int position) {
      if (waited || position <= pair.tile.sequence.first_position) return;
      ptx::grid_dependency_wait();  // these rows' own keys and values
      waited = true;
    });
  });
  if (lane < 2) shared.shares[lane] = work.hands_on ? Share{} : share_of(work, begin, end, lane == 1);
  __syncwarp();  // both are there
  if (lane == 0) ptx::mbarrier_arrive(&shared.planned);
}

// most_rows: queries of a lane, for 8 or 16 of a tile. Tiles of 8 alone have registers enough.
template <class Kv, int dims, int most_rows>
__global__ void __launch_bounds__(few_threads, Work<dims>::doubled)
    sm90_attention_few(const __grid_constant__ AttentionCudaArgs args) {
  FewShared& shared = *reinterpret_cast<FewShared*>(ptx::dynamic_shared() + ring_bytes<dims>);
  using Ring = FewRing<Kv, dims>;
  const Ring ring{ptx::dynamic_shared(), shared.full, shared.empty, true};
  ptx::grid_launch_dependents();
  if (!args.settled) ptx::grid_dependency_wait();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.planned, 1);
    ring.init();
  }
  Work<dims> work{args, shared.before(), group_bits_of(args)};
  const int longest =
      add_up_units<few_threads>(shared.before(), args.sequence_count, [&](int index) -> long long {
        const SequenceCuda& sequence = args.sequences[index];
        if (sequence.row_count == 0 || !has_few_rows(sequence, work.group_bits)) return 0;
        const HeadTile<dims> tile = work.tile_of(index, 0);
        const int first = tile.first_step(), past = tile.past_step();
        const long long splits = attention_split_of(past - 1) + 1 - attention_split_of(first);
        return splits << 32 | (past - first);
      });
  work.deal(longest);
  // Two lanes, a border each.
  const int border = work.begin_of(static_cast<int>(blockIdx.x + threadIdx.x % 2));
  const int begin = __shfl_sync(0xffffffffu, border, 0), end = __shfl_sync(0xffffffffu, border, 1);
  if (begin == end) {
    // Who waits for this grid waits for the one before it: one block is enough, others leave their places.
    if (blockIdx.x == 0) ptx::grid_dependency_wait();
  } else if (threadIdx.x < readers) {
    read<Ring, most_rows>(work, begin, end, ring, shared);
  } else {
    fill(work, begin, end, ring, shared);
  }
}

template <class Kv, int dims>
void launch(const AttentionCudaArgs& args, cudaStream_t stream) {
  const bool eights = args.rows == AttentionRows::one && args.heads <= 8 * args.cache.kv_heads;
  const auto kernel = eights ? sm90_attention_few<Kv, dims, 1> : sm90_attention_few<Kv, dims, 2>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_bytes<dims>(attention_max_sequences)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(Work<dims>::doubled * processors_of_device())),
                 .threads = few_threads,
                 .shared_bytes = static_cast<std::size_t>(shared_bytes<dims>(args.sequence_count)),
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of_attention(args)},
                kernel, args);
}

template <class Kv, int dims, int most_rows>
WaitingGrid grid_of() {
  return waiting_grid("sm90_attention_few",
                      {.blocks = dim3(static_cast<unsigned>(Work<dims>::doubled * processors_of_device())),
                       .threads = few_threads,
                       .shared_bytes = static_cast<std::size_t>(shared_bytes<dims>(attention_max_sequences))},
                      sm90_attention_few<Kv, dims, most_rows>);
}
template <class Kv>
void add_grids(WaitingGrids& grids) {
  grids.insert(grids.end(), {grid_of<Kv, 64, 1>(), grid_of<Kv, 64, 2>(), grid_of<Kv, 128, 1>(),
                             grid_of<Kv, 128, 2>(), grid_of<Kv, 256, 1>(), grid_of<Kv, 256, 2>()});
}

}  // namespace

WaitingGrids waiting_grids_of_attention_few() {
  WaitingGrids grids;
  add_grids<KvBf16>(grids);
  add_grids<KvE4m3>(grids);
  return grids;
}

int shared_of_attention_few(int sequences, int head_dim) {
  return head_dim > 128 ? shared_bytes<256>(sequences) : shared_bytes<128>(sequences);
}

void launch_attention_few(const AttentionCudaArgs& args, cudaStream_t stream) {
  const bool e4m3 = args.cache.dtype == KvE4m3::dtype;
  if (args.cache.head_dim == kv_head_dim) {
    e4m3 ? launch<KvE4m3, 64>(args, stream) : launch<KvBf16, 64>(args, stream);
  } else if (args.cache.head_dim == 256) {
    e4m3 ? launch<KvE4m3, 256>(args, stream) : launch<KvBf16, 256>(args, stream);
  } else {
    e4m3 ? launch<KvE4m3, 128>(args, stream) : launch<KvBf16, 128>(args, stream);
  }
}

}  // namespace nibble
