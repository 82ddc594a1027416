// The gated delta rule for sequences of several rows, chunk after chunk. A block has 32 columns of one head's
// values, which are sums of their own. Of sixteen columns two warps share the state, one half of the keys'
// dimensions each, in registers: one finds the chunk's updates, the other the outputs; both bring their half
// of the state forward. What they read of a chunk comes while the one before it is computed.
//
// FLOPs of a chunk and sixteen columns: 672 products of 16 x 8 x 16, three for each term of the sums. The way
// from chunk to chunk is S^T k, the updates of four blocks in turn, and one half of the new state.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_chunk_copies.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// By the two warps of a tile: `half_of_state` 0 finds updates, 1 outputs.
template <int key_dim, int value_dim, int half_of_state>
class ChunkTile {
  using Keys = KeyRows<key_dim>;
  static constexpr int steps = Keys::steps, first_half = (steps + 1) / 2;
  static constexpr int own_first = half_of_state == 0 ? 0 : first_half;
  static constexpr int own_steps = half_of_state == 0 ? first_half : steps - first_half;
  static constexpr int held = own_steps > 0 ? own_steps : 1;

 public:
  __device__ ChunkTile(const ChunkWork<key_dim, value_dim>& work, int tile, int lane)
      : work_(work),
        args_(work.args),
        shared_(work.shared),
        tile_(tile),
        lane_(lane),
        column_(work.first_column + tile * tile_columns + lane / 4) {}

  __device__ void run() {
    const int first = first_chunk_of(work_.rows), past = past_chunk_of(work_.rows);
    load_state(first);
    int border = 0;
#pragma unroll 1
    for (int index = first; index < past; ++index) {
      const ChunkRows chunk = chunk_of(work_.rows, index);
      turn_ = index - first;
      if constexpr (half_of_state == 0)
        find_updates(chunk);
      else
        begin_outputs(chunk);
      const bool is_whole = chunk.past == delta_chunk;
      if (is_whole) bring_forward();
      if constexpr (half_of_state == 1) end_outputs(chunk);
      if (!is_whole || border == work_.rows.borders) continue;
      const BorderState kept = args_.step.borders[work_.rows.borders_at + border];
      if (kept.position != chunk.first_position + delta_chunk) continue;
      store_state(work_.state_of(args_.snapshots.state, args_.snapshot_bytes, kept.slot));
      ++border;
    }
    const int past_row = work_.rows.first_position + work_.rows.row_count;
    if (past_row / delta_chunk * delta_chunk > work_.rows.first_position)
      store_state(work_.state_of(args_.slots.state, args_.slot_bytes, work_.rows.slot));
  }

 private:
  // Columns beyond the last are zeros in everything.
  __device__ __forceinline__ bool has(int second) const {
    return value_dim % block_columns == 0 || column_ + 8 * second < value_dim;
  }
  __device__ __forceinline__ int group(int second) const { return (column_ + 8 * second) / 8; }

