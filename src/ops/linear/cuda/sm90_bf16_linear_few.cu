// linear for few tokens: weights stream once through a ring in shared memory and are multiplied from there,
// tokens as the 8 to 32 columns of wgmma. For what it adds in which order see dense_tiles.h.
//
// Bytes: 2 a weight, once. For gpt-oss at 4,650 GB/s: q, k and v 29.5 MB, 6.3 us; attention's output 23.6
// MB, 5.1 us; lm_head 1,158 MB, 249 us. Each block reads the activations of its chunks again, columns / 64
// of the bytes of the weights, from the second-level cache. FLOPs: 2 a weight and column, 128 cycles of the
// tensor cores for every 16 KB stage of 32 columns, which takes some 820 cycles to come. More tokens than 32
// are taken by clusters of blocks (sm90_bf16_linear_some.cu), where K is not too long for it.
//
// Work is dealt in units of (tile of 64 rows, chunk of K), in contiguous ranges as equal as they get: gpt-oss
// has 640 and 360 units for 132 multiprocessors. The block that has a tile's first chunk adds the chunks up,
// in their order: so ranges move bytes in time but no bit. The tile is the last of its range, while others
// have the tile's later chunks at the beginning of theirs and leave their sums in memory, where mostly they
// have come when they are asked for. What is left says so itself: a place holds bits that no sum has until
// then, so nobody counts and nothing is ordered. Of more than 16 tokens, whose sums a thread cannot have in
// flight all at once, they come through the ring behind the last weights. Blocks wait for blocks behind them;
// all of a grid are resident once the grids before it have ended.
//
// One warp fetches weights, another activations; a warpgroup multiplies. The ring is filled with weights
// before the grids ahead have ended, but a few stages at a time: copies that wait for each other in the
// memory's queues hold up the few bytes those grids are waiting for (half a microsecond of a norm's loads).
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/absent.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "ops/linear/cuda/dense_ring.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int product_threads = 128;
constexpr int few_threads = product_threads + 64;
constexpr int few_columns = 32;                                      // at most
constexpr int stage_group_bytes = stage_blocks * token_block_bytes;  // of 8 tokens

// On their way together before the first products: the copies of q, k and v hold up a norm's few bytes.
template <class Output>
constexpr int early_stages = 3;
template <>
constexpr int early_stages<QkvOutput> = 2;
// Of a ring, however much room there is. Beside one more of o's the router's blocks would find no place.
constexpr int most_stages = 11;
template <class Output>
constexpr int longest_ring = 10;
template <>
constexpr int longest_ring<QkvOutput> = most_stages;
template <int columns>
constexpr int few_stage_bytes = stage_weight_bytes + columns / token_group* stage_group_bytes;

// The stages of the ring: as much as there is beside a block of the launch before or behind, since the
// product of a step's few rows is a matter of how many weights there are when its activations come.
template <int columns, class Output>
int ring_stages(int tokens, int beside) {
  const int room = share_of(tokens).bytes - beside - shared_of_norm - 2 * shared_of_block;
  return std::min(room / few_stage_bytes<columns>, longest_ring<Output>);
}

// Sums of a chunk of a tile as blocks leave them, and how many of them a stage of the ring holds.
template <int columns>
constexpr int chunk_quads = columns / 8 * product_threads;
template <int columns>
constexpr int chunk_sum_bytes = chunk_quads<columns>* static_cast<int>(sizeof(float4));
template <int columns>
constexpr int stage_sums = few_stage_bytes<columns> / chunk_sum_bytes<columns>;

// Whether sums that others left are brought through the ring behind the weights. Of few tokens a thread has
// all of them in flight at once, and that is the shorter way.
template <int columns>
constexpr bool brings_sums = columns > 16;
constexpr int least_stages = 3;  // as many sums as there can be have one each
static_assert((dense_k_chunks - 1) <= least_stages * stage_sums<few_columns>);

template <class Output>
struct FewParams {
  const std::uint8_t* weights;
  const std::uint8_t* x;
  DenseShape shape;
  int first_token, tokens;  // those of this launch end with tokens
  int stages;               // of the ring
  float4* sums;             // [blocks, dense_k_chunks, columns / 8, product_threads]
  Output output;
};

