// The gated delta rule for sequences of several rows, chunk after chunk. A block has 32 columns of one head's
// values, which are sums of their own. One of its warpgroups finds the updates, a warp those of sixteen rows.
// One finds the outputs. Two hold halves of the state and bring them forward, a block's updates after the
// other's. What they read of a chunk comes while the one before it is computed.
//
// FLOPs of a chunk: S^T k, S^T q and the state are eight products of 64 x 32 x 16 each. Within the chunk are
// 64 of 16 x 8 x 16. Each is three, one for each term of a sum. The way from chunk to chunk is S^T k, the
// updates of four blocks in turn, what the last one adds to the state, and the state's terms. All else is
// done beside it.
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tile_shared.cuh"
#include "ops/gated_delta/cuda/delta_chunk_copies.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// What warps of a warpgroup know. Lane 4g + t has rows g and g + 8 of its warp's sixteen, and columns 8n + 2t
// and 8n + 2t + 1, as RowSums.
template <int key_dim, int value_dim>
class ChunkWarp {
 protected:
  using Tiles = KeyTiles<key_dim>;
  static constexpr int steps = KeyRows<key_dim>::steps, eights = block_columns / 8;
  static constexpr int state_threads = Tiles::parts * part_threads;  // of those that hold the state

  __device__ ChunkWarp(const ChunkWork<key_dim, value_dim>& work, int warp, int lane)
      : work_(work),
        args_(work.args),
        shared_(work.shared),
        block_(warp),
        lane_(lane),
        g_(lane / 4),
        t_(lane % 4) {}

  // Calls each(rows of a chunk) for all in turn.
  template <class Each>
  __device__ __forceinline__ void for_each_chunk(const Each& each) {
    const int first = first_chunk_of(work_.rows), past = past_chunk_of(work_.rows);
#pragma unroll 1
    for (int index = first; index < past; ++index) {
      turn_ = index - first;
      each(chunk_of(work_.rows, index));
    }
  }

  __device__ __forceinline__ int half() const { return turn_ % 2; }
  __device__ __forceinline__ std::uint32_t parity() const { return static_cast<std::uint32_t>(turn_) & 1; }
  __device__ __forceinline__ void await_keys() const {
    ptx::mbarrier_wait(&shared_.keys_come[half()], static_cast<std::uint32_t>(turn_ / 2) & 1);
  }
  // The warp is done with what a barrier is about.
  __device__ __forceinline__ void arrive(std::uint64_t* barrier) const {
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(barrier);
  }
  // The same where every block of the cluster copies to it.
  __device__ __forceinline__ void hand_back(std::uint64_t* barrier) const {
    __syncwarp();
    if (lane_ < work_.cluster) ptx::mbarrier_arrive_at(barrier, lane_);
  }

  // Columns beyond the last are zeros in everything.
  __device__ __forceinline__ bool has(int eight) const {
    return value_dim % block_columns == 0 || work_.first_column + 8 * eight < value_dim;
  }
  __device__ __forceinline__ int row(int second) const { return delta_block * block_ + g_ + 8 * second; }
  __device__ __forceinline__ int column(int eight) const { return work_.first_column + 8 * eight + 2 * t_; }

