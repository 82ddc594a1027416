// A shared expert of few rows. A block has 16 operand rows of the tensor core at a time, over the whole of K:
// its eight warps take K's parts in turns, straight from memory to registers, and what they found is added in
// order by way of shared memory. A strand of tiles (dense_tiles.h) has eight gates and their eight ups; of
// matrices in blocks (block_matrices.h) a strand is a granule, and gates and ups are two of them. The grid
// meets between the products.
//
// Bytes: the weights once, 6 MB in bfloat16 for 2,048 x 512, 1.4 us; the rows again for each strand, from the
// second-level cache. The blocks are small enough to lie beside those of the routed experts: 8 warps of up to
// 112 registers, 4 to 60 KB.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/fixed_math.h"
#include "ops/gated_mlp/cuda/shared_expert_cuda.h"
#include "ops/linear/cuda/block_operands.cuh"
#include "ops/linear/cuda/dense_strands.cuh"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"

namespace nibble {

namespace strands {

__device__ __forceinline__ uint4 piece_at(const std::uint8_t* at) {
  return __ldcg(reinterpret_cast<const uint4*>(at));
}
__device__ __forceinline__ void load_share(block_products::Share<E4m3Codes>& share, const std::uint8_t* block,
                                           int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) share.piece[i] = piece_at(block + i * block_piece_bytes + lane * 16);
}
__device__ __forceinline__ void load_share(block_products::Share<Nvfp4Codes>& share,
                                           const std::uint8_t* block, int lane) {
  share.codes = piece_at(block + lane * 16);
  share.scales = __ldcg(reinterpret_cast<const std::uint16_t*>(
      block + granule_code_bytes + granule_lane_scales<Nvfp4GranuleLayout>(lane)));
}
// A lane's of a k64 block of token tiles, in the order that the codes lie in.
template <class Codes>
__device__ __forceinline__ block_products::LaneInputs inputs_at(const std::uint8_t* block, int lane) {
  if constexpr (std::is_same_v<Codes, Nvfp4Codes>) {
    const std::uint8_t* const quarter = block + lane / 4 * 16 + lane % 4 * token_step_bytes;
    return {piece_at(quarter), piece_at(quarter + token_step_bytes / 2)};
  } else {
    const std::uint8_t* const at = block + lane * 4;
    return {make_uint4(word_at(at), word_at(at + 128), word_at(at + 256), word_at(at + 384)),
            make_uint4(word_at(at + 512), word_at(at + 640), word_at(at + 768), word_at(at + 896))};
  }
}

// A granule. Lane (g, t) gets rows 2t and 2t + 1 of x by row 2g of the granule in sums 0 and 1, and by row
// 2g + 1 in sums 2 and 3.
template <class Codes>
struct Strands<BlockMatrices<Codes>> {
  using Matrix = BlockMatrices<Codes>;
  static constexpr int a_unit = 2, unit_columns = block_granule_rows;
  Matrix matrix;

  using Strand = const std::uint8_t*;
  NIBBLE_HOST_DEVICE static int parts(const Matrix& of) { return of.shape.scale_blocks(); }
  NIBBLE_HOST_DEVICE static int strands(const Matrix& of) { return of.shape.granules(); }
  __device__ __forceinline__ Strand out_strand(int strand) const {
    return matrix.data + static_cast<std::size_t>(strand) * matrix.shape.granule_bytes();
  }
  __device__ __forceinline__ Strand unit_strand(int unit, int up, int of_two) const {
    return out_strand(unit + of_two * (up / block_granule_rows));
  }
  __device__ __forceinline__ static int out_row(int strand, int g, int sum) {
    return strand * block_granule_rows + 2 * g + sum / 2;
  }
  template <int count>
  __device__ __forceinline__ void multiply(float (&sums)[count][4], const Strand (&strands)[count],
                                           const std::uint8_t* x, int part, int lane) const {
    const int blocks = min(2, matrix.shape.blocks() - 2 * part);
    block_products::Share<Codes> share[count][2];
    block_products::LaneInputs inputs[2][1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half >= blocks) break;
      const int block = 2 * part + half;
#pragma unroll
      for (int i = 0; i < count; ++i)
        load_share(share[i][half], strands[i] + static_cast<std::size_t>(block) * Codes::block_bytes, lane);
      inputs[half][0] = inputs_at<Codes>(x + block * token_block_bytes, lane);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      float of_one[1][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (half < blocks) block_products::multiply_block(of_one, share[i][half], inputs[half]);
      }
#pragma unroll
      for (int sum = 0; sum < 4; ++sum) sums[i][sum] = of_one[0][sum];
    }
  }
  // Of up to most_parts parts lane i has those of i and of i + 32, asked for together before they are needed.
  struct Factors {
    float mine[2] = {1, 1};
    __device__ __forceinline__ float of(int part) const {
      return __shfl_sync(0xffffffffu, part < 32 ? mine[0] : mine[1], part % 32);
    }
  };
  __device__ __forceinline__ Factors out_factors(int strand, int sum) const {
    const int parts = matrix.shape.scale_blocks(), lane = static_cast<int>(threadIdx.x) % 32;
    const float* const at = reinterpret_cast<const float*>(
        matrix.factors + static_cast<std::size_t>(strand) * static_cast<std::size_t>(parts));
    Factors factors;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (const int part = lane + 32 * i; part < parts) factors.mine[i] = at[2 * part + sum / 2];
    }
    return factors;
  }
  __device__ __forceinline__ Factors unit_factors(int unit, int up, int of_two, int sum) const {
    return out_factors(unit + of_two * (up / block_granule_rows), sum);
  }
  __device__ __forceinline__ static float add(float total, float sum, int, float factor) {
    return block_products::add_block<Codes>(total, sum, factor);
  }
};

}  // namespace strands

