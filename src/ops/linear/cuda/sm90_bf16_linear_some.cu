// linear for some tokens, 33 to 128, of K up to 4,096: each of a cluster's eight blocks has one of K's eight
// chunks, whose activations stay in its shared memory while the weights of tile after tile stream past. For
// what it adds in which order see dense_tiles.h.
//
// Bytes: 2 a weight, once, as for few tokens; a block reads the activations of its chunk once, 128 KB of 128
// tokens of K = 4,096. FLOPs: 2 a weight and column; a stage of 16 KB takes the tensor cores 256 cycles for
// 64 columns, 512 for 128, and comes in some 820.
//
// As many clusters as run at once, 15 or 16 of 8 on an H200, have an equal run of tiles each. Of each tile
// every block leaves its chunk's sums with those that add them up, by stores into their shared memory: block
// r has the r-th eighth of the columns, adds the eight chunks in their order, and puts them out, while the
// next tile's products run. One more cluster than runs at once would begin when the others have ended.
//
// One warp fetches weights, another the activations; a warpgroup multiplies, another adds. The ring is filled
// with weights before the grids ahead have ended, a few stages at a time, as for few tokens.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "ops/linear/cuda/dense_ring.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int group_threads = 128;
constexpr int some_threads = 2 * group_threads + 64;
constexpr int cluster_blocks = dense_k_chunks;
constexpr int chunk_blocks = linear_some_blocks / dense_k_chunks;  // of K, at most
constexpr int parts = chunk_blocks / stage_blocks;
constexpr int group_bytes = chunk_blocks * token_block_bytes;  // room for a chunk of 8 tokens
static_assert(linear_some_blocks % (dense_k_chunks * stage_blocks) == 0);

template <int columns>
constexpr int ring_stages = columns == 64 ? 6 : 4;
// On their way together before the first products: more of them hold up the activations, which take longer
// where they are more.
template <int columns>
constexpr int early_stages = columns == 64 ? 3 : 2;
template <int columns>
constexpr int own_columns = columns / cluster_blocks;  // that a block adds up
template <int columns>
constexpr int own_groups = own_columns<columns> / token_group;
template <int columns>
constexpr int sum_bytes = own_groups<columns>* group_threads* static_cast<int>(sizeof(float4));  // of a chunk
template <int columns>
constexpr int ring_bytes = ring_stages<columns>* stage_weight_bytes;
template <int columns>
constexpr int token_bytes = columns / token_group* group_bytes;

template <class Output>
struct SomeParams {
  const std::uint8_t* weights;
  const std::uint8_t* x;
  DenseShape shape;
  int first_token, tokens;  // those of this launch end with tokens
  std::uint32_t* stuck;     // LinearCudaWorkspace's
  Output output;
};

template <int columns>
struct SomeShared {
  std::uint8_t* ring;    // [ring_stages, stage_weight_bytes]
  std::uint8_t* tokens;  // [columns / 8, group_bytes]
  float4* sums;          // [chunks, own_groups, group_threads]: what comes for this block to add

  __device__ explicit SomeShared(std::uint8_t* from)
      : ring(from),
        tokens(from + ring_bytes<columns>),
        sums(reinterpret_cast<float4*>(from + ring_bytes<columns> + token_bytes<columns>)) {}
  static constexpr int bytes =
      ring_bytes<columns> + token_bytes<columns> + dense_k_chunks * sum_bytes<columns>;
};

template <int columns>
struct SomeBarriers {
  std::uint64_t weights[ring_stages<columns>], empty[ring_stages<columns>];
  std::uint64_t tokens[parts];  // of a chunk
  std::uint64_t sums;           // of a tile have come to this block
  std::uint64_t room;           // for a tile's sums in all blocks that add

  __device__ void init(int adding_blocks) {
    for (int stage = 0; stage < ring_stages<columns>; ++stage) {
      ptx::mbarrier_init(&weights[stage], 1);
      ptx::mbarrier_init(&empty[stage], group_threads / 32);
    }
    for (std::uint64_t& part : tokens) ptx::mbarrier_init(&part, 1);
    ptx::mbarrier_init(&sums, 1);
    ptx::mbarrier_init(&room, static_cast<std::uint32_t>(adding_blocks * (group_threads / 32)));
    ptx::fence_mbarrier_init();
  }
};

// What a block does: its chunk's k64 blocks [begin, end) of tiles [first_tile, past_tile).
struct SomeWork {
  int rank, begin, end, first_tile, past_tile;
  int count;          // of tokens
  int adding_blocks;  // have tokens to add up

  __device__ int parts_of_chunk() const { return (end - begin + stage_blocks - 1) / stage_blocks; }
  __device__ int blocks_of(int part) const { return min(stage_blocks, end - begin - part * stage_blocks); }
};

