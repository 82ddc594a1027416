// linear for one row that each block makes itself: a residual with its experts' products, normed. For what it
// adds in which order see dense_tiles.h and rms_norm_cuda.h.
//
// Bytes: 2 a weight, once, as for few tokens (sm90_bf16_linear_few.cu), and 4 x hidden x (1 + experts) that
// every block reads from the second-level cache, 58 KB for gpt-oss, while the first 128 KB of its weights
// come. FLOPs: those of few tokens.
//
// Work is dealt in units (dense_units.cuh). Residual and products land in the ring's last stages, whose first
// weights wait until the norm has read them: as bulk copies they are there in half the time that loads take
// beside the weights. The row then lies as it is, one column after the other: as an operand of wgmma its
// eight columns begin 16 bytes apart, so they overlap. The first is the row; what the others add up nobody
// reads.
//
// The warps that multiply make the norm, each thread what two of a block of the norm's own kernel have. They
// are four, one to a scheduler, so what counts is how few instructions it takes and that none of them
// branches. One more warp fetches weights, another the rest.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/linear/cuda/dense_units.cuh"
#include "ops/linear/cuda/norm_linear_cuda.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/warpgroup.cuh"
#include "ops/rms_norm/cuda/norm_row.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int normed_threads = product_threads + 64;
constexpr int most_stages = 12;    // of a ring
constexpr int landing_stages = 6;  // of those, at most
constexpr int early_stages = 2;    // on their way together while the ring fills
constexpr int row_barrier = 1;
// Behind the row, for its last product: an operand of eight columns, of which the row is one, is 256 bytes to
// compute-sanitizer, though the columns here begin 16 bytes apart.
constexpr int row_bytes_past = 256 - 16 * 2;
constexpr int halves = norm_threads / product_threads;

template <class Output>
struct NormedParams {
  FewParams<Output> product;
  AddRmsNormCudaArgs norm;
  int landing;  // the first of the stages in which residual and products land
};

struct RingBarriers {
  std::uint64_t weights[most_stages], empty[most_stages];
  std::uint64_t landed, landed_read;  // residual and products have come; and have been read

  __device__ void init(int stages) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(&weights[stage], 1);
      ptx::mbarrier_init(&empty[stage], product_threads / 32);
    }
    ptx::mbarrier_init(&landed, 1);
    ptx::mbarrier_init(&landed_read, product_threads / 32);
    ptx::fence_mbarrier_init();
  }
};

// By one lane, all but the first stage, which is on its way.
template <class Output>
__device__ __forceinline__ void fetch_weights(const NormedParams<Output>& params, std::uint8_t* ring,
                                              RingBarriers& barriers, int begin, int end) {
  const int stages = params.product.stages;
  const auto fetch = [&](const Pieces<>& piece, int stage, int index) {
    if (index == 0) return;
    if (index >= early_stages && index < stages)
      ptx::mbarrier_wait(&barriers.weights[index - early_stages], 0);
    if (index == params.landing) ptx::mbarrier_wait(&barriers.landed_read, 0);
    order_weights(params.product.weights, piece, ring + stage * stage_weight_bytes, &barriers.weights[stage]);
  };
  for_each_stage(Pieces(params.product.shape, begin, end), {barriers.empty, stages, params.product.stuck},
                 fetch);
}

// By one thread: the residual and the products, one after the other.
__device__ __forceinline__ void land(const AddRmsNormCudaArgs& args, float* landed, std::uint64_t* come) {
  ptx::grid_dependency_wait();
  const std::uint32_t row = static_cast<std::uint32_t>(args.hidden) * sizeof(float);
  const std::uint32_t products = row * static_cast<std::uint32_t>(args.experts.top_k);
  ptx::mbarrier_arrive_expecting(come, row + products);
  ptx::bulk_copy_to_shared(landed, args.residual, row, come);
  ptx::bulk_copy_to_shared(landed + args.hidden, args.experts.products, products, come);
}

// A thread has `eights` times eight columns, those of two threads of the norm's own kernel in its passes.
constexpr int eights_apart = product_threads * 8, most_eights = halves * norm_passes;
__device__ __forceinline__ int column_of(int eight) {
  return eight * eights_apart + static_cast<int>(threadIdx.x) * 8;
}