  // S^T x of the keys or queries of a chunk, in parts that are begun one after the other. By a warpgroup.
  // Sums: x's high terms by both of the state's, and its low terms by the high ones.
  struct StateSums {
    float of_high[block_columns], of_low[block_columns / 2];
  };
  __device__ __forceinline__ void read_state(StateSums& sums, const std::uint8_t* rows, int first,
                                             int past) const {
    const ptx::TileRows high(rows), low(rows + Tiles::low);
    const ptx::TileColumns state(shared_.state, 0);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = first; step < past; ++step) {
      const ptx::TileColumns dims = state.at(static_cast<unsigned>(step) * 16 * ptx::swizzled_row_bytes);
      ptx::wgmma_bf16(sums.of_high, high.at(Tiles::step(step)), dims, step > 0);
      ptx::wgmma_bf16(sums.of_low, low.at(Tiles::step(step)), dims, step > 0);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ static void end_state(StateSums& from, RowSums& sums) {
    ptx::wgmma_wait(from.of_high);
    ptx::wgmma_wait(from.of_low);
#pragma unroll
    for (int i = 0; i < block_columns / 2; ++i)
      sums[i] = __fadd_rn(__fadd_rn(from.of_high[block_columns / 2 + i], from.of_low[i]), from.of_high[i]);
  }
  // What is left of the state by rows g and g + 8.
  __device__ __forceinline__ float2 decays() const {
    return make_float2(shared_.decays[half()][row(0)], shared_.decays[half()][row(1)]);
  }
  // What the warp's rows take in of a block's updates; rows: their products with it.
  __device__ __forceinline__ void add_products(RowSums& sums, const RowTerms& rows, int block) const {
    ColumnTerms updates[eights];
#pragma unroll
    for (int n = 0; n < eights; ++n) updates[n] = shared_.updates[block].own.columns(n, lane_);
    const auto multiply = [&](const uint4& a, bool low) {
#pragma unroll
      for (int n = 0; n < eights; ++n) {
        const auto& b = low ? updates[n].low : updates[n].high;
        ptx::mma_m16n8k16_bf16(*reinterpret_cast<float(*)[4]>(&sums[4 * n]), a.x, a.y, a.z, a.w, b[0], b[1]);
      }
    };
    multiply(rows.high, true);
    multiply(rows.low, false);
    multiply(rows.high, false);
  }

  const ChunkWork<key_dim, value_dim>& work_;
  const DeltaKernelArgs& args_;
  ChunkShared<key_dim>& shared_;
  const int block_, lane_, g_, t_;
  int turn_ = 0;
};

// The warp of a block of sixteen rows: u.
template <int key_dim, int value_dim>
class ChunkUpdates : ChunkWarp<key_dim, value_dim> {
  using Base = ChunkWarp<key_dim, value_dim>;
  using Base::args_, Base::shared_, Base::work_, Base::block_, Base::lane_;
  using Tiles = KeyTiles<key_dim>;

 public:
  __device__ ChunkUpdates(const ChunkWork<key_dim, value_dim>& work, int warp, int lane)
      : Base(work, warp, lane) {}

  __device__ void run() {
    load_values(chunk_of(work_.rows, first_chunk_of(work_.rows)));
    this->for_each_chunk([&](const ChunkRows& chunk) {
      const int half = this->half();
      const BlockRows rows{shared_.of_keys[half], shared_.betas[half], shared_.left[half],
                           delta_block * block_,  chunk.open,          chunk.past};
      this->await_keys();
      UpdateFactors factors;
      factors.load(rows);
      RowSums sums;
      begin(sums);
#pragma unroll 1
      for (int block = 0; block + 1 < block_; ++block) {
        const RowTerms products = products_with(block);
        ptx::mbarrier_wait(&shared_.updates_there[block], this->parity());
        this->add_products(sums, products, block);
      }
      if (this->turn_ > 0) ptx::mbarrier_wait(&shared_.updates_read, this->parity() ^ 1);
      if (block_ > 0) {
        const RowTerms products = products_with(block_ - 1);
        ptx::named_barrier(update_is_there + block_ - 1, 2 * 32);
        this->add_products(sums, products, block_ - 1);
      }
      end(rows, factors, sums);
      if (chunk.past < delta_chunk) return;
      this->hand_back(&shared_.keys_read[half]);
      const int next = chunk.first_position / delta_chunk + 1;
      if (next < past_chunk_of(work_.rows)) load_values(chunk_of(work_.rows, next));
    });
  }