  __device__ void load_state(int first_chunk) {
    const float* const from = work_.state_of(args_.slots.state, args_.slot_bytes, work_.rows.slot);
#pragma unroll
    for (int i = 0; i < own_steps; ++i) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        state_[i][second] = make_float4(0, 0, 0, 0);
        if (first_chunk > 0 && has(second))
          state_[i][second] =
              *reinterpret_cast<const float4*>(from + kept_place(steps, group(second), own_first + i, lane_));
      }
    }
    hand_state();
  }
  __device__ void store_state(float* to) const {
#pragma unroll
    for (int i = 0; i < own_steps; ++i) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        if (has(second))
          *reinterpret_cast<float4*>(to + kept_place(steps, group(second), own_first + i, lane_)) =
              state_[i][second];
      }
    }
  }
  // This half's terms, to both warps.
  __device__ void hand_state() {
#pragma unroll
    for (int i = 0; i < own_steps; ++i) {
      const RowTerms terms = row_terms(state_[i][0], state_[i][1]);
      shared_.state[tile_][own_first + i][0][lane_] = terms.high;
      shared_.state[tile_][own_first + i][1][lane_] = terms.low;
    }
    ptx::mbarrier_arrive(&shared_.half_there[tile_][half_of_state]);
  }
  __device__ __forceinline__ std::uint32_t parity() const { return static_cast<std::uint32_t>(turn_) & 1; }
  __device__ __forceinline__ std::uint32_t parity_of_half() const {
    return static_cast<std::uint32_t>(turn_ / 2) & 1;
  }
  // The warp has read what a barrier is about: every block of the cluster copies to it.
  __device__ __forceinline__ void hand_back(std::uint64_t* barrier) const {
    __syncwarp();
    if (lane_ < work_.cluster) ptx::mbarrier_arrive_at(barrier, lane_);
  }

  // S^T x of the chunk's keys or queries, a column of values by row.
  __device__ void read_state(float (&sums)[eights][4], const uint4* rows) {
#pragma unroll
    for (int n = 0; n < eights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
    }
    ptx::mbarrier_wait(&shared_.half_there[tile_][0], parity());
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step == first_half) ptx::mbarrier_wait(&shared_.half_there[tile_][1], parity());
      const RowTerms state{shared_.state[tile_][step][0][lane_], shared_.state[tile_][step][1][lane_]};
      ColumnTerms columns[eights];
