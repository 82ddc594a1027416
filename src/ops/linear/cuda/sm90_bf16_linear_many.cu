// linear for many tokens, with the bits of the path for few (dense_tiles.h has the order of additions).
//
// A block computes 128 rows x 128 tokens at a time: a warpgroup each of two tiles of 64 rows, and a warp that
// fetches. A k64 block of it is 2.1 MFLOP, 512 cycles of the tensor cores, and 32 KB from the second-level
// cache, which gives some 40 bytes a cycle. The sums of a chunk and those of the chunks before it take 64
// registers each, which is why a tile is no larger. Bound: 790 TFLOP/s; q, k and v of 8,192 tokens are 242
// GFLOP, 306 us.
//
// A block stays on its multiprocessor. As many tiles as there are blocks are one round; neighbours among them
// share weights or tokens, which the second-level cache then has. What is left of the last round, if it is
// little, is dealt in units of (tile, chunk) in contiguous ranges first of all: each chunk's sums of a tile
// that several blocks share go to memory, and whichever block comes last adds them, in order of the chunks
// like the rest. So rounds and ranges move bytes in time but no bit, and no block waits for another.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_map.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/ptx/warpgroup_registers.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int block_tiles = 2;  // of 64 rows, a warpgroup each
constexpr int product_warps = block_tiles * 4;
constexpr int product_threads = product_warps * 32;
constexpr int many_threads = product_threads + 128;  // a whole warpgroup leaves its registers to the others
constexpr int tokens_at = block_tiles * dense_block_bytes;  // in a stage
static_assert(token_block_bytes == ptx::box_bytes, "a box's row is a group of tokens");

template <int columns>
constexpr int many_stage_bytes = tokens_at + columns / token_group* token_block_bytes;
template <int columns>
constexpr int many_stages = 200 * 1024 / many_stage_bytes<columns>;

// Which tiles of the product a block works on.
struct Deal {
  int row_tiles, token_tiles;  // of block_tiles * 64 rows, of `columns` tokens
  int rounds;                  // of one whole tile a block
  int shared_tiles;            // the others, dealt in units

  __device__ int units() const { return shared_tiles * dense_k_chunks; }
  __device__ int border(int block) const {
    return static_cast<int>(static_cast<long long>(units()) * block / gridDim.x);
  }
  __device__ int owner(int unit) const {  // the block whose range holds it
    return static_cast<int>(((unit + 1LL) * gridDim.x - 1) / units());
  }
};

// The place of tile number `index`: eight tiles of tokens beside each other, rows after rows.
struct Place {
  int row_tile, token_tile;

  __device__ Place(const Deal& deal, int index) {
    constexpr int beside = 8;
    const int band = index / (beside * deal.row_tiles), in_band = index - band * beside * deal.row_tiles;
    const int width = min(beside, deal.token_tiles - band * beside);
    row_tile = in_band / width;
    token_tile = band * beside + in_band % width;
  }
};

// A run of chunks of one tile.
struct Run {
  int tile, first, past;

  __device__ bool whole() const { return past - first == dense_k_chunks; }
};

// A block's runs, one after the other.
struct Runs {
  const Deal& deal;
  int unit, end_unit, round = 0;

  __device__ explicit Runs(const Deal& of)
      : deal(of),
        unit(of.shared_tiles == 0 ? 0 : of.border(static_cast<int>(blockIdx.x))),
        end_unit(of.shared_tiles == 0 ? 0 : of.border(static_cast<int>(blockIdx.x) + 1)) {}
  __device__ bool next(Run& run) {
    if (unit < end_unit) {
      const int first = unit % dense_k_chunks, count = min(dense_k_chunks - first, end_unit - unit);
      run = {deal.rounds * static_cast<int>(gridDim.x) + unit / dense_k_chunks, first, first + count};
      unit += count;
      return true;
    }
    if (round == deal.rounds) return false;
    run = {round++ * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x), 0, dense_k_chunks};
    return run.tile < deal.row_tiles * deal.token_tiles;
  }
};

template <class Output>
struct ManyParams {
  ptx::TensorMap x;  // groups of tokens
  const std::uint8_t* weights;
  DenseShape shape;
  int tokens;
  Deal deal;
  float4* sums;            // [blocks, dense_k_chunks, columns / 8, product_threads]
  std::uint32_t* arrived;  // [blocks]
  Output output;
};

