// linear for few tokens over ranks (peer_linear_cuda.h): a rank's chunks as sm90_bf16_linear_few.cu
// multiplies them, and what passes between ranks behind them.
//
// Bytes: 2 a weight of the rank's columns, once. For gpt-oss-120b's output of attention on four GPUs 5.9 MB,
// 1.3 us at 4,650 GB/s. Between GPUs 4 a row of the output, a token and a chunk: 23 KB a token from each rank
// to each other.
//
// Whoever multiplied a chunk of a tile sends its sums to all ranks at once, its own among them. The data says
// itself that it is there. Then each block takes an equal part of the rows of y, whichever blocks and ranks
// made their sums: it waits for the eight, adds them, and makes their places absent again.
//
// Blocks wait for blocks of other GPUs, which wait for this one's. None waits for a grid behind its own, and
// all of a grid are resident once the grids before it have ended.
#include <string>

#include "comm/cuda/peer_meeting.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/linear/cuda/dense_few.cuh"
#include "ops/linear/cuda/peer_linear_cuda.h"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int columns = peer_linear_tokens;
constexpr int longest_ring = 10;
constexpr int steps_barrier = 1;

// A step's window: a chunk's sums, of each token a row.
struct Window {
  float* sums;  // [dense_k_chunks, columns, rows]
  int rows;     // of whole tiles

  __device__ Window(const PeerLinearCudaArgs& args, std::uint32_t step)
      : sums(args.windows + static_cast<std::size_t>(step & 1) * (peer_linear_floats(args.weight.shape) / 2)),
        rows(args.weight.shape.tiles() * dense_tile_rows) {}
  __device__ std::uint32_t* at(int chunk, int token, int row) const {
    return reinterpret_cast<std::uint32_t*>(sums) +
           (static_cast<std::size_t>(chunk * columns + token) * static_cast<std::size_t>(rows) +
            static_cast<std::size_t>(row));
  }
};

// A thread's sums of a chunk of a tile, to all ranks.
__device__ __forceinline__ void send_sums(const PeerRoom& room, const PeerLinearCudaArgs& args,
                                          const Window& window, int chunk, int tile,
                                          const float (&sums)[columns / 2]) {
  const int tokens = args.x.tokens, rows = args.weight.shape.rows;
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) {
    const int token = token_of_thread(i % 2), row = tile * dense_tile_rows + low_row_of_thread() + i / 2 * 32;
    if (token >= tokens || row >= rows) continue;
    std::uint32_t* const place = window.at(chunk, token, row);
    const std::uint32_t word = __float_as_uint(but_absent(sums[i]));
    for (int next = 1; next <= room.ranks; ++next)
      ptx::store_peer(at_peer(room, (room.rank + next) % room.ranks, place), word);
  }
}

// The block's part of y, by the warps that multiply.
__device__ __forceinline__ void add_sums(const PeerRoom& room, const PeerLinearCudaArgs& args,
                                         const Window& window, int chunks_a_rank, std::uint32_t step) {
  const int rows = args.weight.shape.rows, all = rows * args.x.tokens;
  for (int i = static_cast<int>(blockIdx.x * product_threads + threadIdx.x); i < all;
       i += static_cast<int>(gridDim.x) * product_threads) {
    const int token = i / rows, row = i - token * rows;
    const float bias = args.bias == nullptr ? 0.0f : as_float(args.bias[row]);
    std::uint32_t words[dense_k_chunks];
#pragma unroll
    for (int chunk = 0; chunk < dense_k_chunks; ++chunk)
      words[chunk] = ptx::load_peer(window.at(chunk, token, row));
    RankWait wait(room);
    float total = 0;
#pragma unroll
    for (int chunk = 0; chunk < dense_k_chunks; ++chunk) {
      std::uint32_t* const place = window.at(chunk, token, row);
      while (words[chunk] == absent_bits && !wait.is_over(chunk / chunks_a_rank, step))
        words[chunk] = ptx::load_peer(place);
      *place = absent_bits;
      const float sum = __uint_as_float(words[chunk]);
      total = chunk == 0 ? sum : total + sum;
    }
    args.y[static_cast<std::size_t>(token) * static_cast<std::size_t>(args.y_stride) +
           static_cast<std::size_t>(row)] = args.bias == nullptr ? total : total + bias;
  }
}

