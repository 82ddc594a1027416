// linear for many tokens, with the bits of the path for few (dense_tiles.h has the order of additions).
//
// A block computes 128 rows x 64 to 176 tokens at a time, two blocks of a cluster twice the rows or twice
// the tokens. What both want, about half of the bytes, each of them fetches half of for both. The wider the
// better, but for the tiles' number: a launch is as long as its rounds of one tile a cluster, so of several
// widths that is taken whose rounds come out best (dense_shapes.h).
//
// Four warpgroups: two of products, with a tile of 64 rows each; one that brings bytes, a warp for each part
// of a stage; and one that puts out what the products leave in shared memory, while those are at the next
// tile. What is last they put out themselves, which takes half the time. The sums of a chunk and those of the
// chunks before it take a register for two tokens each. Weights are on their way before the kernels ahead
// have ended.
//
// Bound: 790 TFLOP/s; q, k and v of 8,192 tokens are 242 GFLOP, 306 us. What holds it back is shared memory,
// which gives 128 bytes a cycle: a k16 step of n tokens is n cycles of the tensor cores, but reads 4 KB + 64
// n bytes and writes 4 KB + 32 n, together 64 + 0.75 n cycles. And power, from some 2,000 tokens on: the
// clock falls to 1.3 to 1.6 GHz.
//
// A cluster stays on its multiprocessors and takes tiles as dense_runs.h deals them. Each chunk's sums of a
// tile that several clusters share go to memory, and whichever comes last adds them, in order of the chunks
// like the rest; no cluster waits for another.
#include <array>
#include <utility>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "ops/linear/cuda/dense_runs.h"
#include "ops/linear/cuda/dense_shapes.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/cluster.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_map.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int block_tiles = dense_block_tiles;  // a warpgroup each
constexpr int group_threads = 128, group_warps = 4;
constexpr int product_warps = block_tiles * group_warps;
constexpr int many_threads = (block_tiles + 2) * group_threads;  // products, ends, fetching
constexpr int tokens_at = block_tiles * dense_block_bytes;       // in a stage
constexpr int stage_boxes = 2;                                   // of its tokens

// One of dense_many_shapes, and what its blocks need of shared memory and registers.
template <std::size_t index>
struct ManyShape {
  static constexpr DenseManyShape shape = dense_many_shapes[index];
  static constexpr int columns = shape.columns;
  static constexpr int cluster_rows = shape.cluster_rows, cluster_tokens = shape.cluster_tokens;
  static constexpr int cluster = shape.cluster();
  static constexpr int stage_bytes = tokens_at + columns / token_group * token_block_bytes;
  static constexpr bool lone = shape.lone;
  // Totals of both tiles lie behind the ring; or in it, where a block's only run is over when it has any.
  static constexpr int totals_bytes = dense_tile_rows * columns * 4;
  static constexpr int shared_bytes = 224 * 1024;
  static constexpr int stages = (shared_bytes - (lone ? 0 : block_tiles * totals_bytes)) / stage_bytes;
  static constexpr int totals_at = lone ? 0 : stages * stage_bytes;
  static constexpr int product_registers = lone ? 208 : 192, end_registers = lone ? 64 : 96;
};

// The block's place in its cluster, and who shares with it.
template <class Shape>
struct Member {
  int row, token;

  __device__ Member() {
    const int rank = ptx::cluster_rank();
    row = rank / Shape::cluster_tokens;
    token = rank % Shape::cluster_tokens;
  }
  __device__ int rank() const { return row * Shape::cluster_tokens + token; }
  __device__ unsigned of_same_rows() const {
    return ((1u << Shape::cluster_tokens) - 1) << (row * Shape::cluster_tokens);
  }
  __device__ unsigned of_same_tokens() const {
    unsigned ranks = 0;
    for (int other = 0; other < Shape::cluster_rows; ++other)
      ranks |= 1u << (other * Shape::cluster_tokens + token);
    return ranks;
  }
};

template <class Output>
struct ManyParams {
  ptx::TensorMap x;  // groups of tokens
  const std::uint8_t* weights;
  DenseShape shape;
  int tokens;
  Deal deal;
  float4* sums;            // [shared tiles, cluster, block_tiles, dense_k_chunks, columns / 8, group_threads]
  std::uint32_t* arrived;  // [shared tiles, cluster, block_tiles]
  std::uint32_t* stuck;    // LinearCudaWorkspace's
  Output output;
};