// The fetching warp: lane 0 the tokens and the first tile of weights, lane 1 the second.
template <int columns, class Output>
__device__ __forceinline__ void fetch_runs(const ManyParams<Output>& params, std::uint8_t* ring,
                                           std::uint64_t* full, std::uint64_t* empty) {
  constexpr int stages = many_stages<columns>, stage_bytes = many_stage_bytes<columns>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const DenseShape& shape = params.shape;
  int stage = 0;
  unsigned round = 0;  // of the ring
  Runs runs(params.deal);
  for (Run run; runs.next(run);) {
    const Place place(params.deal, run.tile);
    const int tiles = min(block_tiles, shape.tiles() - place.row_tile * block_tiles);
    const std::uint8_t* const weights =
        params.weights +
        static_cast<std::size_t>(place.row_tile * block_tiles + min(lane, tiles - 1)) * shape.tile_bytes();
    const int end = shape.chunk_begin(run.past);
    for (int block = shape.chunk_begin(run.first); block < end; ++block) {
      if (round > 0) ptx::mbarrier_wait(&empty[stage], (round - 1) & 1);
      std::uint8_t* const to = ring + stage * stage_bytes;
      if (lane == 0) {
        ptx::mbarrier_arrive_expecting(&full[stage],
                                       static_cast<std::uint32_t>(tiles * dense_block_bytes +
                                                                  columns / token_group * token_block_bytes));
        ptx::box_copy_to_shared(to + tokens_at, params.x, block, place.token_tile * (columns / token_group),
                                &full[stage]);
      }
      __syncwarp();  // bytes are announced before any come
      if (lane < tiles) {
        ptx::bulk_copy_to_shared(to + lane * dense_block_bytes,
                                 weights + static_cast<std::size_t>(block) * dense_block_bytes,
                                 dense_block_bytes, &full[stage]);
      }
      if (++stage == stages) stage = 0, ++round;
    }
  }
}

// A warpgroup's way through the ring.
template <int columns>
struct ManyProducts {
  std::uint8_t* ring;
  std::uint64_t *full, *empty;
  int part;  // the warpgroup
  int stage = 0;
  unsigned round = 0;

  // A chunk's sums from zero.
  __device__ __forceinline__ void multiply(float (&sums)[columns / 2], int blocks) {
    constexpr int stages = many_stages<columns>;
    const bool speaks = threadIdx.x % 32 == 0;  // for its warp, whose lanes wait together
#pragma unroll
    for (float& sum : sums) sum = 0;
    int before = -1;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      ptx::mbarrier_wait(&full[stage], round & 1);
      __syncwarp();
      const std::uint8_t* const weights = ring + stage * many_stage_bytes<columns> + part * dense_block_bytes;
      const std::uint8_t* const tokens = ring + stage * many_stage_bytes<columns> + tokens_at;
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::wgmma_bf16(sums, ptx::wgmma_operand<256>(weights + step * dense_step_bytes),
                        ptx::wgmma_operand<token_block_bytes>(tokens + step * token_step_bytes), true);
      }
      ptx::wgmma_commit();
      // The stage before this one is left as soon as its products are done, while these are under way.
      ptx::wgmma_wait_but_last();
      if (speaks && before >= 0) ptx::mbarrier_arrive(&empty[before]);
      __syncwarp();
      before = stage;
      if (++stage == stages) stage = 0, ++round;
    }
    ptx::wgmma_wait(sums);
    if (speaks && before >= 0) ptx::mbarrier_arrive(&empty[before]);
    __syncwarp();
  }
};

// Where a chunk's sums of a tile that several blocks share lie: this thread's first four.
template <int columns>
__device__ __forceinline__ float4* many_sums_of(float4* sums, int owner, int chunk) {
  return sums + static_cast<std::size_t>(owner * dense_k_chunks + chunk) * (columns / 8 * product_threads) +
         threadIdx.x;
}

// Read past the first-level cache, which may hold what an earlier launch left there.
template <int columns>
__device__ __forceinline__ void add_many_chunks(float (&totals)[columns / 2], float4* sums, int owner) {
#pragma unroll 1
  for (int chunk = 0; chunk < dense_k_chunks; ++chunk) {
    const float4* at = many_sums_of<columns>(sums, owner, chunk);
#pragma unroll
    for (int i = 0; i < columns / 8; ++i) {
      const float4 four = __ldcg(at + i * product_threads);
      totals[4 * i] = chunk == 0 ? four.x : totals[4 * i] + four.x;
      totals[4 * i + 1] = chunk == 0 ? four.y : totals[4 * i + 1] + four.y;
      totals[4 * i + 2] = chunk == 0 ? four.z : totals[4 * i + 2] + four.z;
      totals[4 * i + 3] = chunk == 0 ? four.w : totals[4 * i + 3] + four.w;
    }
  }
}

