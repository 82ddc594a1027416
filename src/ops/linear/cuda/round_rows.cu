// Rows of activations rounded to FP8 (rounded_rows.h).
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/block_operands.cuh"
#include "ops/linear/cuda/rounded_rows.h"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace rounding {
namespace {

using block_products::Inputs;

// A block has eight rows, each lane sixteen columns of one at a time: of token tiles as of plain rows, what a
// warp loads at once are whole sectors. Up to 4,096 columns of a row stay in registers from the search for
// the largest value to the rounding; the rest is read twice.
constexpr int warps = 8, threads = 32 * warps, block_rows = 8, lanes_a_row = threads / block_rows;
constexpr int held = 8;  // sixteens of a lane

struct Params {
  Inputs x;
  int rows, cols, copies;
  std::uint8_t* codes;
  float* scales;
};

struct Sixteen {
  uint4 low, high;

  __device__ __forceinline__ void load(const Params& params, const std::uint8_t* row, int sixteen) {
    const std::uint8_t* const at =
        row + static_cast<std::size_t>(sixteen / 4) * params.x.block + sixteen % 4 * 2 * params.x.piece;
    low = *reinterpret_cast<const uint4*>(at);
    high = *reinterpret_cast<const uint4*>(at + params.x.piece);
  }
  __device__ __forceinline__ std::uint32_t word(int index) const {
    return index < 4 ? block_products::word_of(low, index) : block_products::word_of(high, index - 4);
  }
  __device__ __forceinline__ float value(int element) const {
    const std::uint32_t pair = word(element / 2);
    return __uint_as_float(element % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  }
};

// The larger of what was found and the magnitudes of these, as bits of bfloat16.
__device__ __forceinline__ unsigned largest_of(unsigned found, const Sixteen& values) {
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    const std::uint32_t word = values.word(pair);
    found = max(found, max(word & 0x7fffu, word >> 16 & 0x7fffu));
  }
  return found;
}

// Codes of values times the factor, to where the row's i-th sixteen lies.
template <ColumnOrder order>
__device__ __forceinline__ void put(std::uint8_t* row, int i, const Sixteen& values, float factor) {
  std::uint8_t* const to = row + i / 4 * block_k;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    std::uint32_t four = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto scaled = [&](int byte) {
        return __fmul_rn(values.value(rounded_element(order, word, byte)), factor);
      };
      four |= static_cast<std::uint32_t>(ptx::e4m3x2_of(scaled(2 * half), scaled(2 * half + 1))) << 16 * half;
    }
    *reinterpret_cast<std::uint32_t*>(to + rounded_word_place(order, i % 4, word)) = four;
  }
}

template <ColumnOrder order>
__global__ void __launch_bounds__(threads) round_rows(Params params) {
  __shared__ unsigned found[warps][block_rows];
  const int thread = static_cast<int>(threadIdx.x), of_eight = thread % block_rows,
            lane_of_row = thread / block_rows;
  const int row = static_cast<int>(blockIdx.x) * block_rows + of_eight;
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const std::uint8_t* const x = params.x.row_at(min(row, params.rows - 1));
  const int sixteens = params.cols / 16, padded = rounded_row_bytes(params.cols) / 16;
  constexpr int first_reread = held * lanes_a_row;
  Sixteen kept[held] = {};
#pragma unroll
  for (int h = 0; h < held; ++h) {
    const int i = lane_of_row + h * lanes_a_row;
    if (i < sixteens) kept[h].load(params, x, i);
  }
  unsigned largest = 0;
  for (int i = first_reread + lane_of_row; i < sixteens; i += lanes_a_row) {
    Sixteen values;
    values.load(params, x, i);
    largest = largest_of(largest, values);
  }
#pragma unroll
  for (int h = 0; h < held; ++h) largest = largest_of(largest, kept[h]);
  largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 8));
  largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 16));
  if (thread % 32 < block_rows) found[thread / 32][of_eight] = largest;
  __syncthreads();  // all warps have found theirs
#pragma unroll
  for (int warp = 0; warp < warps; ++warp) largest = max(largest, found[warp][of_eight]);
  if (row >= params.rows) return;
  constexpr unsigned infinity = 0x7f80;
  const bool finite = largest < infinity;
  const int exponent = finite ? rounded_exponent(static_cast<int>(largest)) : 0;
  const float factor = __uint_as_float(static_cast<unsigned>(127 - exponent) << 23);  // of 2^-e
  const float scale =
      finite ? __uint_as_float(static_cast<unsigned>(127 + exponent) << 23) : __uint_as_float(0x7fc00000u);
  for (int i = lane_of_row; i < params.copies; i += lanes_a_row)
    params.scales[row * params.copies + i] = scale;
  std::uint8_t* const codes =
      params.codes + static_cast<std::size_t>(row) * static_cast<std::size_t>(padded) * 16;
#pragma unroll
  for (int h = 0; h < held; ++h) {
    const int i = lane_of_row + h * lanes_a_row;
    if (i < padded) put<order>(codes, i, kept[h], factor);
  }
  for (int i = first_reread + lane_of_row; i < padded; i += lanes_a_row) {
    Sixteen values{};
    if (i < sixteens) values.load(params, x, i);
    put<order>(codes, i, values, factor);
  }
}

}  // namespace

void launch(const RoundRowsCudaArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const Params params{.x = args.x != nullptr
                               ? block_products::plain_rows(args.x, args.x_stride)
                               : block_products::token_tiles(args.tiles, DenseShape{0, args.cols}.blocks()),
                      .rows = args.rows,
                      .cols = args.cols,
                      .copies = args.copies,
                      .codes = args.to.codes,
                      .scales = args.to.scales};
  launch_kernel({.blocks = dim3(static_cast<unsigned>((args.rows + block_rows - 1) / block_rows)),
                 .threads = threads,
                 .stream = stream,
                 .overlaps = true},
                args.order == ColumnOrder::quarters ? round_rows<ColumnOrder::quarters>
                                                    : round_rows<ColumnOrder::steps>,
                params);
}

}  // namespace rounding

void round_rows_cuda(const RoundRowsCudaArgs& args, cudaStream_t stream) { rounding::launch(args, stream); }

}  // namespace nibble