#pragma unroll
      for (int n = 0; n < eights; ++n) columns[n] = Keys::columns(rows, n, step, lane_);
      multiply_terms(sums, state, columns);
    }
  }

  // Values of this lane's columns and rows; what stands for rows that the step does not have is not used.
  __device__ void load_values(const ChunkRows& chunk, float (&values)[eights][4]) const {
    const float* const column =
        work_.qkv(chunk, chunk.open) + 2 * args_.keys(key_dim) + work_.head * value_dim + column_;
    const int t = lane_ % 4;
    if (chunk.past - chunk.open == delta_chunk) {
      const float* row = column + std::ptrdiff_t{2 * t} * args_.channels;
      const std::ptrdiff_t eight_rows = std::ptrdiff_t{8} * args_.channels;
#pragma unroll
      for (int n = 0; n < eights; ++n, row += eight_rows) {
        const float* const next = row + args_.channels;
        values[n][0] = row[0], values[n][1] = next[0];
        values[n][2] = has(1) ? row[8] : 0, values[n][3] = has(1) ? next[8] : 0;
      }
      return;
    }
#pragma unroll
    for (int n = 0; n < eights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int p = min(max(8 * n + 2 * t + i % 2, chunk.open), chunk.past - 1) - chunk.open;
        values[n][i] = has(i / 2) ? column[std::ptrdiff_t{p} * args_.channels + 8 * (i / 2)] : 0;
      }
    }
  }

  __device__ void find_updates(const ChunkRows& chunk) {
    const int half = turn_ % 2;
    float values[eights][4], sums[eights][4];
    load_values(chunk, values);
    ptx::mbarrier_wait(&shared_.keys_come[half], parity_of_half());
    read_state(sums, shared_.keys[half]);
#pragma unroll
    for (int n = 0; n < eights; ++n) {
      const float2 decays = *reinterpret_cast<const float2*>(&shared_.decays[half][8 * n + lane_ % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[n][i] = fmaf(-(i % 2 == 0 ? decays.x : decays.y), sums[n][i], values[n][i]);
    }
    if (turn_ > 0) ptx::mbarrier_wait(&shared_.updates_read[tile_], parity() ^ 1);
    RowTerms updates[delta_blocks - 1];
#pragma unroll
    for (int block = 0; block < delta_blocks; ++block) {
      float(&own)[2][4] = *reinterpret_cast<float(*)[2][4]>(&sums[2 * block]);
#pragma unroll
      for (int before = 0; before < block; ++before) {
        const ColumnTerms columns[2] = {
            ProductRow::columns(shared_.products[half], false, 2 * block, before, lane_),
            ProductRow::columns(shared_.products[half], false, 2 * block + 1, before, lane_)};
        multiply_terms(own, updates[before], columns);
      }
      if (chunk.open <= delta_block * block && chunk.past >= delta_block * (block + 1))
        solve<true>(chunk, block, own);
      else
        solve<false>(chunk, block, own);
      const RowTerms terms = put_updates(block, own);
      if (block + 1 < delta_blocks) updates[block] = terms;
    }
    ptx::mbarrier_arrive(&shared_.updates_there[tile_]);
    if (chunk.past < delta_chunk) keep_updates(chunk, sums);
  }

  // The updates of a block's rows, from what is left of their values by all rows ahead of the block. Two rows
  // at a time: the lanes that have them end them and tell the others of their columns. all_new: the step has
  // all of these rows.
  template <bool all_new>
  __device__ __forceinline__ void solve(const ChunkRows& chunk, int block, float (&own)[2][4]) {
    const int half = turn_ % 2, t = lane_ % 4;
    float factors[2][2][delta_block], betas[2][2], known[2][4] = {};  // of this lane's rows
    bool is_new[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int p = delta_block * block + 8 * n + 2 * t + r;
        betas[n][r] = shared_.betas[half][p];
        is_new[n][r] = all_new || (p >= chunk.open && p < chunk.past);
#pragma unroll
        for (int four = 0; four < delta_block / 4; ++four) {
          const uint4 words = shared_.products[half][ProductRow::place(p, ProductRow::own_unit(four))];
          factors[n][r][4 * four] = __uint_as_float(words.x);
          factors[n][r][4 * four + 1] = __uint_as_float(words.y);
          factors[n][r][4 * four + 2] = __uint_as_float(words.z);
          factors[n][r][4 * four + 3] = __uint_as_float(words.w);
        }
      }
    }
    if (!all_new) load_known(chunk, block, known);
#pragma unroll
    for (int pair = 0; pair < delta_block / 2; ++pair) {
      const int n = pair / 4, from = lane_ / 4 * 4 + pair % 4;
      float ended[4];  // as in `own`
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int i = 2 * second;
        ended[i] = is_new[n][0] ? __fmul_rn(betas[n][0], own[n][i]) : known[n][i];
        const float later = fmaf(factors[n][1][2 * pair], ended[i], own[n][i + 1]);
        ended[i + 1] = is_new[n][1] ? __fmul_rn(betas[n][1], later) : known[n][i + 1];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float update = __shfl_sync(0xffffffffu, ended[i], from);
        ended[i] = update;
        if (t == pair % 4) own[n][i] = update;
      }
#pragma unroll
      for (int later = n; later < 2; ++later) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float with_first = factors[later][i % 2][2 * pair],
                      with_second = factors[later][i % 2][2 * pair + 1];
          const float sum =
              fmaf(with_second, ended[i / 2 * 2 + 1], fmaf(with_first, ended[i / 2 * 2], own[later][i]));
          if (later > n || t > pair % 4) own[later][i] = sum;
        }
      }
    }
  }
  // Updates of rows of earlier steps.
  __device__ void load_known(const ChunkRows& chunk, int block, float (&known)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int p = delta_block * block + 8 * n + lane_ % 4 * 2 + i % 2;
        if (p < chunk.open && has(i / 2))
          known[n][i] = work_.kept_updates()[kept_update_place(column_ + 8 * (i / 2), p)];
      }
    }
  }

  // A block's updates, as rows of products: as they are, and what is left of them behind the chunk.
  __device__ RowTerms put_updates(int block, const float (&own)[2][4]) {
    const float* const of_block = shared_.left[turn_ % 2] + delta_block * block + lane_ % 4 * 2;
    const float2 left = *reinterpret_cast<const float2*>(of_block),
                 left_8 = *reinterpret_cast<const float2*>(of_block + 8);
    const auto times_left = [&](int second) {
      return make_float4(__fmul_rn(left.x, own[0][2 * second]), __fmul_rn(left.y, own[0][2 * second + 1]),
                         __fmul_rn(left_8.x, own[1][2 * second]),
                         __fmul_rn(left_8.y, own[1][2 * second + 1]));
    };
    const RowTerms terms = row_terms(make_float4(own[0][0], own[0][1], own[1][0], own[1][1]),
                                     make_float4(own[0][2], own[0][3], own[1][2], own[1][3])),
                   of_left = row_terms(times_left(0), times_left(1));
    shared_.updates[tile_][block][0][0][lane_] = terms.high;
    shared_.updates[tile_][block][0][1][lane_] = terms.low;
    shared_.updates[tile_][block][1][0][lane_] = of_left.high;
    shared_.updates[tile_][block][1][1][lane_] = of_left.low;
    return terms;
  }

  // For the next step, of a chunk that stays open.
  __device__ void keep_updates(const ChunkRows& chunk, const float (&updates)[eights][4]) const {
#pragma unroll
    for (int block = 0; block < delta_blocks; ++block) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        if (block * delta_block >= chunk.past || !has(second)) continue;
        *reinterpret_cast<float4*>(work_.kept_updates() +
                                   kept_place(delta_blocks, group(second), block, lane_)) =
            make_float4(updates[2 * block][2 * second], updates[2 * block][2 * second + 1],
                        updates[2 * block + 1][2 * second], updates[2 * block + 1][2 * second + 1]);
      }
    }
  }

  __device__ void begin_outputs(const ChunkRows&) {
    const int half = turn_ % 2;
    ptx::mbarrier_wait(&shared_.queries_come[half], parity_of_half());
    ptx::mbarrier_wait(&shared_.keys_come[half], parity_of_half());
    read_state(outputs_, shared_.queries[half]);
#pragma unroll
    for (int n = 0; n < eights; ++n) {
      const float2 decays = *reinterpret_cast<const float2*>(&shared_.decays[half][8 * n + lane_ % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        outputs_[n][i] = __fmul_rn(i % 2 == 0 ? decays.x : decays.y, outputs_[n][i]);
    }
    ptx::mbarrier_arrive(&shared_.state_read[tile_]);
    ptx::mbarrier_wait(&shared_.updates_there[tile_], parity());
  }
  __device__ void end_outputs(const ChunkRows& chunk) {
    const int half = turn_ % 2;
#pragma unroll
    for (int block = 0; block < delta_blocks; ++block) {
      const RowTerms updates{shared_.updates[tile_][block][0][0][lane_],
                             shared_.updates[tile_][block][0][1][lane_]};
      ColumnTerms columns[eights];
#pragma unroll
      for (int n = 2 * block; n < eights; ++n)
        columns[n] = ProductRow::columns(shared_.products[half], true, n, block, lane_);
      multiply_terms(outputs_, updates, columns, 2 * block);
    }
    ptx::mbarrier_arrive(&shared_.updates_read[tile_]);
    float* const column = args_.mixed + work_.of_head(chunk, chunk.open) * value_dim + column_;
#pragma unroll
    for (int n = 0; n < eights; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int p = 8 * n + lane_ % 4 * 2 + r;
        if (p < chunk.open || p >= chunk.past) continue;
        float* const to = column + std::ptrdiff_t{p - chunk.open} * (args_.value_heads * value_dim);
        if (has(0)) to[0] = outputs_[n][r];
        if (has(1)) to[8] = outputs_[n][2 + r];
      }
    }
    hand_back(&shared_.queries_read[half]);
  }

  // This half of S to the border behind the chunk, then its terms.
  __device__ void bring_forward() {
    const int half = turn_ % 2;
    float sums[2 * held][4];
#pragma unroll
    for (int n = 0; n < 2 * held; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
    }
#pragma unroll
    for (int block = 0; block < delta_blocks && own_steps > 0; ++block) {
      const RowTerms updates{shared_.updates[tile_][block][1][0][lane_],
                             shared_.updates[tile_][block][1][1][lane_]};
      ColumnTerms columns[2 * held];
#pragma unroll
      for (int n = 0; n < 2 * held; ++n)
        columns[n] = Keys::turned_columns(shared_.keys[half], 2 * own_first + n, block, lane_);
      multiply_terms(sums, updates, columns);
    }
    const float decay = shared_.decays[half][delta_chunk - 1];
#pragma unroll
    for (int i = 0; i < own_steps; ++i) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        float4& kept = state_[i][second];
        kept = make_float4(fmaf(decay, kept.x, sums[2 * i][2 * second]),
                           fmaf(decay, kept.y, sums[2 * i][2 * second + 1]),
                           fmaf(decay, kept.z, sums[2 * i + 1][2 * second]),
                           fmaf(decay, kept.w, sums[2 * i + 1][2 * second + 1]));
      }
    }
    if constexpr (half_of_state == 0) ptx::mbarrier_wait(&shared_.state_read[tile_], parity());
    hand_state();
    hand_back(&shared_.keys_read[half]);
  }

  const ChunkWork<key_dim, value_dim>& work_;
  const DeltaKernelArgs& args_;
  ChunkShared<key_dim>& shared_;
  const int tile_, lane_, column_;
  int turn_ = 0;
  float4 state_[held][2];  // its own half, of columns g and g + 8
  float outputs_[eights][4];
};