// Eight columns in shared memory, of which four lanes in eight take the upper half first: so a warp's are
// never in one bank.
__device__ __forceinline__ Eight turned_eight(const float* at) {
  const int first = static_cast<int>(threadIdx.x) & 4;
  return {*reinterpret_cast<const float4*>(at + first), *reinterpret_cast<const float4*>(at + (first ^ 4))};
}
__device__ __forceinline__ Eight turned_back(const Eight& eight) {
  const bool turned = (threadIdx.x & 4) != 0;
  const auto choose = [turned](const float4& a, const float4& b) {
    return make_float4(turned ? a.x : b.x, turned ? a.y : b.y, turned ? a.z : b.z, turned ? a.w : b.w);
  };
  return {choose(eight.high, eight.low), choose(eight.low, eight.high)};
}

// Some of a row's choices.
struct Choices {
  std::int32_t ids[choices_at_once];
  float weights[choices_at_once];
};

// x += their weighted products, of which the first begins at `products`. all_there: none is -1.
template <bool all_there, int eights>
__device__ __forceinline__ void add_products(Eight (&x)[eights], const Choices& choices,
                                             const float* products, int hidden) {
#pragma unroll
  for (int eight = 0; eight < eights; ++eight) {
    const int column = min(column_of(eight), hidden - 8);
    Eight product[choices_at_once] = {};
#pragma unroll
    for (int i = 0; i < choices_at_once; ++i) {
      if (all_there || choices.ids[i] >= 0) product[i] = turned_eight(products + i * hidden + column);
    }
#pragma unroll
    for (int i = 0; i < choices_at_once; ++i) {
      if (all_there || choices.ids[i] >= 0) x[eight] = add(x[eight], times(product[i], choices.weights[i]));
    }
  }
}

// The new residual: what landed, [1 + top_k, hidden], added up. id, weight: lane i's are choice i's, -1 past
// the last.
template <int eights>
__device__ __forceinline__ void add_up(Eight (&x)[eights], const float* landed, int hidden, int top_k,
                                       std::int32_t id, float weight) {
  const unsigned there = __ballot_sync(0xffffffffu, id >= 0);
  // To add a first term to -0 leaves it as it is.
  const float nothing = there != 0 ? -0.0f : 0.0f;
#pragma unroll
  for (Eight& sum : x) sum.low = sum.high = make_float4(nothing, nothing, nothing, nothing);
#pragma unroll 1
  for (int first = 0; first < top_k; first += choices_at_once) {
    Choices choices;
#pragma unroll
    for (int i = 0; i < choices_at_once; ++i) {
      choices.ids[i] = __shfl_sync(0xffffffffu, id, first + i);
      choices.weights[i] = __shfl_sync(0xffffffffu, weight, first + i);
    }
    const float* const products = landed + (1 + first) * hidden;
    constexpr unsigned all = (1u << choices_at_once) - 1;
    if ((there >> first & all) == all) {
      add_products<true>(x, choices, products, hidden);
    } else {
      add_products<false>(x, choices, products, hidden);
    }
  }
#pragma unroll
  for (int eight = 0; eight < eights; ++eight)
    x[eight] = turned_back(add(turned_eight(landed + min(column_of(eight), hidden - 8)), x[eight]));
}