// Units in order of (tile, chunk); block b has those from border(b) on.
struct Units {
  unsigned all;  // times the blocks they fit 32 bits, whose divisions are a fifth as long
  __device__ int border(unsigned block) const { return static_cast<int>(all * block / gridDim.x); }
  __device__ int owner(int unit) const {  // the block whose range holds it
    return static_cast<int>(((static_cast<unsigned>(unit) + 1) * gridDim.x - 1) / all);
  }
};

// The first chunk of the last tile of units [begin, end) that other blocks leave sums of, if that tile's
// first chunk is among the units; or dense_k_chunks.
__device__ __forceinline__ int first_left_chunk(int begin, int end) {
  const int tile = (end - 1) / dense_k_chunks;
  return begin < end && tile * dense_k_chunks >= begin ? end - tile * dense_k_chunks : dense_k_chunks;
}

// The stages that a range of units takes, one after the other.
struct Pieces {
  const DenseShape& shape;
  int unit, end_unit;
  int block = 0, end_block = 0;

  __device__ Pieces(const DenseShape& of, int begin, int end) : shape(of), unit(begin), end_unit(end) {
    if (unit < end_unit) enter();
  }
  __device__ void enter() {
    block = shape.chunk_begin(unit % dense_k_chunks);
    end_block = shape.chunk_begin(unit % dense_k_chunks + 1);
    while (block == end_block && ++unit < end_unit) {  // chunks of a short K may be empty
      block = shape.chunk_begin(unit % dense_k_chunks);
      end_block = shape.chunk_begin(unit % dense_k_chunks + 1);
    }
  }
  __device__ bool more() const { return unit < end_unit; }
  __device__ int tile() const { return unit / dense_k_chunks; }
  __device__ int count() const { return min(stage_blocks, end_block - block); }
  __device__ void next() {
    block += count();
    if (block == end_block && ++unit < end_unit) enter();
  }
};

// What the warps of a block tell each other of the ring's stages.
struct RingBarriers {
  std::uint64_t weights[most_stages], tokens[most_stages];  // that have come
  std::uint64_t empty[most_stages];

  __device__ void init(int stages) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(&weights[stage], 1);
      ptx::mbarrier_init(&tokens[stage], 1);
      ptx::mbarrier_init(&empty[stage], product_threads / 32);
    }
    ptx::fence_mbarrier_init();
  }
};

// Runs fetch(piece, stage, index) for each stage of the range, when its place in the ring is free.
template <class Fetch>
__device__ __forceinline__ RingTurn for_each_stage(const DenseShape& shape, RingBarriers& ring, int stages,
                                                   int begin, int end, const Fetch& fetch) {
  RingTurn turn;
  int index = 0;
  for (Pieces piece(shape, begin, end); piece.more(); piece.next(), ++index, turn.next(stages)) {
    turn.wait_empty(ring.empty);
    fetch(piece, turn.stage, index);
  }
  return turn;
}

// Where a chunk's sums of a tile whose chunk 0 is block `owner`'s lie.
template <int columns>
__device__ __forceinline__ float4* sums_of(float4* sums, int owner, int chunk) {
  return sums + (owner * dense_k_chunks + chunk) * chunk_quads<columns>;
}

// A stage's weights.
template <int columns, class Output>
__device__ __forceinline__ void order_weights(const FewParams<Output>& params, std::uint8_t* ring,
                                              RingBarriers& barriers, const Pieces& piece, int stage) {
  const std::uint32_t bytes = static_cast<std::uint32_t>(piece.count() * dense_block_bytes);
  ptx::mbarrier_arrive_expecting(&barriers.weights[stage], bytes);
  ptx::bulk_copy_once_to_shared(ring + stage * few_stage_bytes<columns>,
                                params.weights +
                                    static_cast<std::size_t>(piece.tile()) * params.shape.tile_bytes() +
                                    static_cast<std::size_t>(piece.block) * dense_block_bytes,
                                bytes, &barriers.weights[stage]);
}