// By one lane.
template <int columns, class Output>
__device__ __forceinline__ void fetch_weights(const SomeParams<Output>& params, const SomeWork& work,
                                              const SomeShared<columns>& shared,
                                              SomeBarriers<columns>& barriers) {
  RingTurn turn;
  for (int tile = work.first_tile; tile < work.past_tile; ++tile) {
    const std::uint8_t* const chunk = params.weights +
                                      static_cast<std::size_t>(tile) * params.shape.tile_bytes() +
                                      static_cast<std::size_t>(work.begin) * dense_block_bytes;
    for (int part = 0; part < work.parts_of_chunk(); ++part, turn.next(ring_stages<columns>)) {
      if (turn.round > 0) {
        ptx::await_room(&barriers.empty[turn.stage], (turn.round - 1) & 1, params.stuck, Stuck::dense_ring);
      } else if (turn.stage >= early_stages<columns>) {
        ptx::mbarrier_wait(&barriers.weights[turn.stage - early_stages<columns>], 0);
      }
      const std::uint32_t bytes = static_cast<std::uint32_t>(work.blocks_of(part) * dense_block_bytes);
      ptx::mbarrier_arrive_expecting(&barriers.weights[turn.stage], bytes);
      ptx::bulk_copy_once_to_shared(shared.ring + turn.stage * stage_weight_bytes,
                                    chunk + part * stage_weight_bytes, bytes, &barriers.weights[turn.stage]);
    }
  }
}

// By a warp, lane i of which brings the i-th group of tokens.
template <int columns, class Output>
__device__ __forceinline__ void fetch_tokens(const SomeParams<Output>& params, const SomeWork& work,
                                             const SomeShared<columns>& shared,
                                             SomeBarriers<columns>& barriers) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = (work.count + token_group - 1) / token_group;
  const std::uint8_t* const x =
      params.x + params.shape.token_bytes(params.first_token) +
      (static_cast<std::size_t>(lane) * static_cast<std::size_t>(params.shape.blocks()) +
       static_cast<std::size_t>(work.begin)) *
          token_block_bytes;
  ptx::grid_dependency_wait();
  for (int part = 0; part < work.parts_of_chunk(); ++part) {
    const int bytes = work.blocks_of(part) * token_block_bytes, at = part * stage_blocks * token_block_bytes;
    if (lane == 0)
      ptx::mbarrier_arrive_expecting(&barriers.tokens[part], static_cast<std::uint32_t>(groups * bytes));
    __syncwarp();  // bytes are announced before any come
    if (lane < groups) {
      ptx::bulk_copy_to_shared(shared.tokens + lane * group_bytes + at, x + at,
                               static_cast<std::uint32_t>(bytes), &barriers.tokens[part]);
    }
  }
}

// By the multiplying warpgroup.
template <int columns>
__device__ __forceinline__ void multiply(const SomeWork& work, const SomeShared<columns>& shared,
                                         SomeBarriers<columns>& barriers) {
  RingTurn turn;
#pragma unroll 1
  for (int tile = work.first_tile; tile < work.past_tile; ++tile) {
    float sums[columns / 2];
#pragma unroll
    for (float& sum : sums) sum = 0;
    int before = -1;
#pragma unroll 1
    for (int part = 0; part < work.parts_of_chunk(); ++part) {
      ptx::mbarrier_wait(&barriers.weights[turn.stage], turn.round & 1);
      ptx::mbarrier_wait(&barriers.tokens[part], 0);
      __syncwarp();
      multiply_stage<TokenGroups<group_bytes>>(sums, shared.ring + turn.stage * stage_weight_bytes,
                                               shared.tokens + part * stage_blocks * token_block_bytes,
                                               work.blocks_of(part));
      leave_stage(barriers.empty, before);
      before = turn.stage;
      turn.next(ring_stages<columns>);
    }
    ptx::wgmma_wait(sums);
    leave_stage(barriers.empty, before);
    const int done = tile - work.first_tile;
    if (done > 0) ptx::mbarrier_wait(&barriers.room, static_cast<unsigned>(done - 1) & 1);
    __syncwarp();
    float4* const place = shared.sums + work.rank * own_groups<columns> * group_threads + threadIdx.x;
#pragma unroll
    for (int group = 0; group < columns / token_group; ++group) {
      const int adder = group / own_groups<columns>;
      if (adder >= work.adding_blocks) continue;
      const float* const four = sums + 4 * group;
      ptx::store_to_block(place + group % own_groups<columns> * group_threads,
                          make_float4(four[0], four[1], four[2], four[3]), &barriers.sums, adder);
    }
  }
}