// The norm in shared memory, zeros from hidden to `padded`, by the threads that multiply; the first blocks
// store the new residual, some warps' columns each.
template <int eights>
__device__ __forceinline__ void norm_row(const AddRmsNormCudaArgs& args, const float* landed,
                                         RingBarriers& barriers, Bf16* row, int padded,
                                         float (&of_warp)[norm_warps]) {
  const int hidden = args.hidden, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const ExpertParts& experts = args.experts;
  uint4 weights[eights];
#pragma unroll
  for (int eight = 0; eight < eights; ++eight)
    weights[eight] = *reinterpret_cast<const uint4*>(args.weight + min(column_of(eight), hidden - 8));
  // What an output reads besides the sums may come from the grid before, too, and what is left by other
  // blocks was made absent by it.
  ptx::grid_dependency_wait();
  std::int32_t id = -1;
  float id_weight = 0;
  if (lane < experts.top_k) {
    id = __ldcg(experts.expert_ids + lane);
    id_weight = __ldcg(experts.expert_weights + lane);
  }
  ptx::mbarrier_wait(&barriers.landed, 0);
  Eight x[eights];
  add_up(x, landed, hidden, experts.top_k, id, id_weight);
  float own[halves] = {};
#pragma unroll
  for (int eight = 0; eight < eights; ++eight) {
    const float sum = squares(own[eight % halves], x[eight]);
    own[eight % halves] = column_of(eight) < hidden ? sum : own[eight % halves];
  }
#pragma unroll
  for (int half = 0; half < halves; ++half) {
    own[half] = sum_of_warp(own[half]);
    if (lane == 0) of_warp[half * (norm_warps / halves) + warp] = own[half];
  }
  ptx::named_barrier(row_barrier, product_threads);  // every warp's sums are there
  if (lane == 0) ptx::mbarrier_arrive(&barriers.landed_read);
  const float scale = norm_scale(of_warp, hidden, args.eps);
#pragma unroll
  for (int eight = 0; eight < eights; ++eight) {
    const int column = column_of(eight);
    const uint4 words = scaled(x[eight], scale, weights[eight]);
    if (column < padded)
      *reinterpret_cast<uint4*>(row + column) = column < hidden ? words : make_uint4(0, 0, 0, 0);
  }
  ptx::fence_shared_writes();
  ptx::named_barrier(row_barrier, product_threads);  // the row is there, for products too
  if (blockIdx.x >= norm_warps) return;
#pragma unroll
  for (int eight = 0; eight < eights; ++eight) {
    const int norm_warp = eight % halves * (norm_warps / halves) + warp, column = column_of(eight);
    if (norm_warp % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x) && column < hidden)
      store_eight(args.residual_out + column, x[eight]);
  }
}

// The multiplying warpgroup's way through the ring.
struct Products {
  const Bf16* row;
  const std::uint8_t* ring;
  RingBarriers& barriers;
  int stages;
  RingTurn turn;

  // Of k64 blocks [begin, past), from zero.
  __device__ __forceinline__ void multiply(float (&sums)[token_group / 2], int begin, int past) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    int before = -1;
#pragma unroll 1
    for (int block = begin; block < past; block += stage_blocks) {
      ptx::mbarrier_wait(&barriers.weights[turn.stage], turn.round & 1);
      __syncwarp();
      multiply_stage<OneRow>(sums, ring + turn.stage * stage_weight_bytes,
                             reinterpret_cast<const std::uint8_t*>(row + block * dense_k), past - block);
      leave_stage(barriers.empty, before);
      before = turn.stage;
      turn.next(stages);
    }
    ptx::wgmma_wait(sums);
    leave_stage(barriers.empty, before);
  }
  __device__ __forceinline__ void add_others(float (&totals)[token_group / 2], float4* left, int from,
                                             std::uint32_t* stuck) const {
    add_left_sums<token_group>(totals, left, from, stuck);
  }
};

// Registers a thread may have: a quarter of a multiprocessor, 512 a lane, holds two of these six warps and of
// attention three of nine, of 96, or two of eight, of 128.
constexpr int most_registers = 112;

template <int eights, class Output>
__global__ void __maxnreg__(most_registers)
    sm90_bf16_linear_normed(const __grid_constant__ NormedParams<Output> params) {
  __shared__ RingBarriers barriers;
  __shared__ float of_warp[norm_warps];
  std::uint8_t* const ring = ptx::dynamic_shared();
  const FewParams<Output>& product = params.product;
  Bf16* const row = reinterpret_cast<Bf16*>(ring + product.stages * stage_weight_bytes);
  const Units units{static_cast<unsigned>(product.shape.tiles()) * dense_k_chunks};
  const int begin = units.border(blockIdx.x), end = units.border(blockIdx.x + 1);
  const int warp = ptx::warp_of_block();
  if (threadIdx.x == normed_threads - 32) {  // who fetches weights: the first are on their way at once
    barriers.init(product.stages);
    const Pieces first(product.shape, begin, end);
    if (first.more()) order_weights(product.weights, first, ring, &barriers.weights[0]);
  }
  __syncthreads();  // the barriers are ready
  ptx::grid_launch_dependents();
  float* const landed = reinterpret_cast<float*>(ring + params.landing * stage_weight_bytes);
  if (warp < product_threads / 32) {
    norm_row<eights>(params.norm, landed, barriers, row, product.shape.padded_cols(), of_warp);
    multiply_units<token_group>(product, Products{row, ring, barriers, product.stages, {}}, units, begin,
                                end);
  } else if (warp == product_threads / 32) {
    if (threadIdx.x % 32 == 0) {
      land(params.norm, landed, &barriers.landed);
    }
  } else if (threadIdx.x % 32 == 0) {
    fetch_weights(params, ring, barriers, begin, end);
  }
}