// What warpgroups tell each other.
template <class Shape>
struct ManyBarriers {
  std::uint64_t full[Shape::stages], empty[Shape::stages];
  std::uint64_t left[block_tiles], taken[block_tiles];  // a tile's totals in shared memory
  int is_last[block_tiles];   // of a shared tile's clusters, for its warpgroup of products
  int is_whole[block_tiles];  // what was left, for the warpgroup of ends
};

// A fetching thread, one of each of four warps, since a copy takes a thread longer than it takes the copy
// engine. A stage has four parts, two tiles of weights and two halves of the tokens: blocks that share their
// rows bring a tile each to all of them, those that share tokens a half.
template <class Shape, class Output>
__device__ __forceinline__ void fetch_runs(const ManyParams<Output>& params, std::uint8_t* ring,
                                           ManyBarriers<Shape>* barriers, int part) {
  constexpr int groups = Shape::columns / token_group / stage_boxes;
  constexpr std::uint32_t box_bytes = groups * token_block_bytes;
  const DenseShape& shape = params.shape;
  const Member<Shape> member;
  const bool tokens = part >= block_tiles;
  const int half = part - block_tiles;
  const bool brings = tokens ? Shape::cluster_rows == 1 || half == member.row
                             : Shape::cluster_tokens == 1 || part == member.token;
  ring = ptx::held(ring) + (tokens ? tokens_at + half * box_bytes : part * dense_block_bytes);
  barriers = ptx::held(barriers);
  int stage = 0;
  unsigned round = 0;  // of the ring
  if (tokens) {        // weights are there before the kernels ahead have ended
    ptx::prefetch_map(params.x);
    ptx::grid_dependency_wait();
  }
  ChunkRuns runs(params.deal, static_cast<int>(blockIdx.x) / Shape::cluster);
  for (ChunkRun run; runs.next(run);) {
    const Place place(params.deal, run.tile);
    const int tile = (place.row_tile * Shape::cluster_rows + member.row) * block_tiles + part;
    const int group =
        ((place.token_tile * Shape::cluster_tokens + member.token) * stage_boxes + half) * groups;
    const bool there = tokens || tile < shape.tiles();
    const std::uint8_t* const weights = params.weights + static_cast<std::size_t>(tile) * shape.tile_bytes();
    const int end = shape.chunk_begin(run.past);
#pragma unroll 1
    for (int block = shape.chunk_begin(run.first); block < end; ++block) {
      if (round > 0)
        ptx::await_room(&barriers->empty[stage], (round - 1) & 1, params.stuck, Stuck::dense_ring);
      std::uint64_t* const full = &barriers->full[stage];
      std::uint8_t* const to = ring + stage * Shape::stage_bytes;
      ptx::mbarrier_arrive_expecting(full, !there ? 0 : tokens ? box_bytes : dense_block_bytes);
      if (there && brings) {
        if (tokens) {
          if constexpr (Shape::cluster_rows == 1) {
            ptx::box_copy_to_shared(to, params.x, block, group, full);
          } else {
            ptx::box_copy_to_blocks(to, params.x, block, group, full, member.of_same_tokens());
          }
        } else {
          const std::uint8_t* const from = weights + static_cast<std::size_t>(block) * dense_block_bytes;
          if constexpr (Shape::cluster_tokens == 1) {
            ptx::bulk_copy_to_shared(to, from, dense_block_bytes, full);
          } else {
            ptx::bulk_copy_to_blocks(to, from, dense_block_bytes, full, member.of_same_rows());
          }
        }
      }
      if (++stage == Shape::stages) stage = 0, ++round;
    }
  }
}

// A warpgroup's way through the ring.
template <class Shape>
struct ManyProducts {
  std::uint64_t weights, tokens;  // of the ring's first stage
  ManyBarriers<Shape>* barriers;
  bool speaks;  // for its warp, whose lanes wait together, to the block whose rank is this lane
  int before = -1, stage = 0;  // the stage that is not yet left, and the next
  unsigned round = 0;

  __device__ ManyProducts(const std::uint8_t* of_ring, ManyBarriers<Shape>* of_barriers, int part)
      : weights(ptx::wgmma_operand<256>(of_ring + part * dense_block_bytes)),
        tokens(ptx::wgmma_operand<token_block_bytes>(of_ring + tokens_at)),
        barriers(ptx::held(of_barriers)) {
    const Member<Shape> member;
    speaks = ((member.of_same_rows() | member.of_same_tokens()) >> (threadIdx.x % 32) & 1) != 0;
  }