template <int chunks>  // of a rank
__global__ void __maxnreg__(104)
    sm90_bf16_peer_linear(const __grid_constant__ PeerRoom room,
                          const __grid_constant__ PeerLinearCudaArgs args, int stages) {
  __shared__ FewBarriers barriers;
  std::uint8_t* const ring = ptx::dynamic_shared();
  const DenseShape& shape = args.weight.shape;
  const int first_chunk = room.rank * chunks;
  const Units units{static_cast<unsigned>(shape.tiles()) * chunks};
  const int begin = units.border(blockIdx.x), end = units.border(blockIdx.x + 1);
  const Pieces<chunks> pieces(shape, begin, end, first_chunk);
  const int warp = ptx::warp_of_block();
  if (threadIdx.x == few_threads - 32) {  // who fetches weights: the first are on their way at once
    barriers.init(stages);
    if (pieces.more()) order_weights(args.weight.data, pieces, ring, &barriers.weights[0]);
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  if (warp < product_threads / 32) {
    // The windows' places are absent again, and the steps counted, when the grid before has ended.
    ptx::grid_dependency_wait();
    const std::uint32_t step = __ldcg(args.steps + blockIdx.x);
    const Window window(args, step);
    FewProducts<columns> products{ring, barriers, stages, {}};
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
      const int chunk = first_chunk + unit % chunks;
      float sums[columns / 2];
      products.multiply(sums, shape.chunk_begin(chunk), shape.chunk_begin(chunk + 1));
      send_sums(room, args, window, chunk, unit / chunks, sums);
    }
    add_sums(room, args, window, chunks, step);
    ptx::named_barrier(steps_barrier, product_threads);  // all have read the step
    if (threadIdx.x == 0) args.steps[blockIdx.x] = step + 1;
  } else if (warp == product_threads / 32) {
    const int own_blocks = shape.cols / room.ranks / dense_k;
    ptx::grid_dependency_wait();
    fetch_token_stages<columns>(FewTokens{args.x.data, 1, own_blocks, room.rank * own_blocks}, pieces, ring,
                                barriers, stages, args.stuck);
  } else if (threadIdx.x % 32 == 0) {
    fetch_weight_stages<columns>(args.weight.data, pieces, ring, barriers, stages, args.stuck);
  }
}

template <int chunks>
void launch(const PeerRoom& room, const PeerLinearCudaArgs& args, cudaStream_t stream) {
  const int stages =
      few_ring_stages<columns>(args.x.tokens, args.beside <= 0 ? shared_beside : args.beside, longest_ring);
  const int shared_bytes = stages * few_stage_bytes<columns>;
  const auto kernel = sm90_bf16_peer_linear<chunks>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                 .threads = few_threads,
                 .shared_bytes = static_cast<std::size_t>(shared_bytes),
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.x.tokens)},
                kernel, room, args, stages);
}

template <int chunks>
WaitingGrid grid_of() {
  const int stages = few_ring_stages<columns>(1, 0, longest_ring);
  return waiting_grid("sm90_bf16_peer_linear",
                      {.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                       .threads = few_threads,
                       .shared_bytes = static_cast<std::size_t>(stages * few_stage_bytes<columns>),
                       .share = share_of(1)},
                      sm90_bf16_peer_linear<chunks>);
}

}  // namespace

WaitingGrids waiting_grids_of_peer_linear() { return {grid_of<4>(), grid_of<2>(), grid_of<1>()}; }

Status peer_linear_cuda(const PeerRoom& room, const PeerLinearCudaArgs& args, cudaStream_t stream) {
  if (!peer_linear_takes(args.weight.shape, room.ranks) || args.x.tokens > peer_linear_tokens) {
    return invalid_argument("ranks multiply up to " + std::to_string(peer_linear_tokens) +
                            " rows by whole chunks of K, as many each, not " + std::to_string(args.x.tokens) +
                            " rows by " + std::to_string(args.weight.shape.cols) + " columns of " +
                            std::to_string(room.ranks) + " ranks");
  }
  switch (dense_k_chunks / room.ranks) {
    case 4: launch<4>(room, args, stream); break;
    case 2: launch<2>(room, args, stream); break;
    default: launch<1>(room, args, stream);
  }
  return {};
}

}  // namespace nibble
