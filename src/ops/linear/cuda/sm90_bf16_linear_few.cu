// linear for few tokens: weights stream once through a ring in shared memory and are multiplied from there,
// tokens as the 8 to 64 columns of wgmma. For what it adds in which order see dense_tiles.h.
//
// Bytes: 2 a weight, once. For gpt-oss at 4,650 GB/s: q, k and v 29.5 MB, 6.3 us; attention's output 23.6
// MB, 5.1 us; lm_head 1,158 MB, 249 us. Each block reads the activations of its chunks again, columns / 64
// of the bytes of the weights, from the second-level cache. FLOPs: 2 a weight and column, 512 cycles of the
// tensor cores for every 16 KB stage of 64 columns, which takes some 820 cycles to come.
//
// Work is dealt in units of (tile of 64 rows, chunk of K), in contiguous ranges as equal as they get: gpt-oss
// has 640 and 360 units for 132 multiprocessors. Of a tile whose chunks are one block's that block adds them
// up; of the others each chunk's sums go to memory, and whichever block comes last adds them, in order of the
// chunks like the rest. So ranges move bytes in time but no bit, and no block waits for another.
//
// One warp fetches; a warpgroup multiplies. The ring's weights are fetched before the grid waits for the one
// it depends on, the activations after.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/dense_outputs.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int product_threads = 128;
constexpr int few_threads = product_threads + 32;
constexpr int stage_blocks = 2;  // k64 blocks of a tile in a stage: copies of 16 KB
constexpr int stage_weight_bytes = stage_blocks * dense_block_bytes;
constexpr int stage_group_bytes = stage_blocks * token_block_bytes;  // of 8 tokens

// A ring of some 110 to 130 KB: enough bytes on their way, and room for the next kernel's beside it.
template <int columns>
constexpr int ring_stages = columns <= 16   ? 6
                            : columns == 32 ? 5
                                            : 4;
template <int columns>
constexpr int few_stage_bytes = stage_weight_bytes + columns / token_group* stage_group_bytes;

template <class Output>
struct FewParams {
  const std::uint8_t* weights;
  const std::uint8_t* x;
  DenseShape shape;
  int first_token, tokens;  // those of this launch end with tokens
  float4* sums;             // [blocks, dense_k_chunks, columns / 8, product_threads]
  std::uint32_t* arrived;   // [blocks]
  Output output;
};

// Units in order of (tile, chunk); block b has those from border(b) on.
struct Units {
  long long all;
  __device__ int border(unsigned block) const { return static_cast<int>(all * block / gridDim.x); }
  __device__ int owner(int unit) const {  // the block whose range holds it
    return static_cast<int>(((unit + 1LL) * gridDim.x - 1) / all);
  }
};

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

