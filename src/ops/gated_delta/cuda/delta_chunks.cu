// The gated delta rule for sequences of several rows, chunk after chunk. A block has 32 columns of one head's
// values, which are sums of their own. Of sixteen columns four warps share a chunk: each finds the updates
// and the outputs of one block of sixteen rows, and brings a quarter of the state forward, which it holds in
// registers. What they read of a chunk comes while the one before it is computed.
//
// FLOPs of a chunk and sixteen columns: 672 products of 16 x 8 x 16, three for each term of the sums. The way
// from chunk to chunk is S^T k, the updates of four blocks in turn, and what the last one adds to the state;
// all else is done while warps wait for the blocks ahead of theirs.
#include "ops/cuda/launch.cuh"
#include "ops/gated_delta/cuda/delta_block_updates.cuh"
#include "ops/gated_delta/cuda/delta_chunk_copies.cuh"
#include "ops/gated_delta/cuda/delta_terms.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// By a warp of a tile.
template <int key_dim, int value_dim>
class ChunkTile {
  using Keys = KeyRows<key_dim>;
  static constexpr int steps = Keys::steps, held = (steps + delta_blocks - 1) / delta_blocks;
  // Blocks from this one on read the state for their outputs while they wait for updates, those before it
  // when they have found their own.
  static constexpr int waiting_block = 2;
  using Sums = BlockSums;

 public:
  __device__ ChunkTile(const ChunkWork<key_dim, value_dim>& work, int tile, int block, int lane)
      : work_(work),
        args_(work.args),
        shared_(work.shared),
        tile_(tile),
        block_(block),
        lane_(lane),
        column_(work.first_column + tile * tile_columns + lane / 4) {}