namespace {

using namespace strands;

constexpr int shared_registers = 112;  // of a thread, at most
constexpr std::size_t most_found = 64 * 1024;
constexpr int most_parts = 64;
// Of more bytes launches of their own, which have rings, are sooner done than loads straight to registers: 88
// MB of one row in bfloat16, 19 MB of eight rows.
constexpr std::size_t most_weights(int rows) { return std::size_t{rows == 1 ? 20u : 8u} << 20; }

template <class Matrix>
struct SharedParams {
  Strands<Matrix> gate_up, down;
  const std::uint8_t* x;
  int rows, width, up, hidden;
  GatedUnit unit;
  Strands<DenseTiles> share;
  bool rows_are_there;
  std::uint8_t* activations;
  std::uint32_t* arrived;
  std::uint32_t* stuck;
  float* out;
  float* logits;
  float* weight;
  std::int32_t* id;
};

// h of some of its columns.
template <class Matrix>
__device__ __forceinline__ void make_unit(const SharedParams<Matrix>& params, int unit, Found found) {
  using Of = Strands<Matrix>;
  const Of& of = params.gate_up;
  const int parts = of.parts(of.matrix), lane = static_cast<int>(threadIdx.x) % 32;
  typename Of::Strand strands[Of::a_unit];
#pragma unroll
  for (int i = 0; i < Of::a_unit; ++i) strands[i] = of.unit_strand(unit, params.up, i);
  // Of one strand sums 0 and 1 are gates and the others ups, or all four of each of two.
  const int sum = ptx::warp_of_block();
  constexpr int of_gates = 2 * Of::a_unit;
  typename Of::Factors of_gate, of_up;
  if (sum < of_gates) {
    of_gate = of.unit_factors(unit, params.up, 0, sum);
    of_up = of.unit_factors(unit, params.up, Of::a_unit - 1, sum);
  }
  find(of, strands, params.x, found);
  __syncthreads();  // all parts' sums are there
  if (sum < of_gates) {
    const float gate = total_of(of, of_gate, found, sum);
    const float up =
        Of::a_unit == 1 ? total_of(of, of_up, found, sum + 2) : total_of(of, of_up, found + parts, sum);
    const int row = lane % 4 * 2 + sum % 2;
    const int column = unit * Of::unit_columns + (Of::a_unit == 1 ? lane / 4 : Of::out_row(0, lane / 4, sum));
    const std::uint32_t pair = ptx::pack_bf16x2(gated_on_device(gate, up, params.unit), 0.0f);
    *reinterpret_cast<std::uint16_t*>(params.activations + token_offset(0, row, column)) =
        static_cast<std::uint16_t>(pair);
  }
  __syncthreads();  // the sums have been read
}

// The rows' logits, and of one row what a choice of this expert has.
template <class Matrix>
__device__ __forceinline__ void make_share(const SharedParams<Matrix>& params, Found found) {
  const bool given = params.share.matrix.data != nullptr;
  if (given) {
    const Strands<DenseTiles>::Strand row[1] = {{params.share.eight(0), params.share.eight(32)}};
    find(params.share, row, params.x, found);
  }
  __syncthreads();  // all parts' sums are there
  // Row 0 of the matrix is the first lanes'.
  const int sum = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane % 4 * 2 + sum;
  if (sum < 2 && lane < 4 && row < params.rows) {
    const float logit = given ? total_of(params.share, Strands<DenseTiles>::Factors{}, found, sum) : 0.0f;
    if (params.logits != nullptr) params.logits[row] = logit;
    if (row == 0 && params.weight != nullptr) {
      *params.weight = given ? 1.0f / (1.0f + fixed_exp(-logit)) : 1.0f;
      *params.id = 0;
    }
  }
  __syncthreads();  // the sums have been read
}

template <class Matrix>
__device__ __forceinline__ void make_out(const SharedParams<Matrix>& params, int strand, Found found) {
  using Of = Strands<Matrix>;
  const Of& of = params.down;
  const typename Of::Strand strands[1] = {of.out_strand(strand)};
  const int sum = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  typename Of::Factors factors;
  if (sum < 4) factors = of.out_factors(strand, sum);
  find(of, strands, params.activations, found);
  __syncthreads();  // all parts' sums are there
  if (sum < 4) {
    const float total = total_of(of, factors, found, sum);
    const int row = lane % 4 * 2 + sum % 2, column = of.out_row(strand, lane / 4, sum);
    if (row < params.rows && column < params.hidden)
      params.out[static_cast<std::size_t>(row) * static_cast<std::size_t>(params.hidden) +
                 static_cast<std::size_t>(column)] = total;
  }
  __syncthreads();  // the sums have been read
}

template <class Matrix>
__global__ void __maxnreg__(shared_registers)
    shared_expert(const __grid_constant__ SharedParams<Matrix> params) {
  using Of = Strands<Matrix>;
  const Found found = reinterpret_cast<Found>(ptx::dynamic_shared());
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  ptx::grid_launch_dependents();
  if (!params.rows_are_there) ptx::grid_dependency_wait();
  const int units = params.width / Of::unit_columns;
#pragma unroll 1
  for (int unit = block; unit < units; unit += blocks) make_unit(params, unit, found);
  // By the first block that has fewer units than others, if there is one.
  if (block == units % blocks) make_share(params, found);
  if (threadIdx.x == 0)
    ptx::meet_blocks(params.arrived, static_cast<unsigned>(blocks), block == 0, params.stuck,
                     Stuck::shared_expert);
  __syncthreads();  // h of all blocks is there
  const int strands = Of::strands(params.down.matrix);
#pragma unroll 1
  for (int strand = block; strand < strands; strand += blocks) make_out(params, strand, found);
  // It ends behind the launch ahead, whose results who comes next takes for granted.
  ptx::grid_dependency_wait();
}

template <class Matrix>
std::size_t found_bytes(const Matrix& gate_up, const Matrix& down) {
  const int parts = std::max({Strands<Matrix>::a_unit * Strands<Matrix>::parts(gate_up),
                              Strands<Matrix>::parts(down), dense_k_chunks});
  return static_cast<std::size_t>(parts) * 4 * 32 * sizeof(float);
}

template <class Matrix>
void launch(const SharedExpertCudaArgs& args, const Matrix& gate_up, const Matrix& down,
            cudaStream_t stream) {
  using Of = Strands<Matrix>;
  const int most = std::max(args.width / Of::unit_columns + 1, Of::strands(down));
  const std::size_t bytes = found_bytes(gate_up, down);
  const auto kernel = shared_expert<Matrix>;
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(most, processors_of_device()))),
                 .threads = strands::threads,
                 .shared_bytes = bytes,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.x.tokens)},
                kernel,
                SharedParams<Matrix>{.gate_up = {gate_up},
                                     .down = {down},
                                     .x = args.x.data,
                                     .rows = args.x.tokens,
                                     .width = args.width,
                                     .up = args.up,
                                     .hidden = down.shape.rows,
                                     .unit = args.unit,
                                     .share = {args.share},
                                     .rows_are_there = args.rows_are_there,
                                     .activations = args.activations,
                                     .arrived = args.arrived,
                                     .stuck = args.stuck,
                                     .out = args.out,
                                     .logits = args.logits,
                                     .weight = args.weight,
                                     .id = args.id});
}