// The fetching warp. Lane i brings the i-th group of tokens.
template <int columns, class Output>
__device__ __forceinline__ void fetch_pieces(const FewParams<Output>& params, std::uint8_t* ring,
                                             std::uint64_t* full, std::uint64_t* empty, int begin, int end) {
  constexpr int stages = ring_stages<columns>, stage_bytes = few_stage_bytes<columns>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const DenseShape& shape = params.shape;
  const int groups =
      min(columns / token_group, (params.tokens - params.first_token + token_group - 1) / token_group);
  const auto fetch_weights = [&](const Pieces& piece, int stage) {
    const int count = piece.count();
    ptx::mbarrier_arrive_expecting(
        &full[stage], static_cast<std::uint32_t>(count * (dense_block_bytes + groups * token_block_bytes)));
    ptx::bulk_copy_to_shared(ring + stage * stage_bytes,
                             params.weights + static_cast<std::size_t>(piece.tile()) * shape.tile_bytes() +
                                 static_cast<std::size_t>(piece.block) * dense_block_bytes,
                             static_cast<std::uint32_t>(count * dense_block_bytes), &full[stage]);
  };
  int primed = 0;
  for (Pieces ahead(shape, begin, end); primed < stages && ahead.more(); ahead.next(), ++primed) {
    if (lane == 0) fetch_weights(ahead, primed);
  }
  ptx::grid_dependency_wait();
  const std::uint8_t* const x =
      params.x + shape.token_bytes(params.first_token) +
      static_cast<std::size_t>(lane) * static_cast<std::size_t>(shape.blocks()) * token_block_bytes;
  int stage = 0;
  unsigned round = 0;  // of the ring
  int index = 0;
  for (Pieces piece(shape, begin, end); piece.more(); piece.next(), ++index) {
    if (index >= primed) {
      ptx::mbarrier_wait(&empty[stage], (round - 1) & 1);
      if (lane == 0) fetch_weights(piece, stage);
    }
    __syncwarp();  // bytes are announced before any come
    if (lane < groups) {
      ptx::bulk_copy_to_shared(ring + stage * stage_bytes + stage_weight_bytes + lane * stage_group_bytes,
                               x + static_cast<std::size_t>(piece.block) * token_block_bytes,
                               static_cast<std::uint32_t>(piece.count() * token_block_bytes), &full[stage]);
    }
    if (++stage == stages) stage = 0, ++round;
  }
}

// The multiplying warpgroup's way through the ring.
template <int columns>
struct Products {
  std::uint8_t* ring;
  std::uint64_t *full, *empty;
  int stage = 0;
  unsigned round = 0;