 private:
  // Values of this lane's rows and columns; what stands for rows that the step does not have is not used.
  __device__ void load_values(const ChunkRows& chunk) {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int j = min(max(this->row(second), chunk.open), chunk.past - 1);
      const float* const of_row =
          work_.qkv(chunk, j) + 2 * args_.keys(key_dim) + work_.head * value_dim + this->column(0);
#pragma unroll
      for (int n = 0; n < Base::eights; ++n) {
        float2 two = make_float2(0, 0);
        if (this->has(n)) two = *reinterpret_cast<const float2*>(of_row + 8 * n);
        values_[4 * n + 2 * second] = two.x;
        values_[4 * n + 2 * second + 1] = two.y;
      }
    }
  }

  // v - e^G S^T k
  __device__ void begin(RowSums& sums) const {
    ptx::named_barrier(state_is_there, Base::state_threads + part_threads);
    typename Base::StateSums of_state;
    this->read_state(of_state, shared_.keys[this->half()], 0, Base::steps);
    this->end_state(of_state, sums);
    const float2 decays = this->decays();
#pragma unroll
    for (int i = 0; i < block_columns / 2; ++i)
      sums[i] = fmaf(-(i % 4 < 2 ? decays.x : decays.y), sums[i], values_[i]);
  }
  __device__ __forceinline__ RowTerms products_with(int block) const {
    return ProductHalf::rows(shared_.of_keys[this->half()], block_, block, lane_);
  }

  // From what all blocks ahead leave of the values, to all warps. Those that wait get theirs first: the block
  // behind takes in updates, and behind the last block the state takes in what is left of them.
  __device__ void end(const BlockRows& rows, const UpdateFactors& factors, const RowSums& sums) const {
    BlockUpdates& updates = shared_.updates[block_];
    float own[delta_block];
    // Of rows of earlier steps what they left, zeros for those that are still to come.
    const float* const kept = kept_column();
    const auto known = [&](int j) {
      return rows.first + j < rows.open && has_column() ? kept[kept_update_place(0, j)] : 0.0f;
    };
    turn_sums(sums, updates.columns, lane_, own);
    if (block_ < 2) this->arrive(&shared_.solving[block_]);
    if (rows.all_new())
      solve_block<true>(rows, factors, known, own);
    else
      solve_block<false>(rows, factors, known, own);
    __syncwarp();  // the columns that updates take the place of have been read
    if (block_ + 1 < delta_blocks) {
      put_own(own, updates);
      if (rows.past == delta_chunk) put_left(rows, own, updates);
    } else {
      if (rows.past == delta_chunk) put_left(rows, own, updates);
      put_own(own, updates);
    }
    if (rows.past < delta_chunk && rows.first < rows.past && has_column()) keep(own);
  }
  __device__ __forceinline__ void put_own(const float (&own)[delta_block], BlockUpdates& updates) const {
    put_column(own, lane_, updates.own);
    if (block_ + 1 < delta_blocks) ptx::named_barrier_arrive(update_is_there + block_, 2 * 32);
    this->arrive(&shared_.updates_there[block_]);
  }
  __device__ __forceinline__ void put_left(const BlockRows& rows, const float (&own)[delta_block],
                                           BlockUpdates& updates) const {
    float of_rows[delta_block];
#pragma unroll
    for (int j = 0; j < delta_block; j += 4) {
      const float4 left = *reinterpret_cast<const float4*>(rows.left + rows.first + j);
      of_rows[j] = __fmul_rn(left.x, own[j]), of_rows[j + 1] = __fmul_rn(left.y, own[j + 1]);
      of_rows[j + 2] = __fmul_rn(left.z, own[j + 2]), of_rows[j + 3] = __fmul_rn(left.w, own[j + 3]);
    }
    put_column(of_rows, lane_, updates.left);
    ptx::fence_shared_writes();
    ptx::named_barrier_arrive(left_is_there + block_, Base::state_threads + 32);
  }