template <int key_dim, int value_dim>
__global__ void __launch_bounds__(chunk_threads)
    delta_chunks(const __grid_constant__ DeltaKernelArgs args, int cluster) {
  constexpr int slices = (value_dim + block_columns - 1) / block_columns;
  auto& shared = *reinterpret_cast<ChunkShared<key_dim>*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = ptx::warp_of_block();
  if (thread == 0) {
    const auto of_cluster = static_cast<std::uint32_t>(cluster);
    for (int half = 0; half < 2; ++half) {
      ptx::mbarrier_init(&shared.keys_come[half], copy_threads);
      ptx::mbarrier_init(&shared.queries_come[half], 1);
      ptx::mbarrier_init(&shared.keys_read[half], compute_warps * of_cluster);
      ptx::mbarrier_init(&shared.queries_read[half], block_tiles * of_cluster);
    }
    for (int tile = 0; tile < block_tiles; ++tile) {
      for (int half = 0; half < 2; ++half) ptx::mbarrier_init(&shared.half_there[tile][half], 32);
      ptx::mbarrier_init(&shared.state_read[tile], 32);
      ptx::mbarrier_init(&shared.updates_there[tile], 32);
      ptx::mbarrier_init(&shared.updates_read[tile], 32);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_barrier();  // the barriers are there
  const StateRowsCuda rows = args.step.of_sequence[blockIdx.y];
  ptx::grid_dependency_wait();
  if (!has_many_delta_rows(rows.row_count)) return;
  ptx::fence_bulk_copies();
  const int block = static_cast<int>(blockIdx.x), head = block / slices;
  const ChunkWork<key_dim, value_dim> work{args,
                                           shared,
                                           rows,
                                           head,
                                           head / args.served(),
                                           block % slices * block_columns,
                                           cluster,
                                           ptx::cluster_rank()};
  if (warp < block_tiles)
    ChunkTile<key_dim, value_dim, 0>(work, warp, lane).run();
  else if (warp < compute_warps)
    ChunkTile<key_dim, value_dim, 1>(work, warp - block_tiles, lane).run();
  else
    ChunkCopies<key_dim, value_dim>(work, thread - compute_warps * 32).run();
  ptx::cluster_barrier();  // nobody copies here any more
}

}  // namespace

void launch_delta_chunks(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    constexpr std::size_t bytes = sizeof(ChunkShared<key_dim>);
    static_assert(bytes <= 227 * 1024);
    constexpr int slices = (value_dim + block_columns - 1) / block_columns;
    const auto kernel = delta_chunks<key_dim, value_dim>;
    cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    Launch launch{.blocks = dim3(static_cast<unsigned>(args.value_heads * slices),
                                 static_cast<unsigned>(args.step.sequences)),
                  .threads = chunk_threads,
                  .shared_bytes = bytes,
                  .stream = stream,
                  .overlaps = true,
                  .cluster = slices};
    // Larger clusters read less; but a prompt's heads shall run at the same time, if there is room for them.
    const int wanted = min(args.value_heads * slices, processors_of_device() / slices * slices - slices);
    while (launch.cluster > 1 && clusters_at_once(launch, kernel) * launch.cluster < wanted)
      launch.cluster /= 2;
    launch_kernel(launch, kernel, args, launch.cluster);
  });
}

}  // namespace nibble