  // A chunk's sums from zero.
  __device__ __forceinline__ void multiply(float (&sums)[columns / 2], int blocks) {
    constexpr int stages = ring_stages<columns>;
    const bool speaks = threadIdx.x % 32 == 0;  // for its warp, whose lanes wait together
#pragma unroll
    for (float& sum : sums) sum = 0;
    int before = -1;
#pragma unroll 1
    for (int left = blocks; left > 0; left -= stage_blocks) {
      ptx::mbarrier_wait(&full[stage], round & 1);
      __syncwarp();
      const std::uint8_t* weights = ring + stage * few_stage_bytes<columns>;
      const std::uint8_t* tokens = weights + stage_weight_bytes;
#pragma unroll 1
      for (int block = 0; block < min(left, stage_blocks); ++block) {
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::wgmma_bf16(sums, ptx::wgmma_operand<256>(weights + step * dense_step_bytes),
                          ptx::wgmma_operand<stage_group_bytes>(tokens + step * token_step_bytes), true);
        }
        weights += dense_block_bytes;
        tokens += token_block_bytes;
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
__device__ __forceinline__ float4* sums_of(float4* sums, int owner, int chunk) {
  return sums + (owner * dense_k_chunks + chunk) * (columns / 8 * product_threads) + threadIdx.x;
}

// Read past the first-level cache, which may hold what an earlier launch left there.
template <int columns>
__device__ __forceinline__ void add_all_chunks(float (&totals)[columns / 2], float4* sums, int owner) {
#pragma unroll(columns <= 16 ? dense_k_chunks : 2)
  for (int chunk = 0; chunk < dense_k_chunks; ++chunk) {
    const float4* at = sums_of<columns>(sums, owner, chunk);
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
__device__ __forceinline__ void multiply_units(const FewParams<Output>& params, Products<columns> products,
                                               const Units& units, int begin, int end, int* is_last) {
  const DenseShape& shape = params.shape;
  float totals[columns / 2];
#pragma unroll
  for (float& total : totals) total = 0;
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit) {
    const int tile = unit / dense_k_chunks, chunk = unit % dense_k_chunks;
    const int first = max(tile * dense_k_chunks, begin), past = min((tile + 1) * dense_k_chunks, end);
    float sums[columns / 2];
    products.multiply(sums, shape.chunk_begin(chunk + 1) - shape.chunk_begin(chunk));
    if (past - first == dense_k_chunks) {
#pragma unroll
      for (int i = 0; i < columns / 2; ++i) totals[i] = chunk == 0 ? sums[i] : totals[i] + sums[i];
      if (chunk == dense_k_chunks - 1)
        put_out<columns>(params.output, tile, params.first_token, params.tokens, totals);
      continue;
    }
    const int owner = units.owner(tile * dense_k_chunks);
    float4* const place = sums_of<columns>(params.sums, owner, chunk);
#pragma unroll
    for (int i = 0; i < columns / 8; ++i)
      place[i * product_threads] =
          make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    if (unit + 1 < past) continue;
    ptx::named_barrier(1, product_threads);  // the count below speaks for every thread's sums
    if (threadIdx.x == 0) {
      const unsigned mine = static_cast<unsigned>(past - first);
      *is_last = ptx::add_acquire_release(&params.arrived[owner], mine) + mine == dense_k_chunks;
      if (*is_last) params.arrived[owner] = 0;  // all have come; for the next launch
    }
    ptx::named_barrier(1, product_threads);  // others' sums are read after thread 0 has seen them counted
    if (*is_last) {
      add_all_chunks<columns>(totals, params.sums, owner);
      put_out<columns>(params.output, tile, params.first_token, params.tokens, totals);
    }
  }
}

template <int columns, class Output>
__global__ void __launch_bounds__(few_threads, 1)
    sm90_bf16_linear_few(const __grid_constant__ FewParams<Output> params) {
  constexpr int stages = ring_stages<columns>;
  __shared__ std::uint64_t full[stages], empty[stages];
  __shared__ int is_last;
  std::uint8_t* const ring = ptx::dynamic_shared();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(&full[stage], 1);
      ptx::mbarrier_init(&empty[stage], product_threads / 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  const Units units{static_cast<long long>(params.shape.tiles()) * dense_k_chunks};
  const int begin = units.border(blockIdx.x), end = units.border(blockIdx.x + 1);
  if (ptx::warp_of_block() == product_threads / 32) {
    fetch_pieces<columns>(params, ring, full, empty, begin, end);
  } else {
    // What an output reads besides the sums may come from the grid before.
    ptx::grid_dependency_wait();
    multiply_units<columns>(params, Products<columns>{ring, full, empty}, units, begin, end, &is_last);
  }
}

template <int columns, class Output>
void launch_few(const FewParams<Output>& params, int blocks, cudaStream_t stream) {
  constexpr int shared_bytes = ring_stages<columns> * few_stage_bytes<columns>;
  const auto kernel = sm90_bf16_linear_few<columns, Output>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)),
                 .threads = few_threads,
                 .shared_bytes = shared_bytes,
                 .stream = stream,
                 .overlaps = true},
                kernel, params);
}

}  // namespace

template <class Output>
void run_few(const DenseRun& run, const Output& output, cudaStream_t stream) {
  for (int first = 0; first < run.x.tokens; first += linear_few_tokens) {
    const int past = std::min(first + linear_few_tokens, run.x.tokens);
    const FewParams<Output> params{.weights = run.weight.data,
                                   .x = run.x.data,
                                   .shape = run.weight.shape,
                                   .first_token = first,
                                   .tokens = past,
                                   .sums = reinterpret_cast<float4*>(run.workspace.sums),
                                   .arrived = run.workspace.arrived,
                                   .output = output};
    switch (linear_columns(past - first)) {
      case 8: launch_few<8>(params, run.blocks, stream); break;
      case 16: launch_few<16>(params, run.blocks, stream); break;
      case 32: launch_few<32>(params, run.blocks, stream); break;
      default: launch_few<64>(params, run.blocks, stream);
    }
  }
}

template void run_few(const DenseRun&, const RowsOutput&, cudaStream_t);
template void run_few(const DenseRun&, const QkvOutput&, cudaStream_t);

}  // namespace nibble