// What lands: the residual and the experts' products.
int landing_bytes(const AddRmsNormCudaArgs& norm) {
  return (1 + norm.experts.top_k) * norm.hidden * static_cast<int>(sizeof(float));
}

// Of the longest ring, behind which lies the longest row.
template <int eights, class Output>
WaitingGrid grid_of() {
  constexpr int most_bytes =
      most_stages * stage_weight_bytes + norm_passes * norm_pass_columns * 2 + row_bytes_past;
  return waiting_grid("sm90_bf16_linear_normed",
                      {.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                       .threads = normed_threads,
                       .shared_bytes = most_bytes,
                       .share = share_of(1)},
                      sm90_bf16_linear_normed<eights, Output>);
}

}  // namespace

template <class Output>
void run_normed(const DenseRun& run, const AddRmsNormCudaArgs& norm, const Output& output,
                cudaStream_t stream) {
  const SharedShare share = share_of(1);
  const int row_bytes = run.weight.shape.padded_cols() * 2 + row_bytes_past;
  const int room = share.bytes - run.beside - 2 * shared_of_block - row_bytes;
  // The residual and the products land in the last stages, behind the early ones. Where the block beside this
  // one leaves too little for both, the ring has its least size and the two run one after the other.
  const int landed = (landing_bytes(norm) + stage_weight_bytes - 1) / stage_weight_bytes;
  const int stages = std::clamp(room / stage_weight_bytes, early_stages + landed, most_stages);
  const int landing = stages - landed;
  const int shared_bytes = stages * stage_weight_bytes + row_bytes;
  // One for up to 3,072 columns, as gpt-oss has, and one for all.
  constexpr int few_eights = most_eights - 1;
  const auto kernel = norm.hidden <= few_eights * eights_apart ? sm90_bf16_linear_normed<few_eights, Output>
                                                               : sm90_bf16_linear_normed<most_eights, Output>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(run.blocks)),
                 .threads = normed_threads,
                 .shared_bytes = static_cast<std::size_t>(shared_bytes),
                 .stream = stream,
                 .overlaps = true,
                 .share = share},
                kernel,
                NormedParams<Output>{.product = {.weights = run.weight.data,
                                                 .x = nullptr,
                                                 .shape = run.weight.shape,
                                                 .first_token = 0,
                                                 .tokens = 1,
                                                 .stages = stages,
                                                 .sums = reinterpret_cast<float4*>(run.workspace.few_sums),
                                                 .stuck = run.workspace.stuck,
                                                 .output = output},
                                     .norm = norm,
                                     .landing = landing});
}

WaitingGrids waiting_grids_of_linear_normed() {
  constexpr int few_eights = most_eights - 1;
  return {grid_of<few_eights, RowsOutput>(), grid_of<most_eights, RowsOutput>(),
          grid_of<few_eights, QkvOutput>(), grid_of<most_eights, QkvOutput>()};
}

template void run_normed(const DenseRun&, const AddRmsNormCudaArgs&, const RowsOutput&, cudaStream_t);
template void run_normed(const DenseRun&, const AddRmsNormCudaArgs&, const QkvOutput&, cudaStream_t);

bool norm_linear_takes(const AddRmsNormCudaArgs& norm, const DenseShape& weight) {
  return norm.rows == 1 && norm.experts.products != nullptr && norm.residual_out != norm.residual &&
         !norm.weight_less_one && norm.hidden == weight.cols && norm.hidden % 8 == 0 &&
         norm.hidden <= norm_passes * norm_pass_columns && norm.experts.top_k <= 32 &&
         landing_bytes(norm) <= landing_stages * stage_weight_bytes;
}

}  // namespace nibble