  // Of this lane's column, the block's rows.
  __device__ __forceinline__ float* kept_column() const {
    return work_.kept_updates() + kept_update_place(work_.first_column + lane_, delta_block * block_);
  }
  __device__ __forceinline__ bool has_column() const {
    return value_dim % block_columns == 0 || work_.first_column + lane_ < value_dim;
  }
  // For the next step, of a chunk that stays open.
  __device__ void keep(const float (&own)[delta_block]) const {
    float* const to = kept_column();
#pragma unroll
    for (int t = 0; t < 4; ++t)
      *reinterpret_cast<float4*>(to + 4 * t) =
          make_float4(own[2 * t], own[2 * t + 1], own[2 * t + 8], own[2 * t + 9]);
  }

  RowSums values_;
};

// The warp of a block of sixteen rows: o.
template <int key_dim, int value_dim>
class ChunkOutputs : ChunkWarp<key_dim, value_dim> {
  using Base = ChunkWarp<key_dim, value_dim>;
  using Base::args_, Base::shared_, Base::work_, Base::block_, Base::lane_;

 public:
  __device__ ChunkOutputs(const ChunkWork<key_dim, value_dim>& work, int warp, int lane)
      : Base(work, warp, lane) {}

  __device__ void run() {
    this->for_each_chunk([&](const ChunkRows& chunk) {
      RowSums sums;
      begin(sums);
#pragma unroll 1
      for (int block = 0; block <= block_; ++block) {
        const RowTerms rows = ProductHalf::rows(shared_.of_queries[this->half()], block_, block, lane_);
        // A block later: the warp that finds the next one's updates does not share its tensor core then.
        ptx::mbarrier_wait(&shared_.updates_there[min(block + 1, delta_blocks - 1)], this->parity());
        this->add_products(sums, rows, block);
      }
      this->arrive(&shared_.updates_read);
      store(chunk, sums);
    });
  }

 private:
  // e^G S^T q, in two parts while others solve updates: that needs no shared memory, and these products leave
  // none of it to others.
  __device__ void begin(RowSums& sums) const {
    this->await_keys();
    ptx::mbarrier_wait(&shared_.queries_come, this->parity());
    typename Base::StateSums of_state;
    constexpr int middle = (Base::steps + 1) / 2;
    ptx::mbarrier_wait(&shared_.solving[0], this->parity());
    this->read_state(of_state, shared_.queries, 0, middle);
    ptx::mbarrier_wait(&shared_.solving[1], this->parity());
    this->read_state(of_state, shared_.queries, middle, Base::steps);
    this->end_state(of_state, sums);
    this->arrive(&shared_.state_read);
    this->hand_back(&shared_.queries_read);
    const float2 decays = this->decays();
#pragma unroll
    for (int i = 0; i < block_columns / 2; ++i) sums[i] = __fmul_rn(i % 4 < 2 ? decays.x : decays.y, sums[i]);
    this->hand_back(&shared_.keys_read[this->half()]);
  }
  __device__ void store(const ChunkRows& chunk, const RowSums& sums) const {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int j = this->row(second);
      if (j < chunk.open || j >= chunk.past) continue;
      float* const of_row = args_.mixed + work_.of_head(chunk, j) * value_dim + this->column(0);
#pragma unroll
      for (int n = 0; n < Base::eights; ++n) {
        if (this->has(n))
          *reinterpret_cast<float2*>(of_row + 8 * n) =
              make_float2(sums[4 * n + 2 * second], sums[4 * n + 2 * second + 1]);
      }
    }
  }
};

// A warp of those that hold the state, of a warpgroup's 64 dimensions sixteen, as RowSums.
template <int key_dim, int value_dim>
class ChunkState : ChunkWarp<key_dim, value_dim> {
  using Base = ChunkWarp<key_dim, value_dim>;
  using Base::args_, Base::shared_, Base::work_, Base::block_, Base::g_, Base::t_;
  using Tiles = KeyTiles<key_dim>;

 public:
  __device__ ChunkState(const ChunkWork<key_dim, value_dim>& work, int part, int warp, int lane)
      : Base(work, warp, lane), part_(part) {}