// By one lane, all but the first stage, which is on its way. What others have left comes behind the weights,
// so that it is near when the products are done.
template <int columns, class Output>
__device__ __forceinline__ void fetch_weights(const FewParams<Output>& params, std::uint8_t* ring,
                                              RingBarriers& barriers, int begin, int end) {
  const auto fetch = [&](const Pieces& piece, int stage, int index) {
    if (index == 0) return;
    if (index >= early_stages<Output> && index < params.stages)
      ptx::mbarrier_wait(&barriers.weights[index - early_stages<Output>], 0);
    order_weights<columns>(params, ring, barriers, piece, stage);
  };
  RingTurn turn = for_each_stage(params.shape, barriers, params.stages, begin, end, fetch);
  if constexpr (!brings_sums<columns>) return;
  ptx::grid_dependency_wait();  // until then sums are another launch's
  for (int chunk = first_left_chunk(begin, end); chunk < dense_k_chunks; chunk += stage_sums<columns>) {
    turn.wait_empty(barriers.empty);
    const int count = min(stage_sums<columns>, dense_k_chunks - chunk);
    const std::uint32_t bytes = static_cast<std::uint32_t>(count * chunk_sum_bytes<columns>);
    ptx::mbarrier_arrive_expecting(&barriers.weights[turn.stage], bytes);
    ptx::bulk_copy_to_shared(ring + turn.stage * few_stage_bytes<columns>,
                             sums_of<columns>(params.sums, static_cast<int>(blockIdx.x), chunk), bytes,
                             &barriers.weights[turn.stage]);
    turn.next(params.stages);
  }
}

// By a warp, lane i of which brings the i-th group of tokens.
template <int columns, class Output>
__device__ __forceinline__ void fetch_tokens(const FewParams<Output>& params, std::uint8_t* ring,
                                             RingBarriers& barriers, int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const DenseShape& shape = params.shape;
  const int groups =
      min(columns / token_group, (params.tokens - params.first_token + token_group - 1) / token_group);
  const std::uint8_t* const x =
      params.x + shape.token_bytes(params.first_token) +
      static_cast<std::size_t>(lane) * static_cast<std::size_t>(shape.blocks()) * token_block_bytes;
  ptx::grid_dependency_wait();
  for_each_stage(shape, barriers, params.stages, begin, end, [&](const Pieces& piece, int stage, int) {
    const int bytes = piece.count() * token_block_bytes;
    if (lane == 0)
      ptx::mbarrier_arrive_expecting(&barriers.tokens[stage], static_cast<std::uint32_t>(groups * bytes));
    __syncwarp();  // bytes are announced before any come
    if (lane < groups) {
      ptx::bulk_copy_to_shared(
          ring + stage * few_stage_bytes<columns> + stage_weight_bytes + lane * stage_group_bytes,
          x + static_cast<std::size_t>(piece.block) * token_block_bytes, static_cast<std::uint32_t>(bytes),
          &barriers.tokens[stage]);
    }
  });
}

// The multiplying warpgroup's way through the ring.
template <int columns>
struct Products {
  std::uint8_t* ring;
  RingBarriers& barriers;
  int stages;
  RingTurn turn;

  // A chunk's sums from zero.
  __device__ __forceinline__ void multiply(float (&sums)[columns / 2], int blocks) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    int before = -1;
#pragma unroll 1
    for (int left = blocks; left > 0; left -= stage_blocks) {
      ptx::mbarrier_wait(&barriers.weights[turn.stage], turn.round & 1);
      ptx::mbarrier_wait(&barriers.tokens[turn.stage], turn.round & 1);
      __syncwarp();
      const std::uint8_t* const weights = ring + turn.stage * few_stage_bytes<columns>;
      multiply_stage<stage_group_bytes>(sums, weights, weights + stage_weight_bytes, left);
      leave_stage(barriers.empty, before);
      before = turn.stage;
      turn.next(stages);
    }
    ptx::wgmma_wait(sums);
    leave_stage(barriers.empty, before);
  }
};

// A chunk's sums for the block that has the tile's first chunk.
template <int columns>
__device__ __forceinline__ void leave_sums(float4* place, const float (&sums)[columns / 2]) {
#pragma unroll
  for (int i = 0; i < columns / 8; ++i) {
    ptx::store_relaxed(place + i * product_threads,
                       make_float4(but_absent(sums[4 * i]), but_absent(sums[4 * i + 1]),
                                   but_absent(sums[4 * i + 2]), but_absent(sums[4 * i + 3])));
  }
}

