// linear for few tokens: weights stream once through a ring in shared memory and are multiplied from there,
// tokens as the 8 to 32 columns of wgmma. For what it adds in which order see dense_tiles.h.
//
// Bytes: 2 a weight, once. For gpt-oss at 4,650 GB/s: q, k and v 29.5 MB, 6.3 us; attention's output 23.6
// MB, 5.1 us; lm_head 1,158 MB, 249 us. Each block reads the activations of its chunks again, columns / 64
// of the bytes of the weights, from the second-level cache. FLOPs: 2 a weight and column, 128 cycles of the
// tensor cores for every 16 KB stage of 32 columns, which takes some 820 cycles to come. More tokens than 32
// are taken by clusters of blocks (sm90_bf16_linear_some.cu), where K is not too long for it.
//
// Work is dealt to blocks in units (dense_units.cuh), of which gpt-oss's q, k and v have 640 and attention's
// output 360 for 132 multiprocessors. Of more than 16 tokens, whose sums a thread cannot have in flight all
// at once, those that other blocks leave come through the ring behind the last weights. Blocks wait for
// blocks behind them; all of a grid are resident once the grids before it have ended.
//
// One warp fetches weights, another activations; a warpgroup multiplies. The ring is filled with weights
// before the grids ahead have ended, but a few stages at a time: copies that wait for each other in the
// memory's queues hold up the few bytes those grids are waiting for (half a microsecond of a norm's loads).
#include <algorithm>

#include "ops/cuda/waiting_grids.cuh"
#include "ops/linear/cuda/dense_few.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int few_columns = 32;  // at most

// Stages of a ring, however much room there is. Beside one more of o's the router's blocks would find no
// place.
template <class Output>
constexpr int longest_ring = 10;
template <>
constexpr int longest_ring<QkvOutput> = few_most_stages;

// Sums of a chunk as the ring brings them, and how many of them a stage holds.
template <int columns>
constexpr int chunk_sum_bytes = chunk_quads<columns>* static_cast<int>(sizeof(float4));
template <int columns>
constexpr int stage_sums = few_stage_bytes<columns> / chunk_sum_bytes<columns>;

// Whether sums that others left are brought through the ring behind the weights. Of few tokens a thread has
// all of them in flight at once, and that is the shorter way.
template <int columns>
constexpr bool brings_sums = columns > 16;
// As many sums as there can be have a stage each.
static_assert((dense_k_chunks - 1) <= few_least_stages * stage_sums<24>);
static_assert((dense_k_chunks - 1) <= few_least_stages * stage_sums<few_columns>);

// The first chunk of the last tile of units [begin, end) that other blocks leave sums of, if that tile's
// first chunk is among the units; or dense_k_chunks.
__device__ __forceinline__ int first_left_chunk(int begin, int end) {
  const int tile = (end - 1) / dense_k_chunks;
  return begin < end && tile * dense_k_chunks >= begin ? end - tile * dense_k_chunks : dense_k_chunks;
}

// By one lane, all but the first stage, which is on its way. What others have left comes behind the weights,
// so that it is near when the products are done.
template <int columns, class Output>
__device__ __forceinline__ void fetch_weights(const FewParams<Output>& params, std::uint8_t* ring,
                                              FewBarriers& barriers, int begin, int end) {
  RingTurn turn = fetch_weight_stages<columns>(params.weights, Pieces(params.shape, begin, end), ring,
                                               barriers, params.stages, params.stuck);
  if constexpr (!brings_sums<columns>) return;
  ptx::grid_dependency_wait();  // until then sums are another launch's
  for (int chunk = first_left_chunk(begin, end); chunk < dense_k_chunks; chunk += stage_sums<columns>) {
    turn.wait_empty(barriers.empty, params.stuck);
    const int count = min(stage_sums<columns>, dense_k_chunks - chunk);
    const std::uint32_t bytes = static_cast<std::uint32_t>(count * chunk_sum_bytes<columns>);
    ptx::mbarrier_arrive_expecting(&barriers.weights[turn.stage], bytes);
    ptx::bulk_copy_to_shared(ring + turn.stage * few_stage_bytes<columns>,
                             sums_of<columns>(params.sums, static_cast<int>(blockIdx.x), chunk), bytes,
                             &barriers.weights[turn.stage]);
    turn.next(params.stages);
  }
}

// By a warp.
template <int columns, class Output>
__device__ __forceinline__ void fetch_tokens(const FewParams<Output>& params, std::uint8_t* ring,
                                             FewBarriers& barriers, int begin, int end) {
  const DenseShape& shape = params.shape;
  const FewTokens tokens{
      params.x + shape.token_bytes(params.first_token),
      min(columns / token_group, (params.tokens - params.first_token + token_group - 1) / token_group),
      shape.blocks(), 0};
  ptx::grid_dependency_wait();
  fetch_token_stages<columns>(tokens, Pieces(shape, begin, end), ring, barriers, params.stages, params.stuck);
}