template <class Matrix>
WaitingGrid grid_of() {
  return waiting_grid("shared_expert",
                      {.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                       .threads = strands::threads,
                       .shared_bytes = most_found,
                       .share = share_of(1)},
                      shared_expert<Matrix>);
}

}  // namespace

WaitingGrids waiting_grids_of_shared_expert() {
  return {grid_of<DenseTiles>(), grid_of<BlockMatrices<E4m3Codes>>(), grid_of<BlockMatrices<Nvfp4Codes>>()};
}

bool shared_expert_takes(const SharedExpertMatrix& gate_up, const SharedExpertMatrix& down, int width,
                         int rows) {
  if (rows > shared_expert_max_rows || width % dense_k != 0 || gate_up.index() != down.index()) return false;
  return std::visit(
      [&]<class Matrix>(const Matrix& of_gates) {
        const Matrix& of_outputs = std::get<Matrix>(down);
        return found_bytes(of_gates, of_outputs) <= most_found &&
               Strands<Matrix>::parts(of_gates) <= most_parts &&
               Strands<Matrix>::parts(of_outputs) <= most_parts &&
               of_gates.shape.bytes() + of_outputs.shape.bytes() <= most_weights(rows);
      },
      gate_up);
}

Status shared_expert_cuda(const SharedExpertCudaArgs& args, cudaStream_t stream) {
  if (!shared_expert_takes(args.gate_up, args.down, args.width, args.x.tokens) ||
      args.up % block_granule_rows != 0) {
    return invalid_argument("a shared expert in one launch takes up to " +
                            std::to_string(shared_expert_max_rows) + " rows, and widths in " +
                            std::to_string(dense_k) + "s of two matrices of a kind, not " +
                            std::to_string(args.x.tokens) + " of " + std::to_string(args.width) +
                            " with ups from " + std::to_string(args.up));
  }
  if (args.weight != nullptr && args.x.tokens > 1)
    return invalid_argument("the share of one row joins its choices, not of " +
                            std::to_string(args.x.tokens));
  if (args.x.tokens == 0) return {};
  std::visit([&]<class Matrix>(
                 const Matrix& of_gates) { launch(args, of_gates, std::get<Matrix>(args.down), stream); },
             args.gate_up);
  return {};
}

}  // namespace nibble