  __device__ __forceinline__ void leave() {
    if (speaks && before >= 0)
      ptx::mbarrier_arrive_at(&barriers->empty[before], static_cast<int>(threadIdx.x) % 32);
    __syncwarp();
  }
  __device__ __forceinline__ void multiply_block(float (&sums)[Shape::columns / 2], bool add) {
    ptx::mbarrier_wait(&barriers->full[stage], round & 1);
    __syncwarp();
    const unsigned to = static_cast<unsigned>(stage) * Shape::stage_bytes;
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::wgmma_bf16(sums, ptx::wgmma_operand_at(weights, to + step * dense_step_bytes),
                      ptx::wgmma_operand_at(tokens, to + step * token_step_bytes), step > 0 || add);
    }
    ptx::wgmma_commit();
    // The stage before this one is left as soon as its products are done, while these are under way.
    ptx::wgmma_wait_but<1>();
    leave();
    before = stage;
    if (++stage == Shape::stages) stage = 0, ++round;
  }
  // A chunk's sums, of one block at least.
  __device__ __forceinline__ void multiply(float (&sums)[Shape::columns / 2], int blocks) {
    multiply_block(sums, false);
#pragma unroll 1
    for (int block = 1; block < blocks; ++block) multiply_block(sums, true);
    ptx::wgmma_wait_all(sums);
    leave();
    before = -1;
  }
};

// Where a chunk's sums of a tile that several clusters share lie: this thread's first four.
template <class Shape>
__device__ __forceinline__ float4* many_sums_of(float4* sums, int tile, int chunk) {
  return sums +
         static_cast<std::size_t>(tile * dense_k_chunks + chunk) * (Shape::columns / 8 * group_threads) +
         threadIdx.x % group_threads;
}

template <int count>
__device__ __forceinline__ void add_to(float (&totals)[count], const float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) totals[i] = totals[i] + sums[i];
}
// What a chunk of no blocks has.
template <int count>
__device__ __forceinline__ void add_zero_to(float (&totals)[count]) {
#pragma unroll
  for (float& total : totals) total = total + 0.0f;
}

// The sums of a warpgroup.
template <class Shape>
struct ManySums {
  float chunk[Shape::columns / 2], totals[Shape::columns / 2];

  __device__ ManySums() {
#pragma unroll
    for (float& sum : chunk) sum = 0;
  }
};

// Adds the chunks' sums of a shared tile, the first of which are those of its first run. They are read past
// the first-level cache, which may hold what an earlier launch left there.
template <class Shape>
__device__ __forceinline__ void add_many_chunks(ManySums<Shape>& sums, float4* from, int tile, int first) {
#pragma unroll
  for (float& total : sums.totals) total = -0.0f;
#pragma unroll 1
  for (int chunk = first; chunk < dense_k_chunks; ++chunk) {
    const float4* const at = many_sums_of<Shape>(from, tile, chunk);
#pragma unroll
    for (int j = 0; j < Shape::columns / 2; j += 4) {
      const float4 four = __ldcg(at + j / 4 * group_threads);
      float* const to = &sums.chunk[j];
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
    add_to(sums.totals, sums.chunk);
  }
}

template <int count>
__device__ __forceinline__ void store_fours(float4* to, const float (&sums)[count], bool any) {
#pragma unroll
  for (int i = 0; i < count; i += 4) {
    to[i / 4 * group_threads] =
        any ? make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]) : make_float4(0, 0, 0, 0);
  }
}