// Adds the sums of chunks [from, 8) of the block's last tile, which other blocks have left and fetch_weights
// has brought, or will leave, and makes their places absent again for the next launch.
template <int columns, class Products>
__device__ __forceinline__ void add_brought_sums(float (&totals)[columns / 2], float4* sums,
                                                 Products& products, int from, std::uint32_t* stuck) {
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
      if (polls == ptx::give_up_polls) ptx::give_up(stuck, Stuck::dense_sums);
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

template <int columns>
struct Products : FewProducts<columns> {
  __device__ __forceinline__ void add_others(float (&totals)[columns / 2], float4* left, int from,
                                             std::uint32_t* stuck) {
    if constexpr (brings_sums<columns>) {
      add_brought_sums<columns>(totals, left, *this, from, stuck);
    } else {
      add_left_sums<columns>(totals, left, from, stuck);
    }
  }
};

// Registers a thread may have. Of one row's columns, so many that a quarter of a multiprocessor, 512 a lane,
// holds two of these six warps and of attention three of nine, of 96, or two of eight, of 128.
template <int columns>
constexpr int most_registers = columns <= 8 ? 104 : 168;

template <int columns, class Output>
__global__ void __maxnreg__(most_registers<columns>)
    sm90_bf16_linear_few(const __grid_constant__ FewParams<Output> params) {
  __shared__ FewBarriers barriers;
  std::uint8_t* const ring = ptx::dynamic_shared();
  const Units units{static_cast<unsigned>(params.shape.tiles()) * dense_k_chunks};
  const int begin = units.border(blockIdx.x), end = units.border(blockIdx.x + 1);
  const int warp = ptx::warp_of_block();
  if (threadIdx.x == few_threads - 32) {  // who fetches weights: the first are on their way at once
    barriers.init(params.stages);
    const Pieces first(params.shape, begin, end);
    if (first.more()) order_weights(params.weights, first, ring, &barriers.weights[0]);
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  if (warp < product_threads / 32) {
    // What an output reads besides the sums may come from the grid before, and what is left by other blocks
    // was made absent by it.
    ptx::grid_dependency_wait();
    multiply_units<columns>(params, Products<columns>{{ring, barriers, params.stages, {}}}, units, begin,
                            end);
  } else if (warp == product_threads / 32) {
    fetch_tokens<columns>(params, ring, barriers, begin, end);
  } else if (threadIdx.x % 32 == 0) {
    fetch_weights<columns>(params, ring, barriers, begin, end);
  }
}

template <int columns, class Output>
void launch_few(FewParams<Output> params, const DenseRun& run, cudaStream_t stream) {
  params.stages = few_ring_stages<columns>(run.x.tokens, run.beside, longest_ring<Output>);
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

// Of the launch of these columns whose ring is the longest.
template <int columns, class Output>
WaitingGrid grid_of() {
  constexpr int tokens = columns - token_group + 1;
  const int stages = few_ring_stages<columns>(tokens, 0, longest_ring<Output>);
  return waiting_grid("sm90_bf16_linear_few",
                      {.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                       .threads = few_threads,
                       .shared_bytes = static_cast<std::size_t>(stages * few_stage_bytes<columns>),
                       .share = share_of(tokens)},
                      sm90_bf16_linear_few<columns, Output>);
}
template <class Output>
void add_grids(WaitingGrids& grids) {
  grids.insert(grids.end(),
               {grid_of<8, Output>(), grid_of<16, Output>(), grid_of<24, Output>(), grid_of<32, Output>()});
}

}  // namespace

WaitingGrids waiting_grids_of_linear_few() {
  WaitingGrids grids;
  add_grids<RowsOutput>(grids);
  add_grids<QkvOutput>(grids);
  return grids;
}

template <class Output>
void run_few(const DenseRun& run, const Output& output, cudaStream_t stream) {
  for (int first = 0, past = 0; first < run.x.tokens; first = past) {
    past = std::min(first + linear_few_tokens, run.x.tokens);
    if (linear_takes_some(run.weight.shape, past - first) && run_some(run, first, past, output, stream))
      continue;
    past = std::min(first + few_columns, run.x.tokens);
    const FewParams<Output> params{.weights = run.weight.data,
                                   .x = run.x.data,
                                   .shape = run.weight.shape,
                                   .first_token = first,
                                   .tokens = past,
                                   .stages = 0,
                                   .sums = reinterpret_cast<float4*>(run.workspace.few_sums),
                                   .stuck = run.workspace.stuck,
                                   .output = output};
    switch (linear_columns(past - first)) {
      case 8: launch_few<8>(params, run, stream); break;
      case 16: launch_few<16>(params, run, stream); break;
      case 24: launch_few<24>(params, run, stream); break;
      default: launch_few<few_columns>(params, run, stream);
    }
  }
}

template void run_few(const DenseRun&, const RowsOutput&, cudaStream_t);
template void run_few(const DenseRun&, const QkvOutput&, cudaStream_t);

}  // namespace nibble