template <int columns, class Output>
__device__ __forceinline__ void multiply_runs(const ManyParams<Output>& params,
                                              ManyProducts<columns> products, int* is_last) {
  const DenseShape& shape = params.shape;
  Runs runs(params.deal);
  for (Run run; runs.next(run);) {
    const Place place(params.deal, run.tile);
    const int tile = place.row_tile * block_tiles + products.part;
    const int unit = (run.tile - params.deal.rounds * static_cast<int>(gridDim.x)) * dense_k_chunks;
    const int owner = run.whole() ? 0 : params.deal.owner(unit);
    float totals[columns / 2];
#pragma unroll 1
    for (int chunk = run.first; chunk < run.past; ++chunk) {
      float sums[columns / 2];
      products.multiply(sums, shape.chunk_begin(chunk + 1) - shape.chunk_begin(chunk));
      if (run.whole()) {
#pragma unroll
        for (int i = 0; i < columns / 2; ++i) totals[i] = chunk == 0 ? sums[i] : totals[i] + sums[i];
      } else {
        float4* const to = many_sums_of<columns>(params.sums, owner, chunk);
#pragma unroll
        for (int i = 0; i < columns / 8; ++i)
          to[i * product_threads] =
              make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
      }
    }
    if (!run.whole()) {
      ptx::named_barrier(1, product_threads);  // the count below speaks for every thread's sums
      if (threadIdx.x == 0) {
        const unsigned mine = static_cast<unsigned>(run.past - run.first);
        *is_last = ptx::add_acquire_release(&params.arrived[owner], mine) + mine == dense_k_chunks;
        if (*is_last) params.arrived[owner] = 0;  // all have come; for the next launch
      }
      ptx::named_barrier(1, product_threads);  // others' sums are read after thread 0 has seen them counted
      if (!*is_last) continue;
      add_many_chunks<columns>(totals, params.sums, owner);
    }
    if (tile < shape.tiles())
      put_out<columns>(params.output, tile, place.token_tile * columns, params.tokens, totals);
  }
}

template <int columns, class Output>
__global__ void __launch_bounds__(many_threads, 1)
    sm90_bf16_linear_many(const __grid_constant__ ManyParams<Output> params) {
  constexpr int stages = many_stages<columns>;
  __shared__ std::uint64_t full[stages], empty[stages];
  __shared__ int is_last;
  std::uint8_t* const ring = ptx::dynamic_shared();
  const int warp = ptx::warp_of_block();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(&full[stage], 1);
      ptx::mbarrier_init(&empty[stage], product_warps);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  if (warp >= product_warps) {
    ptx::keep_registers<24>();
    if (warp == product_warps) fetch_runs<columns>(params, ring, full, empty);
  } else {
    ptx::take_registers<240>();
    multiply_runs<columns>(params, ManyProducts<columns>{ring, full, empty, warp / 4}, &is_last);
  }
}

// The last round is dealt in units if it would leave half of the machine idle.
Deal deal_of(const DenseRun& run, int columns) {
  const int row_tiles = (run.weight.shape.tiles() + block_tiles - 1) / block_tiles;
  const int token_tiles = (run.x.tokens + columns - 1) / columns, blocks = run.blocks;
  const int tiles = row_tiles * token_tiles, rounds = tiles / blocks, left = tiles - rounds * blocks;
  const bool shares = left > 0 && left * 2 <= blocks;
  return {row_tiles, token_tiles, shares || left == 0 ? rounds : rounds + 1, shares ? left : 0};
}

template <int columns, class Output>
void launch_many(const DenseRun& run, const Output& output, cudaStream_t stream) {
  constexpr int shared_bytes = many_stages<columns> * many_stage_bytes<columns>;
  const auto kernel = sm90_bf16_linear_many<columns, Output>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  const DenseShape& shape = run.weight.shape;
  launch_kernel(
      {.blocks = dim3(static_cast<unsigned>(run.blocks)),
       .threads = many_threads,
       .shared_bytes = shared_bytes,
       .stream = stream,
       .overlaps = true},
      kernel,
      ManyParams<Output>{
          .x = ptx::box_map(run.x.data, static_cast<std::size_t>(shape.blocks()) * token_block_bytes,
                            (run.x.tokens + token_group - 1) / token_group, columns / token_group),
          .weights = run.weight.data,
          .shape = shape,
          .tokens = run.x.tokens,
          .deal = deal_of(run, columns),
          .sums = reinterpret_cast<float4*>(run.workspace.many_sums),
          .arrived = run.workspace.arrived,
          .output = output});
}

}  // namespace

template <class Output>
void run_many(const DenseRun& run, const Output& output, cudaStream_t stream) {
  launch_many<linear_many_columns>(run, output, stream);
}

template void run_many(const DenseRun&, const RowsOutput&, cudaStream_t);
template void run_many(const DenseRun&, const QkvOutput&, cudaStream_t);

}  // namespace nibble