// A run's totals; or none, if other clusters have yet to come with some of the tile's chunks. What a tile's
// first run has is one sum for the others, and each chunk of later ones another.
template <class Shape, class Output>
__device__ __forceinline__ bool multiply_run(const ManyParams<Output>& params, const ChunkRun& run,
                                             int shared_tile, int part, ManyBarriers<Shape>& barriers,
                                             ManyProducts<Shape>& products, ManySums<Shape>& sums) {
  const DenseShape& shape = params.shape;
#pragma unroll
  for (float& total : sums.totals) total = -0.0f;  // which added to anything leaves it as it is
  const int tile = (shared_tile * Shape::cluster + Member<Shape>().rank()) * block_tiles + part;
  if (run.whole() && shape.blocks() >= dense_k_chunks) {
#pragma unroll 1
    for (int chunk = 0; chunk < dense_k_chunks; ++chunk) {
      products.multiply(sums.chunk, shape.chunk_begin(chunk + 1) - shape.chunk_begin(chunk));
      add_to(sums.totals, sums.chunk);
    }
    return true;
  }
#pragma unroll 1
  for (int chunk = run.first; chunk < run.past; ++chunk) {
    const int blocks = shape.chunk_begin(chunk + 1) - shape.chunk_begin(chunk);
    if (blocks > 0) products.multiply(sums.chunk, blocks);
    if (run.first > 0) {
      store_fours(many_sums_of<Shape>(params.sums, tile, chunk), sums.chunk, blocks > 0);
    } else if (blocks > 0) {
      add_to(sums.totals, sums.chunk);
    } else {
      add_zero_to(sums.totals);
    }
  }
  if (run.whole()) return true;
  if (run.first == 0) store_fours(many_sums_of<Shape>(params.sums, tile, run.past - 1), sums.totals, true);
  int& is_last = barriers.is_last[part];
  ptx::named_barrier(1 + part, group_threads);  // the count below speaks for every thread's sums
  if (threadIdx.x % group_threads == 0) {
    const unsigned mine = static_cast<unsigned>(run.past - run.first);
    is_last = ptx::add_acquire_release(&params.arrived[tile], mine) + mine == dense_k_chunks;
    if (is_last) params.arrived[tile] = 0;  // all have come; for the next launch
  }
  ptx::named_barrier(1 + part, group_threads);  // others' sums are read after they have been seen counted
  if (!is_last) return false;
  add_many_chunks<Shape>(sums, params.sums, tile, params.deal.first_past(shared_tile) - 1);
  return true;
}

// Where a tile's totals in shared memory have one: row after row of a token, such that neither the lanes that
// leave 8 rows of 4 tokens nor those that take 4 rows each of one token meet in a bank.
__device__ __forceinline__ int total_at(int token, int row) {
  return token * dense_tile_rows + (row ^ token / 2 % 4 * 8);
}

// A tile's totals for this thread's warpgroup: where they lie in shared memory, and of which tile and tokens.
struct TileTotals {
  const float* at;
  int tile, first_token;
};

// Puts out a tile by its rows: a thread takes four of them and those 32 further on, of every 16th token, so
// that 8 lanes write 32 rows of a token in one piece. `come` returns when the totals are there and says
// whether they are to be put out; what they need is read meanwhile.
template <class Shape, class Output, class Come>
__device__ __forceinline__ void put_rows(const Output& output, int tokens, const TileTotals& totals,
                                         const Come& come) {
  constexpr int apart = 16, times = Shape::columns / apart;
  constexpr int ahead = 3;  // tokens whose needs are on their way
  const int thread = static_cast<int>(threadIdx.x) % group_threads, low = thread % 8 * 4;
  const int token = totals.first_token + thread / 8;
  const OfFours of_fours = output.of_fours(totals.tile, low);
  typename Output::OfTokenFour next[ahead]{};
  const auto read = [&](typename Output::OfTokenFour& of, int time) {
    const int at = token + time * apart;
    if (time < times && at < tokens) of = output.of_token_four(totals.tile, low, at);
  };
#pragma unroll
  for (int time = 0; time < ahead; ++time) read(next[time], time);
  if (!come()) return;
  const float* const fours = totals.at + total_at(thread / 8, low);
#pragma unroll 1
  for (int time = 0; time < times; ++time) {
    const typename Output::OfTokenFour of_token = next[0];
#pragma unroll
    for (int i = 0; i + 1 < ahead; ++i) next[i] = next[i + 1];
    read(next[ahead - 1], time + ahead);
    const int at = token + time * apart;
    if (at >= tokens) break;
    const float* const from = fours + time * (apart * dense_tile_rows);
    output.put_fours(of_fours, of_token, totals.tile, low, at, *reinterpret_cast<const float4*>(from),
                     *reinterpret_cast<const float4*>(from + 32));
  }
}