// Adds the sums of chunks [from, 8) of the block's last tile, which other blocks have left and fetch_weights
// has brought, or will leave, and makes their places absent again for the next launch.
template <int columns>
__device__ __forceinline__ void add_brought_sums(float (&totals)[columns / 2], float4* sums,
                                                 Products<columns>& products, int from) {
  RingTurn& turn = products.turn;
  const float nothing = absent_word();
  int in_stage = 0;
#pragma unroll 1
  for (int chunk = from; chunk < dense_k_chunks; ++chunk) {
    if (in_stage == 0) ptx::mbarrier_wait(&products.barriers.weights[turn.stage], turn.round & 1);
    const float4* const brought =
        reinterpret_cast<const float4*>(products.ring + turn.stage * few_stage_bytes<columns>) +
        in_stage * chunk_quads<columns> + threadIdx.x;
    float4* const at = sums_of<columns>(sums, static_cast<int>(blockIdx.x), chunk) + threadIdx.x;
    float4 left[columns / 8];
    bool absent = false;
#pragma unroll
    for (int i = 0; i < columns / 8; ++i) {
      left[i] = brought[i * product_threads];
      absent = absent || is_absent(left[i]);
    }
    // All lanes go around together: what diverges here would have later products one by one.
    for (unsigned polls = 0; __ballot_sync(0xffffffffu, absent) != 0; ++polls) {
      if (polls == absent_give_up) __trap();
      absent = false;
#pragma unroll
      for (int i = 0; i < columns / 8; ++i) {
        left[i] = ptx::load_relaxed(at + i * product_threads);
        absent = absent || is_absent(left[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < columns / 8; ++i) {
      ptx::store_relaxed(at + i * product_threads, make_float4(nothing, nothing, nothing, nothing));
      float* const four = totals + 4 * i;
      four[0] += left[i].x, four[1] += left[i].y, four[2] += left[i].z, four[3] += left[i].w;
    }
    if (++in_stage == stage_sums<columns>) {
      in_stage = 0;
      turn.next(products.stages);
    }
  }
}

// The same from memory, for few tokens: all of a thread's sums are asked for together.
template <int columns>
__device__ __forceinline__ void add_left_sums(float (&totals)[columns / 2], float4* sums, int from) {
  const float nothing = absent_word();
  const auto place = [&](int chunk, int group) {
    return sums_of<columns>(sums, static_cast<int>(blockIdx.x), chunk) + threadIdx.x +
           group * product_threads;
  };
  float4 left[columns / 8][dense_k_chunks];
#pragma unroll
  for (int i = 0; i < columns / 8; ++i) {
#pragma unroll
    for (int chunk = 1; chunk < dense_k_chunks; ++chunk) {
      if (chunk >= from) left[i][chunk] = ptx::load_relaxed(place(chunk, i));
    }
  }
#pragma unroll
  for (int i = 0; i < columns / 8; ++i) {
    float* const four = totals + 4 * i;
#pragma unroll
    for (int chunk = 1; chunk < dense_k_chunks; ++chunk) {
      if (chunk < from) continue;
      // All lanes go around together: what diverges here would have later products one by one.
      for (unsigned polls = 0; __ballot_sync(0xffffffffu, is_absent(left[i][chunk])) != 0; ++polls) {
        if (polls == absent_give_up) __trap();
        left[i][chunk] = ptx::load_relaxed(place(chunk, i));
      }
      ptx::store_relaxed(place(chunk, i), make_float4(nothing, nothing, nothing, nothing));
      four[0] += left[i][chunk].x, four[1] += left[i][chunk].y;
      four[2] += left[i][chunk].z, four[3] += left[i][chunk].w;
    }
  }
}

template <int columns, class Output>
__device__ __forceinline__ void multiply_units(const FewParams<Output>& params, Products<columns> products,
                                               const Units& units, int begin, int end) {
  const DenseShape& shape = params.shape;
  float totals[columns / 2];
#pragma unroll
  for (float& total : totals) total = 0;
#pragma unroll 1
  for (int unit = begin; unit < end;) {
    const int tile = unit / dense_k_chunks, first = unit % dense_k_chunks;
    const int past = min(end - tile * dense_k_chunks, dense_k_chunks);
    // Fetched early, with the tile's products before their use.
    OutputNeeds<columns, Output> needs;
    if (first == 0) needs.read(params.output, tile, params.first_token, params.tokens);
    const int owner = units.owner(tile * dense_k_chunks);
#pragma unroll 1
    for (int chunk = first; chunk < past; ++chunk, ++unit) {
      float sums[columns / 2];
      products.multiply(sums, shape.chunk_begin(chunk + 1) - shape.chunk_begin(chunk));
      if (first > 0) {
        leave_sums<columns>(sums_of<columns>(params.sums, owner, chunk) + threadIdx.x, sums);
      } else {
#pragma unroll
        for (int i = 0; i < columns / 2; ++i) totals[i] = chunk == 0 ? sums[i] : totals[i] + sums[i];
      }
    }
    if (first > 0) continue;
    if (past < dense_k_chunks) {
      if constexpr (brings_sums<columns>) {
        add_brought_sums<columns>(totals, params.sums, products, past);
      } else {
        add_left_sums<columns>(totals, params.sums, past);
      }
    }
    put_out<columns>(params.output, tile, params.first_token, params.tokens, totals, needs);
  }
}

// Registers a thread may have. Of one row's columns, so many that a quarter of a multiprocessor, 512 a lane,
// holds two of these six warps and of attention three of nine, of 96, or two of eight, of 128.
template <int columns>
constexpr int most_registers = columns <= 8 ? 104 : 168;

template <int columns, class Output>
__global__ void __maxnreg__(most_registers<columns>)
    sm90_bf16_linear_few(const __grid_constant__ FewParams<Output> params) {
  __shared__ RingBarriers barriers;
  std::uint8_t* const ring = ptx::dynamic_shared();
  const Units units{static_cast<unsigned>(params.shape.tiles()) * dense_k_chunks};
  const int begin = units.border(blockIdx.x), end = units.border(blockIdx.x + 1);
  const int warp = ptx::warp_of_block();
  if (threadIdx.x == few_threads - 32) {  // who fetches weights: the first are on their way at once
    barriers.init(params.stages);
    const Pieces first(params.shape, begin, end);
    if (first.more()) order_weights<columns>(params, ring, barriers, first, 0);
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  if (warp < product_threads / 32) {
    // What an output reads besides the sums may come from the grid before, and what is left by other blocks
    // was made absent by it.
    ptx::grid_dependency_wait();
    multiply_units<columns>(params, Products<columns>{ring, barriers, params.stages, {}}, units, begin, end);
  } else if (warp == product_threads / 32) {
    fetch_tokens<columns>(params, ring, barriers, begin, end);
  } else if (threadIdx.x % 32 == 0) {
    fetch_weights<columns>(params, ring, barriers, begin, end);
  }
}

template <int columns, class Output>
void launch_few(FewParams<Output> params, const DenseRun& run, cudaStream_t stream) {
  params.stages = ring_stages<columns, Output>(run.x.tokens, run.beside);
  NIBBLE_CHECK(params.stages >= least_stages);
  const int shared_bytes = params.stages * few_stage_bytes<columns>;
  const auto kernel = sm90_bf16_linear_few<columns, Output>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(run.blocks)),
                 .threads = few_threads,
                 .shared_bytes = static_cast<std::size_t>(shared_bytes),
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(run.x.tokens)},
                kernel, params);
}

}  // namespace

template <class Output>
void run_few(const DenseRun& run, const Output& output, cudaStream_t stream) {
  const int most = linear_takes_some(run.weight.shape, run.x.tokens) ? linear_few_tokens : few_columns;
  for (int first = 0; first < run.x.tokens; first += most) {
    const int past = std::min(first + most, run.x.tokens);
    if (linear_takes_some(run.weight.shape, past - first)) {
      run_some(run, first, past, output, stream);
      continue;
    }
    const FewParams<Output> params{.weights = run.weight.data,
                                   .x = run.x.data,
                                   .shape = run.weight.shape,
                                   .first_token = first,
                                   .tokens = past,
                                   .stages = 0,
                                   .sums = reinterpret_cast<float4*>(run.workspace.few_sums),
                                   .output = output};
    switch (linear_columns(past - first)) {
      case 8: launch_few<8>(params, run, stream); break;
      case 16: launch_few<16>(params, run, stream); break;
      default: launch_few<few_columns>(params, run, stream);
    }
  }
}

template void run_few(const DenseRun&, const RowsOutput&, cudaStream_t);
template void run_few(const DenseRun&, const QkvOutput&, cudaStream_t);

}  // namespace nibble