  __device__ void run() {
    const int first = first_chunk_of(work_.rows), past = past_chunk_of(work_.rows);
    load_state(first);
    load_values(chunk_of(work_.rows, first));
    int border = 0;
#pragma unroll 1
    for (int index = first; index < past; ++index) {
      const ChunkRows chunk = chunk_of(work_.rows, index);
      turn_ = index - first;
      Sums updates;
      begin_updates(updates);
      take_blocks(chunk, updates);
      const bool is_whole = chunk.past == delta_chunk;
      if (is_whole) bring_forward();
      if (index + 1 < past) load_values(chunk_of(work_.rows, index + 1));
      end_outputs();
      ptx::mbarrier_arrive(&shared_.updates_read[tile_]);
      store_outputs(chunk);
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
  // Step i of this warp's part of the state.
  __device__ __forceinline__ int own_step(int i) const { return block_ * held + i; }
  __device__ __forceinline__ bool has_step(int i) const {
    return steps % delta_blocks == 0 || own_step(i) < steps;
  }

  __device__ void load_state(int first_chunk) {
    const float* const from = work_.state_of(args_.slots.state, args_.slot_bytes, work_.rows.slot);
#pragma unroll
    for (int i = 0; i < held; ++i) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        state_[i][second] = make_float4(0, 0, 0, 0);
        if (first_chunk > 0 && has(second) && has_step(i))
          state_[i][second] =
              *reinterpret_cast<const float4*>(from + kept_place(steps, group(second), own_step(i), lane_));
      }
    }
    hand_state();
  }
  __device__ void store_state(float* to) const {
#pragma unroll
    for (int i = 0; i < held; ++i) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        if (has(second) && has_step(i))
          *reinterpret_cast<float4*>(to + kept_place(steps, group(second), own_step(i), lane_)) =
              state_[i][second];
      }
    }
  }
  // This part's terms, to all warps of the tile.
  __device__ void hand_state() {
#pragma unroll
    for (int i = 0; i < held; ++i) {
      if (!has_step(i)) continue;
      const RowTerms terms = row_terms(state_[i][0], state_[i][1]);
      shared_.state[tile_][own_step(i)][0][lane_] = terms.high;
      shared_.state[tile_][own_step(i)][1][lane_] = terms.low;
    }
    ptx::mbarrier_arrive(&shared_.state_there[tile_]);
  }
  __device__ __forceinline__ std::uint32_t parity() const { return static_cast<std::uint32_t>(turn_) & 1; }
  __device__ __forceinline__ std::uint32_t parity_of_half() const {
    return static_cast<std::uint32_t>(turn_ / 2) & 1;
  }
  __device__ __forceinline__ int half() const { return turn_ % 2; }
  // The warp has read what a barrier is about: every block of the cluster copies to it.
  __device__ __forceinline__ void hand_back(std::uint64_t* barrier) const {
    __syncwarp();
    if (lane_ < work_.cluster) ptx::mbarrier_arrive_at(barrier, lane_);
  }

  // S^T x of keys or queries of this warp's block, a column of values by row.
  __device__ void read_state(Sums& sums, const uint4* rows) const {
    PartedSums<2> parts;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const RowTerms state{shared_.state[tile_][step][0][lane_], shared_.state[tile_][step][1][lane_]};
      const ColumnTerms columns[2] = {Keys::columns(rows, 2 * block_, step, lane_),
                                      Keys::columns(rows, 2 * block_ + 1, step, lane_)};
      parts.multiply(state, columns);
    }
    parts.put(sums.of);
  }
  __device__ __forceinline__ float2 decays_of(int eight) const {
    return *reinterpret_cast<const float2*>(
        &shared_.decays[half()][delta_block * block_ + 8 * eight + lane_ % 4 * 2]);
  }

  // Values of this lane's columns and rows; what stands for rows that the step does not have is not used.
  __device__ void load_values(const ChunkRows& chunk) {
    const float* const column =
        work_.qkv(chunk, chunk.open) + 2 * args_.keys(key_dim) + work_.head * value_dim + column_;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int j = delta_block * block_ + 8 * n + lane_ % 4 * 2 + r,
                  behind = min(max(j, chunk.open), chunk.past - 1) - chunk.open;
        const float* const at = column + std::ptrdiff_t{behind} * args_.channels;
        values_.of[n][r] = has(0) ? at[0] : 0;
        values_.of[n][2 + r] = has(1) ? at[8] : 0;
      }
    }
  }

  // v - e^G S^T k
  __device__ void begin_updates(Sums& updates) const {
    ptx::mbarrier_wait(&shared_.keys_come[half()], parity_of_half());
    ptx::mbarrier_wait(&shared_.state_there[tile_], parity());
    read_state(updates, shared_.keys[half()]);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 decays = decays_of(n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        updates.of[n][i] = fmaf(-(i % 2 == 0 ? decays.x : decays.y), updates.of[n][i], values_.of[n][i]);
    }
  }
  // e^G S^T q
  __device__ void begin_outputs() {
    ptx::mbarrier_wait(&shared_.queries_come[half()], parity_of_half());
    read_state(outputs_, shared_.queries[half()]);
    ptx::mbarrier_arrive(&shared_.state_read[tile_]);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 decays = decays_of(n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        outputs_.of[n][i] = __fmul_rn(i % 2 == 0 ? decays.x : decays.y, outputs_.of[n][i]);
    }
  }

  // Blocks' updates in turn: into this block's own, its outputs, and what its part of the state takes in.
  __device__ void take_blocks(const ChunkRows& chunk, Sums& updates) {
#pragma unroll
    for (int n = 0; n < 2 * held; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) taken_in_[n][i] = 0;
    }
    if (block_ >= waiting_block) begin_outputs();
    const bool is_whole = chunk.past == delta_chunk;
#pragma unroll 1
    for (int block = 0; block + 1 < block_; ++block) {
      await_updates(block);
      add_products(updates, block, false);
      if (is_whole) take_in(block);
      add_products(outputs_, block, true);
    }
    const BlockRows rows{shared_.products[half()], shared_.betas[half()], delta_block * block_, chunk.open,
                         chunk.past};
    UpdateFactors factors;
    factors.load(rows, 0);
    if (block_ > 0) {
      await_updates(block_ - 1);
      add_products(updates, block_ - 1, false);
    }
    end_updates(rows, factors, updates);
    if (block_ < waiting_block) begin_outputs();
    if (!is_whole) return;