// Puts out a tile of which eight tokens of a row lie together: a warp takes 32 rows of eight tokens at a
// time.
template <class Shape, class Output, class Come>
__device__ __forceinline__ void put_columns(const Output& output, int tokens, const TileTotals& totals,
                                            const Come& come) {
  constexpr int groups = Shape::columns / token_group, groups_at_once = group_warps / 2;
  const int warp = static_cast<int>(threadIdx.x) / 32 % group_warps;
  const int row = warp % 2 * 32 + static_cast<int>(threadIdx.x) % 32;
  if (!come()) return;
#pragma unroll 1
  for (int group = warp / 2; group < groups; group += groups_at_once) {
    const int token = totals.first_token + group * token_group;
    if (token >= tokens) break;
    float eight[token_group];
#pragma unroll
    for (int i = 0; i < token_group; ++i) eight[i] = totals.at[total_at(group * token_group + i, row)];
    output.put_eight(totals.tile, row, token, tokens, eight);
  }
}

template <class Shape, class Output, class Come>
__device__ __forceinline__ void put_tile(const Output& output, int tokens, const TileTotals& totals,
                                         const Come& come) {
  if (output.takes_eights(totals.tile)) {
    put_columns<Shape>(output, tokens, totals, come);
  } else {
    put_rows<Shape>(output, tokens, totals, come);
  }
}

template <class Shape, class Output>
__device__ __forceinline__ TileTotals totals_of(const ManyParams<Output>& params, const float* totals_room,
                                                const ChunkRun& run, int part) {
  const Member<Shape> member;
  const Place place(params.deal, run.tile);
  return {totals_room + part * (Shape::totals_bytes / 4),
          (place.row_tile * Shape::cluster_rows + member.row) * block_tiles + part,
          (place.token_tile * Shape::cluster_tokens + member.token) * Shape::columns};
}

// A warpgroup of products leaves each run's totals in shared memory and goes on; those of its last run it
// puts out itself, while the other one does the same.
template <class Shape, class Output>
__device__ __forceinline__ void multiply_runs(const ManyParams<Output>& params, std::uint8_t* ring,
                                              float* totals_room, ManyBarriers<Shape>& barriers, int part) {
  ManyProducts<Shape> products(ring, &barriers, part);
  ManySums<Shape> sums;
  ChunkRuns runs(params.deal, static_cast<int>(blockIdx.x) / Shape::cluster);
  unsigned count = 0;
  ChunkRun run, next;
  for (bool more = runs.next(run); more; run = next, ++count) {
    more = runs.next(next);
    const bool all = multiply_run<Shape>(params, run, runs.shared_tile(run), part, barriers, products, sums);
    if (count > 0) ptx::mbarrier_wait(&barriers.taken[part], (count - 1) & 1);
    __syncwarp();
    // Totals that lie in the ring, which all have read by then.
    if constexpr (Shape::lone) ptx::named_barrier(1 + block_tiles, block_tiles * group_threads);
    if (all) {
      float* const to =
          totals_room + part * (Shape::totals_bytes / 4) + total_at(token_of_thread(0), low_row_of_thread());
#pragma unroll
      for (int i = 0; i < Shape::columns / 4; ++i) {
        const int sum = i / 2 * 4 + i % 2, at = (i / 2 * 8 + i % 2) * dense_tile_rows;
        to[at] = sums.totals[sum];
        to[at + 32] = sums.totals[sum + 2];
      }
    }
    if (more) {
      // By one thread; those who read it wait for all four warps' arrivals.
      if (threadIdx.x % group_threads == 0) barriers.is_whole[part] = all;
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&barriers.left[part]);
    } else if (all) {
      const TileTotals totals = totals_of<Shape>(params, totals_room, run, part);
      if (totals.tile < params.shape.tiles()) {
        put_tile<Shape>(params.output, params.tokens, totals, [&] {
          ptx::named_barrier(1 + part, group_threads);  // all of its totals are there
          return true;
        });
      }
    }
  }
}

// The warpgroup that puts out what those of products leave, while they are at their next run.
template <class Shape, class Output>
__device__ __forceinline__ void end_runs(const ManyParams<Output>& params, const float* totals_room,
                                         ManyBarriers<Shape>& barriers) {
  if constexpr (Shape::lone) return;  // no run has another behind it
  ChunkRuns runs(params.deal, static_cast<int>(blockIdx.x) / Shape::cluster);
  unsigned count = 0;
  ChunkRun run, next;
  for (bool more = runs.next(run) && runs.next(next); more; run = next, more = runs.next(next), ++count) {
#pragma unroll 1
    for (int part = 0; part < block_tiles; ++part) {
      const TileTotals totals = totals_of<Shape>(params, totals_room, run, part);
      const auto come = [&] {
        ptx::mbarrier_wait(&barriers.left[part], count & 1);
        __syncwarp();
        return barriers.is_whole[part] != 0;
      };
      if (totals.tile < params.shape.tiles()) {
        put_tile<Shape>(params.output, params.tokens, totals, come);
      } else {
        come();
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&barriers.taken[part]);
    }
  }
}