  __device__ void run() {
    load();
    hand_over();
    const int last = past_chunk_of(work_.rows) - 1;
    int border = 0;
    this->for_each_chunk([&](const ChunkRows& chunk) {
      if (chunk.past < delta_chunk) return;
      bring_forward();
      if (chunk.first_position / delta_chunk < last) {
        ptx::mbarrier_wait(&shared_.state_read, this->parity());
        hand_over();
        this->hand_back(&shared_.keys_read[this->half()]);
      }
      if (border == work_.rows.borders) return;
      const BorderState kept = args_.step.borders[work_.rows.borders_at + border];
      if (kept.position != chunk.first_position + delta_chunk) return;
      store(work_.state_of(args_.snapshots.state, args_.snapshot_bytes, kept.slot));
      ++border;
    });
    const int past_row = work_.rows.first_position + work_.rows.row_count;
    if (past_row / delta_chunk * delta_chunk > work_.rows.first_position)
      store(work_.state_of(args_.slots.state, args_.slot_bytes, work_.rows.slot));
  }

 private:
  // Calls each(state, where it is kept behind the lane's first), of columns and dimensions that there are.
  template <class Each>
  __device__ __forceinline__ void for_each_state(const Each& each) {
#pragma unroll
    for (int i = 0; i < block_columns / 2; ++i) {
      if (!this->has(i / 4) || (key_dim % 64 != 0 && this->row(i % 4 / 2) >= key_dim)) continue;
      each(state_[i], kept_place(Base::steps, i / 4, 0, i % 2 * 4) + i % 4 / 2 * 2);
    }
  }
  __device__ __forceinline__ int first_place() const {
    return kept_place(Base::steps, work_.first_column / 8, part_warps * part_ + block_, 2 * t_ * 4 + g_ / 2) +
           g_ % 2;
  }
  __device__ void load() {
    const float* const from =
        work_.state_of(args_.slots.state, args_.slot_bytes, work_.rows.slot) + first_place();
#pragma unroll
    for (int i = 0; i < block_columns / 2; ++i) state_[i] = 0;
    if (first_chunk_of(work_.rows) > 0) for_each_state([&](float& of, int place) { of = from[place]; });
  }
  __device__ void store(float* of_head) {
    float* const to = of_head + first_place();
    for_each_state([&](const float& of, int place) { to[place] = of; });
  }
  // Its terms, to all warps.
  __device__ void hand_over() {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      std::uint8_t* const of_row =
          shared_.state + part_ * Tiles::tile_bytes + this->row(second) * ptx::swizzled_row_bytes;
#pragma unroll
      for (int n = 0; n < Base::eights; ++n) {
        const TermPair terms = terms_of(state_[4 * n + 2 * second], state_[4 * n + 2 * second + 1]);
        const auto put = [&](int piece, std::uint32_t pair) {
          reinterpret_cast<std::uint32_t*>(of_row + (piece ^ g_) * 16)[t_] = pair;
        };
        put(n, terms.high);
        put(Base::eights + n, terms.low);
      }
    }
    ptx::fence_shared_writes();
    ptx::named_barrier_arrive(state_is_there, Base::state_threads + part_threads);
  }

  // To the border behind the chunk.
  __device__ void bring_forward() {
    this->await_keys();
    const std::uint8_t* const keys = shared_.keys[this->half()] + part_ * Tiles::tile_bytes;
    const ptx::TileColumns high(keys, 0), low(keys + Tiles::low, 0);
    RowSums taken_in;
#pragma unroll
    for (int block = 0; block < delta_blocks; ++block) {
      ptx::named_barrier(left_is_there + block, Base::state_threads + 32);
      const UpdateTerms& left = shared_.updates[block].left;
      const std::uint64_t high_left = ptx::wgmma_operand<UpdateColumns::eight_bytes>(&left.high),
                          low_left = ptx::wgmma_operand<UpdateColumns::eight_bytes>(&left.low);
      constexpr unsigned block_bytes = delta_block * ptx::swizzled_row_bytes;
      ptx::wgmma_fence();
      ptx::wgmma_bf16(taken_in, high.at(block * block_bytes), low_left, block > 0);
      ptx::wgmma_bf16(taken_in, low.at(block * block_bytes), high_left, true);
      ptx::wgmma_bf16(taken_in, high.at(block * block_bytes), high_left, true);
      ptx::wgmma_commit();
    }
    const float decay = shared_.decays[this->half()][delta_chunk - 1];
    ptx::wgmma_wait(taken_in);
#pragma unroll
    for (int i = 0; i < block_columns / 2; ++i) state_[i] = fmaf(decay, state_[i], taken_in[i]);
  }

  const int part_;  // of the dimensions
  RowSums state_;
};