#pragma unroll 1
    for (int block = max(block_ - 1, 0); block < delta_blocks; ++block) {
      if (block > block_) await_updates(block);
      take_in(block);
    }
  }
  // What outputs take in of the last two blocks that they do: not before the state has.
  __device__ void end_outputs() {
    if (block_ > 0) add_products(outputs_, block_ - 1, true);
    add_products(outputs_, block_, true);
  }
  __device__ __forceinline__ void await_updates(int block) const {
    ptx::mbarrier_wait(&shared_.updates_there[tile_][block], parity());
  }
  __device__ __forceinline__ RowTerms updates_of(int block, bool left) const {
    const auto& of_block = shared_.updates[tile_][block][left ? 1 : 0];
    return {of_block[0][lane_], of_block[1][lane_]};
  }
  __device__ __forceinline__ void add_products(Sums& sums, int block, bool of_queries) const {
    const uint4* const rows = shared_.products[half()];
    const ColumnTerms columns[2] = {ProductRow::columns(rows, of_queries, 2 * block_, block, lane_),
                                    ProductRow::columns(rows, of_queries, 2 * block_ + 1, block, lane_)};
    multiply_terms(sums.of, updates_of(block, false), columns);
  }
  __device__ __forceinline__ void take_in(int block) {
    if (!has_step(0)) return;
    ColumnTerms columns[2 * held];
#pragma unroll
    for (int n = 0; n < 2 * held; ++n)
      columns[n] = Keys::turned_columns(shared_.keys[half()], 2 * own_step(0) + n, block, lane_);
    multiply_terms(taken_in_, updates_of(block, true), columns);
  }

  // This block's, from what all blocks ahead have left of its values; to all warps of the tile.
  __device__ void end_updates(const BlockRows& rows, const UpdateFactors& factors, Sums& updates) {
    if (turn_ > 0) ptx::mbarrier_wait(&shared_.updates_read[tile_], parity() ^ 1);
    auto& to = shared_.updates[tile_][block_];
    auto& columns = reinterpret_cast<BlockColumns&>(to);
    if (rows.all_new()) {
      solve_block<true>(rows, factors, columns, lane_, updates);
    } else {
      take_known(rows, updates);
      solve_block<false>(rows, factors, columns, lane_, updates);
    }
    put_updates(to, updates);
    ptx::mbarrier_arrive(&shared_.updates_there[tile_][block_]);
    if (rows.past < delta_chunk && rows.first < rows.past) keep_updates(updates);
  }

  // Updates of rows of earlier steps; zeros for those that are still to come.
  __device__ void take_known(const BlockRows& rows, Sums& updates) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 8 * n + lane_ % 4 * 2 + i % 2, p = rows.first + j;
        if (rows.is_new(j)) continue;
        updates.of[n][i] = p < rows.open && has(i / 2)
                               ? work_.kept_updates()[kept_update_place(column_ + 8 * (i / 2), p)]
                               : 0;
      }
    }
  }

  // As rows of products: as they are, and what is left of them behind the chunk.
  __device__ void put_updates(uint4 (&to)[2][2][32], const Sums& updates) const {
    const float* const of_block = shared_.left[half()] + delta_block * block_ + lane_ % 4 * 2;
    const float2 left = *reinterpret_cast<const float2*>(of_block),
                 left_8 = *reinterpret_cast<const float2*>(of_block + 8);
    const float4 rows[2] = {updates.row(0), updates.row(1)};
    const auto times_left = [&](const float4& row) {
      return make_float4(__fmul_rn(left.x, row.x), __fmul_rn(left.y, row.y), __fmul_rn(left_8.x, row.z),
                         __fmul_rn(left_8.y, row.w));
    };
    const RowTerms terms = row_terms(rows[0], rows[1]),
                   of_left = row_terms(times_left(rows[0]), times_left(rows[1]));
    to[0][0][lane_] = terms.high;
    to[0][1][lane_] = terms.low;
    to[1][0][lane_] = of_left.high;
    to[1][1][lane_] = of_left.low;
  }

  // For the next step, of a chunk that stays open.
  __device__ void keep_updates(const Sums& updates) const {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      if (has(second))
        *reinterpret_cast<float4*>(work_.kept_updates() + kept_place(delta_blocks, group(second), block_,
                                                                     lane_)) = updates.row(second);
    }
  }

  // This part of S to the border behind the chunk, then its terms.
  __device__ void bring_forward() {
    const float decay = shared_.decays[half()][delta_chunk - 1];
#pragma unroll
    for (int i = 0; i < held; ++i) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        float4& kept = state_[i][second];
        kept = make_float4(fmaf(decay, kept.x, taken_in_[2 * i][2 * second]),
                           fmaf(decay, kept.y, taken_in_[2 * i][2 * second + 1]),
                           fmaf(decay, kept.z, taken_in_[2 * i + 1][2 * second]),
                           fmaf(decay, kept.w, taken_in_[2 * i + 1][2 * second + 1]));
      }
    }
    ptx::mbarrier_wait(&shared_.state_read[tile_], parity());
    hand_state();
    hand_back(&shared_.keys_read[half()]);
  }

  __device__ void store_outputs(const ChunkRows& chunk) const {
    float* const column = args_.mixed + work_.of_head(chunk, chunk.open) * value_dim + column_;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int j = delta_block * block_ + 8 * n + lane_ % 4 * 2 + r;
        if (j < chunk.open || j >= chunk.past) continue;
        float* const to = column + std::ptrdiff_t{j - chunk.open} * (args_.value_heads * value_dim);
        if (has(0)) to[0] = outputs_.of[n][r];
        if (has(1)) to[8] = outputs_.of[n][2 + r];
      }
    }
    hand_back(&shared_.queries_read[half()]);
  }

  const ChunkWork<key_dim, value_dim>& work_;
  const DeltaKernelArgs& args_;
  ChunkShared<key_dim>& shared_;
  const int tile_, block_, lane_, column_;
  int turn_ = 0;
  float4 state_[held][2];  // its own part, of columns g and g + 8
  float taken_in_[2 * held][4];
  Sums values_, outputs_;
};