template <class Shape, class Output>
__global__ void __launch_bounds__(many_threads, 1)
    sm90_bf16_linear_many(const __grid_constant__ ManyParams<Output> params) {
  __shared__ ManyBarriers<Shape> barriers;
  std::uint8_t* const ring = ptx::dynamic_shared();
  float* const totals_room = reinterpret_cast<float*>(ring + Shape::totals_at);
  const int group = ptx::warp_of_block() / group_warps;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::stages; ++stage) {
      ptx::mbarrier_init(&barriers.full[stage], block_tiles + stage_boxes);
      ptx::mbarrier_init(&barriers.empty[stage],
                         product_warps * (Shape::cluster_rows + Shape::cluster_tokens - 1));
    }
    for (int part = 0; part < block_tiles; ++part) {
      ptx::mbarrier_init(&barriers.left[part], group_warps);
      ptx::mbarrier_init(&barriers.taken[part], group_warps);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_barrier();  // the barriers are ready
  ptx::grid_launch_dependents();
  if (group < block_tiles) {
    ptx::take_registers<Shape::product_registers>();
    ptx::grid_dependency_wait();
    multiply_runs<Shape>(params, ring, totals_room, barriers, group);
  } else if (group == block_tiles) {
    ptx::keep_registers<Shape::end_registers>();
    ptx::grid_dependency_wait();
    end_runs<Shape>(params, totals_room, barriers);
  } else {
    ptx::keep_registers<32>();
    if (threadIdx.x % 32 == 0)
      fetch_runs<Shape>(params, ring, &barriers, static_cast<int>(threadIdx.x) / 32 % group_warps);
  }
  ptx::cluster_barrier();  // nobody reaches into a block that has ended
}

template <class Shape, class Output>
void launch_many(const DenseRun& run, const Deal& deal, const Output& output, cudaStream_t stream) {
  const auto kernel = sm90_bf16_linear_many<Shape, Output>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes));
  const DenseShape& shape = run.weight.shape;
  launch_kernel(
      {.blocks = dim3(static_cast<unsigned>(deal.clusters * Shape::cluster)),
       .threads = many_threads,
       .shared_bytes = Shape::shared_bytes,
       .stream = stream,
       .overlaps = true,
       .cluster = Shape::cluster},
      kernel,
      ManyParams<Output>{.x = ptx::box_map({.matrix = run.x.data,
                                            .block_bytes = token_block_bytes,
                                            .blocks = shape.blocks(),
                                            .rows = (run.x.tokens + token_group - 1) / token_group,
                                            .box_rows = Shape::columns / token_group / stage_boxes}),
                         .weights = run.weight.data,
                         .shape = shape,
                         .tokens = run.x.tokens,
                         .deal = deal,
                         .sums = reinterpret_cast<float4*>(run.workspace.many_sums),
                         .arrived = run.workspace.arrived,
                         .stuck = run.workspace.stuck,
                         .output = output});
}

template <class Output>
using LaunchMany = void (*)(const DenseRun&, const Deal&, const Output&, cudaStream_t);

// As dense_many_shapes has them.
template <class Output, std::size_t... index>
constexpr std::array<LaunchMany<Output>, sizeof...(index)> launches_of(std::index_sequence<index...>) {
  return {launch_many<ManyShape<index>, Output>...};
}

}  // namespace

template <class Output>
void run_many(const DenseRun& run, const Output& output, cudaStream_t stream) {
  static constexpr auto launches = launches_of<Output>(std::make_index_sequence<dense_many_shapes.size()>());
  const DenseManyChoice choice = cheapest_deal({run.weight.shape, run.x.tokens, run.blocks});
  launches[choice.shape](run, choice.deal, output, stream);
}

template void run_many(const DenseRun&, const RowsOutput&, cudaStream_t);
template void run_many(const DenseRun&, const QkvOutput&, cudaStream_t);

}  // namespace nibble