template <int key_dim, int value_dim>
__global__ void __launch_bounds__(chunk_threads, 1)
    delta_chunks(const __grid_constant__ DeltaKernelArgs args, const __grid_constant__ ChunkMaps maps,
                 int cluster) {
  constexpr int slices = (value_dim + block_columns - 1) / block_columns;
  constexpr int state_parts = KeyTiles<key_dim>::parts, computing_parts = chunk_state + state_parts;
  auto& shared = tile_shared<ChunkShared<key_dim>>();
  ptx::grid_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = ptx::warp_of_block();
  if (thread == 0) {
    const auto init = [](std::uint64_t* barrier, int arrivals) {
      ptx::mbarrier_init(barrier, static_cast<std::uint32_t>(arrivals));
    };
    for (int half = 0; half < 2; ++half) {
      init(&shared.keys_come[half], part_threads);
      init(&shared.keys_read[half], computing_parts * part_warps * cluster);
    }
    init(&shared.queries_come, part_threads);
    init(&shared.queries_read, part_warps * cluster);
    init(&shared.state_read, part_warps);
    for (std::uint64_t& barrier : shared.solving) init(&barrier, 1);
    for (std::uint64_t& barrier : shared.updates_there) init(&barrier, 1);
    init(&shared.updates_read, part_warps);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_barrier();  // the barriers are there
  const StateRowsCuda rows = args.step.of_sequence[blockIdx.y];
  ptx::grid_dependency_wait();
  if (!has_many_delta_rows(rows.row_count)) return;
  ptx::fence_bulk_copies();
  const int block = static_cast<int>(blockIdx.x), head = block / slices;
  const ChunkWork<key_dim, value_dim> work{args,
                                           maps,
                                           shared,
                                           rows,
                                           head,
                                           head / args.served,
                                           block % slices * block_columns,
                                           cluster,
                                           ptx::cluster_rank()};
  // Registers as each part needs them, of 96 that each has at first.
  const int part = warp / part_warps, of_part = warp % part_warps;
  if (part == chunk_updates) {
    ptx::take_registers<224>();
    ChunkUpdates<key_dim, value_dim>(work, of_part, lane).run();
  } else if (part == chunk_outputs) {
    ChunkOutputs<key_dim, value_dim>(work, of_part, lane).run();
  } else if (part == chunk_copies) {
    ptx::keep_registers<48>();
    ChunkCopies<key_dim, value_dim>(work, thread % part_threads).run();
  } else {
    ptx::keep_registers<56>();
    if (part - chunk_state < state_parts)
      ChunkState<key_dim, value_dim>(work, part - chunk_state, of_part, lane).run();
  }
  ptx::cluster_barrier();  // nobody copies here any more
}

}  // namespace

void launch_delta_chunks(const DeltaShape& shape, const DeltaKernelArgs& args, cudaStream_t stream) {
  with_delta_dims(shape, [&]<int key_dim, int value_dim>() {
    constexpr std::size_t bytes = tile_shared_bytes<ChunkShared<key_dim>>;
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
    launch_kernel(launch, kernel, args, ChunkCopies<key_dim, value_dim>::maps(args), launch.cluster);
  });
}

}  // namespace nibble