template <int key_dim, int value_dim>
__global__ void __launch_bounds__(chunk_threads)
    delta_chunks(const __grid_constant__ DeltaKernelArgs args, int cluster) {
  constexpr int slices = (value_dim + block_columns - 1) / block_columns;
  auto& shared = *reinterpret_cast<ChunkShared<key_dim>*>(ptx::dynamic_shared());
  ptx::grid_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = ptx::warp_of_block();
  if (thread == 0) {
    const auto readers = static_cast<std::uint32_t>(compute_warps * cluster);
    for (int half = 0; half < 2; ++half) {
      ptx::mbarrier_init(&shared.keys_come[half], copy_threads);
      ptx::mbarrier_init(&shared.queries_come[half], 1);
      ptx::mbarrier_init(&shared.keys_read[half], readers);
      ptx::mbarrier_init(&shared.queries_read[half], readers);
    }
    for (int tile = 0; tile < block_tiles; ++tile) {
      ptx::mbarrier_init(&shared.state_there[tile], tile_threads);
      ptx::mbarrier_init(&shared.state_read[tile], tile_threads);
      ptx::mbarrier_init(&shared.updates_read[tile], tile_threads);
      for (int block = 0; block < delta_blocks; ++block)
        ptx::mbarrier_init(&shared.updates_there[tile][block], 32);
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
                                           head / args.served,
                                           block % slices * block_columns,
                                           cluster,
                                           ptx::cluster_rank()};
  if (warp < compute_warps) {
    // Tiles find updates of the same block on different quarters of the multiprocessor.
    const int tile = warp / delta_blocks, of_rows = (warp + tile * delta_blocks / block_tiles) % delta_blocks;
    ChunkTile<key_dim, value_dim>(work, tile, of_rows, lane).run();
  } else {
    ChunkCopies<key_dim, value_dim>(work, thread - compute_warps * 32).run();
  }
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