// By the adding warpgroup.
template <int columns, class Output>
__device__ __forceinline__ void add(const SomeParams<Output>& params, const SomeWork& work,
                                    const SomeShared<columns>& shared, SomeBarriers<columns>& barriers) {
  constexpr int own = own_columns<columns>;
  if (work.rank >= work.adding_blocks) return;
  const int thread = static_cast<int>(threadIdx.x) % group_threads;
  const int token = params.first_token + work.rank * own;
  // What an output reads besides the sums may come from the grid before.
  ptx::grid_dependency_wait();
#pragma unroll 1
  for (int tile = work.first_tile; tile < work.past_tile; ++tile) {
    if (thread == 0) ptx::mbarrier_arrive_expecting(&barriers.sums, dense_k_chunks * sum_bytes<columns>);
    OutputNeeds<own, Output> needs;
    needs.read(params.output, tile, token, params.tokens);
    ptx::mbarrier_wait(&barriers.sums, static_cast<unsigned>(tile - work.first_tile) & 1);
    float totals[own / 2];
    std::uint32_t loaded = 0;
#pragma unroll
    for (int chunk = 0; chunk < dense_k_chunks; ++chunk) {
#pragma unroll
      for (int group = 0; group < own_groups<columns>; ++group) {
        const float4 left = shared.sums[(chunk * own_groups<columns> + group) * group_threads + thread];
        float* const four = totals + 4 * group;
        four[0] = chunk == 0 ? left.x : four[0] + left.x;
        four[1] = chunk == 0 ? left.y : four[1] + left.y;
        four[2] = chunk == 0 ? left.z : four[2] + left.z;
        four[3] = chunk == 0 ? left.w : four[3] + left.w;
        loaded ^= __float_as_uint(left.x);
      }
    }
    ptx::await_loads(loaded);
    __syncwarp();  // all lanes have their sums
    if (thread % 32 == 0) {
      for (int rank = 0; rank < cluster_blocks; ++rank) ptx::mbarrier_arrive_at(&barriers.room, rank);
    }
    __syncwarp();
    put_out<own>(params.output, tile, token, params.tokens, totals, needs);
  }
}

template <int columns, class Output>
__global__ void __launch_bounds__(some_threads, 1)
    sm90_bf16_linear_some(const __grid_constant__ SomeParams<Output> params) {
  __shared__ SomeBarriers<columns> barriers;
  const SomeShared<columns> shared(ptx::dynamic_shared());
  const int rank = ptx::cluster_rank(), clusters = static_cast<int>(gridDim.x) / cluster_blocks;
  const int cluster = static_cast<int>(blockIdx.x) / cluster_blocks, tiles = params.shape.tiles();
  const int count = min(columns, params.tokens - params.first_token);
  const SomeWork work{rank,
                      params.shape.chunk_begin(rank),
                      params.shape.chunk_begin(rank + 1),
                      tiles * cluster / clusters,
                      tiles * (cluster + 1) / clusters,
                      count,
                      (count + own_columns<columns> - 1) / own_columns<columns>};
  if (threadIdx.x == 0) barriers.init(work.adding_blocks);
  __syncthreads();  // the barriers are ready
  ptx::cluster_arrive();
  ptx::grid_launch_dependents();
  const int warp = ptx::warp_of_block();
  if (warp < group_threads / 32) {
    ptx::cluster_wait();  // so are the other blocks'
    multiply<columns>(work, shared, barriers);
  } else if (warp < 2 * group_threads / 32) {
    ptx::cluster_wait();
    add<columns>(params, work, shared, barriers);
  } else if (warp == 2 * group_threads / 32) {
    fetch_tokens<columns>(params, work, shared, barriers);
  } else if (threadIdx.x % 32 == 0) {
    fetch_weights<columns>(params, work, shared, barriers);
  }
  __syncwarp();
  if (warp >= 2 * group_threads / 32) ptx::cluster_wait();
  ptx::cluster_barrier();  // nobody stores or arrives here any more
}

template <int columns, class Output>
bool launch_some(const SomeParams<Output>& params, int blocks, cudaStream_t stream) {
  const auto kernel = sm90_bf16_linear_some<columns, Output>;
  constexpr int bytes = SomeShared<columns>::bytes;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  Launch launch{.blocks = dim3(cluster_blocks),
                .threads = some_threads,
                .shared_bytes = bytes,
                .stream = stream,
                .overlaps = true,
                .cluster = cluster_blocks};
  const int at_once = clusters_at_once(launch, kernel);
  if (at_once == 0) return false;
  const int most = at_once * blocks / processors_of_device();
  launch.blocks = dim3(static_cast<unsigned>(std::clamp(most, 1, params.shape.tiles()) * cluster_blocks));
  launch_kernel(launch, kernel, params);
  return true;
}

}  // namespace

template <class Output>
bool run_some(const DenseRun& run, int first, int past, const Output& output, cudaStream_t stream) {
  const SomeParams<Output> params{.weights = run.weight.data,
                                  .x = run.x.data,
                                  .shape = run.weight.shape,
                                  .first_token = first,
                                  .tokens = past,
                                  .stuck = run.workspace.stuck,
                                  .output = output};
  return past - first <= 64 ? launch_some<64>(params, run.blocks, stream)
                            : launch_some<128>(params, run.blocks, stream);
}

template bool run_some(const DenseRun&, int, int, const RowsOutput&, cudaStream_t);
template bool run_some(const DenseRun&, int, int, const QkvOutput&, cudaStream_t);

}  // namespace nibble
