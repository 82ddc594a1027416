// The expert layer for one row, of weights in granules of any format, with the bits of the kernel for few
// tokens (sm90_moe_decode.cu).
//
// A row's choices are all there is to know: which granules a block has follows from its number, so there are
// no tables, and every column of a product is the row. A block a multiprocessor has eight teams of three
// warps. A team takes every `teams`-th granule of its block's share of either product; each of its warps has
// a chunk of K and a ring of its own, which it fills with bulk copies as it leaves a stage. The first chunk's
// warp adds the others' sums in order. The row, and later the rows of h that a block reads, lie in shared
// memory. The second product needs all of h, so the grid meets once; a warp's ring has that product's first
// weights by then. Blocks wait for one another, so all must be resident: at most one a multiprocessor.
//
// Bytes: those of the chosen experts, once; 20 MB for Qwen3-30B-A3B. A warp's way through its few blocks is a
// chain of dependent instructions, which bounds it as much. So it is short, and a block leaves half of the
// multiprocessor's memory to that of the launch behind it, whose weights come meanwhile.
#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/moe/cuda/moe_decode_products.cuh"
#include "ops/moe/cuda/moe_row.h"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/give_up.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int team_warps = granule_k_chunks;
constexpr int stage_blocks = 3;  // k64 blocks
constexpr int places = 2;        // for a team's sums, taken in turn
constexpr int block_inputs = granule_k * static_cast<int>(sizeof(Bf16));

// Stages of a warp's ring, and for how many threads registers must do. Two blocks of a launch that came to
// one multiprocessor would leave another without any. Of LonePlan the registers do not let them, 64 a thread.
// With BesidePlan a shared expert's block of the launch behind finds registers beside 40 to 48 a thread;
// there the shared memory does not let two in.
template <int stages_of_ring, int most_threads_>
struct Plan {
  static constexpr int teams = 8, stages = stages_of_ring, most_threads = most_threads_;
  static constexpr int warps = teams * team_warps, threads = warps * 32;
};
using BesidePlan = Plan<3, 1024>;
using LonePlan = Plan<2, 768>;

template <class Layout>
constexpr int stage_bytes = stage_blocks* granule_block_bytes<Layout>;

// One of the layer's two products.
template <class Layout>
struct RowProduct {
  const std::uint8_t* weights;
  const Bf16* bias;  // [experts, rows]; null: without
  int rows, granules, granule_bytes;
  std::uint32_t of_granules;         // 2^32 over granules, rounded up
  int begins[granule_k_chunks + 1];  // of chunks: k64 blocks
  typename Layout::SumFactor factor;
};

template <class Layout>
struct RowParams {
  RowProduct<Layout> products[2];  // gate_up, down
  const Bf16* x;
  int choices;
  MoeTaken taken;
  const std::int32_t* expert_ids;
  Bf16* activations;  // [choices, h_stride], the second product's inputs
  int h_stride;
  float* out;  // [choices, hidden]
  std::uint32_t* arrived;
  std::uint32_t* stuck;
  GatedUnit unit;
  bool settles_rows;
  int h_rows;  // that a block has room for
};

// In shared memory, behind the rings and in front of the inputs.
template <class Plan>
struct alignas(16) RowShared {
  std::uint64_t full[Plan::warps][Plan::stages];
  float2 sums[Plan::teams][places][granule_k_chunks - 1][8];  // of a granule's even and odd rows
};

// What a block has of a product: granules [begin, end) of those of all choices.
struct BlockShare {
  int begin, end;

  __device__ BlockShare(int granules, int choices) {
    const unsigned all = static_cast<unsigned>(granules * choices);
    begin = static_cast<int>(all * blockIdx.x / gridDim.x);
    end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
  }
  __device__ int of_team(int team, int teams) const {
    return begin + team < end ? (end - begin - team + teams - 1) / teams : 0;
  }
};

// One of a warp's granules.
struct Unit {
  int choice, granule;  // the latter of the choice's expert
  std::int32_t expert;  // -1: none
};

// A warp's part of the layer. Its units are numbered through both products.
template <class Layout, class Plan>
struct RowWorker {
  const RowParams<Layout>& params;
  std::uint8_t* ring;   // [stages, stage_bytes], the warp's
  std::uint64_t* full;  // [stages]
  int lane, team, chunk;
  std::int32_t expert_of_lane;  // of the choice with the lane's number
  int begin, second_begin;      // the team's first granules of both products
  int count, second_count;
  // What is fetched next.
  int fetched = 0, left = 0;  // unit; its k64 blocks that are still to be fetched
  const std::uint8_t* from = nullptr;
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ Unit unit_at(int index) const {
    const bool second = index >= count;
    const RowProduct<Layout>& product = params.products[second];
    const int at = second ? second_begin + (index - count) * Plan::teams : begin + index * Plan::teams;
    // At most 16 choices of fewer than 2^14 granules: what rounding adds carries nothing over.
    const int choice = static_cast<int>(__umulhi(static_cast<unsigned>(at), product.of_granules));
    return {choice, at - choice * product.granules, __shfl_sync(0xffffffffu, expert_of_lane, choice)};
  }
  __device__ __forceinline__ int blocks_of(int second) const {
    const RowProduct<Layout>& product = params.products[second];
    return product.begins[chunk + 1] - product.begins[chunk];
  }

  // Fetches what comes next, if anything does, into a stage that the whole warp has left.
  __device__ __forceinline__ void fetch(int into, bool rehearsal = false) {
    while (left == 0) {
      if (fetched == count + second_count) return;
      const Unit unit = unit_at(fetched);
      const int second = fetched >= count;
      ++fetched;
      if (unit.expert < 0) continue;
      const RowProduct<Layout>& product = params.products[second];
      const unsigned index = static_cast<unsigned>(unit.expert * product.granules + unit.granule);
      from = product.weights + std::uint64_t{index} * static_cast<unsigned>(product.granule_bytes) +
             product.begins[chunk] * granule_block_bytes<Layout>;
      left = blocks_of(second);
    }
    constexpr std::uint32_t few_bytes = 16;
    const int blocks = min(left, stage_blocks);
    const std::uint32_t bytes = static_cast<std::uint32_t>(blocks * granule_block_bytes<Layout>);
    if (ptx::elected_lane()) {
      const std::uint32_t asked = rehearsal ? few_bytes : bytes;
      ptx::mbarrier_arrive_expecting(full + into, asked);
      ptx::bulk_copy_once_to_shared(ring + into * stage_bytes<Layout>, from, asked, full + into);
    }
    from += bytes;
    left -= blocks;
  }
  __device__ __forceinline__ void fill_ring(bool rehearsal) {
    fetched = left = 0;
#pragma unroll
    for (int into = 0; into < Plan::stages; ++into) fetch(into, rehearsal);
    __syncwarp();  // products need all lanes at once
  }
  // Leaves the ring as it was before a rehearsal.
  __device__ __forceinline__ void await_rehearsal() {
    int asked = 0;
    for (int unit = 0; unit < count + second_count; ++unit)
      asked += (blocks_of(unit >= count) + stage_blocks - 1) / stage_blocks;
#pragma unroll
    for (int into = 0; into < Plan::stages; ++into) {
      if (into < asked)
        ptx::mbarrier_wait(full + into, 0);
      else if (lane == 0)
        ptx::mbarrier_arrive(full + into);
    }
    phase = 1;
  }

  // The sums of a unit's chunk, from zero. inputs: the lane's of the chunk's first block.
  __device__ __forceinline__ void multiply(float (&sums)[4], int blocks, const std::uint8_t* inputs) {
    sums[0] = sums[1] = sums[2] = sums[3] = 0;
    const int scales_at = granule_code_bytes + granule_lane_scales<Layout>(lane);
    const auto multiply_at = [&](const std::uint8_t* at, const std::uint8_t* of_block) {
      multiply_block<Layout>(sums, at + lane * 16, at + scales_at,
                             load_inputs(reinterpret_cast<const Bf16*>(of_block)));
    };
#pragma unroll 1
    for (int done = 0; done < blocks; done += stage_blocks) {
      const std::uint8_t* const at = ring + stage * stage_bytes<Layout>;
      ptx::mbarrier_wait(full + stage, phase);
      if (done + stage_blocks <= blocks) {
#pragma unroll
        for (int block = 0; block < stage_blocks; ++block)
          multiply_at(at + block * granule_block_bytes<Layout>, inputs + block * block_inputs);
      } else {
#pragma unroll 1
        for (int block = 0; block < blocks - done; ++block)
          multiply_at(at + block * granule_block_bytes<Layout>, inputs + block * block_inputs);
      }
      __syncwarp();  // all lanes have read the stage, which one of them is about to have overwritten
      fetch(stage);
      __syncwarp();  // the next products need all lanes at once
      stage = stage + 1 < Plan::stages ? stage + 1 : 0;
      if (stage == 0) phase ^= 1;
      inputs += stage_blocks * block_inputs;
    }
  }

  // Stores what became of a lane's two rows: h of a gate and its up projection, or two outputs.
  __device__ __forceinline__ void finish(int second, const Unit& unit, float even, float odd) const {
    const RowProduct<Layout>& product = params.products[second];
    const int row = unit.granule * granule_rows + lane / 4 * 2;
    std::uint32_t bias = 0;
    if (product.bias != nullptr) {
      bias = *reinterpret_cast<const std::uint32_t*>(
          product.bias + static_cast<std::size_t>(unit.expert) * static_cast<std::size_t>(product.rows) +
          static_cast<std::size_t>(row));
    }
    const PairFactors factors = product.factor.of(unit.expert);
    even = __fmul_rn(even, factors.even) + __uint_as_float(bias << 16);
    odd = __fmul_rn(odd, factors.odd) + __uint_as_float(bias & 0xffff0000u);
    if (second) {
      *reinterpret_cast<float2*>(
          params.out + static_cast<std::size_t>(unit.choice) * static_cast<std::size_t>(product.rows) +
          static_cast<std::size_t>(row)) = make_float2(even, odd);
    } else {
      reinterpret_cast<__nv_bfloat16*>(params.activations)[static_cast<std::size_t>(unit.choice) *
                                                               static_cast<std::size_t>(params.h_stride) +
                                                           static_cast<std::size_t>(row / 2)] =
          __float2bfloat16_rn(gated_on_device(even, odd, params.unit));
    }
  }

  // A product's units; inputs_of(choice): a row in shared memory. place: of the next sums.
  template <class InputsOf>
  __device__ __forceinline__ void run(int second, RowShared<Plan>& shared, int& place,
                                      const InputsOf& inputs_of) {
    const int first = second ? count : 0, past = second ? count + second_count : count;
    const bool holds = lane % 4 == 0;  // the product's first column
#pragma unroll 1
    for (int index = first; index < past; ++index) {
      const Unit unit = unit_at(index);
      if (unit.expert < 0) continue;
      float sums[4];
      multiply(sums, blocks_of(second),
               inputs_of(unit.choice) + params.products[second].begins[chunk] * block_inputs + lane % 4 * 32);
      float2(&others)[granule_k_chunks - 1][8] = shared.sums[team][place];
      if (chunk > 0 && holds) others[chunk - 1][lane / 4] = make_float2(sums[0], sums[2]);
      // Whoever writes to a place again has come here once more since, and so had who read it.
      ptx::named_barrier(1 + team, team_warps * 32);
      if (chunk == 0 && holds) {
        float even = sums[0], odd = sums[2];
#pragma unroll
        for (int other = 0; other < granule_k_chunks - 1; ++other) {
          even += others[other][lane / 4].x;
          odd += others[other][lane / 4].y;
        }
        finish(second, unit, even, odd);
      }
      __syncwarp();  // the next products need all lanes at once
      place ^= 1;
    }
  }
};

// By all threads: asks for `bytes` of rows that lie together.
__device__ __forceinline__ void copy_rows(std::uint8_t* to, const Bf16* from, int bytes) {
  for (int at = static_cast<int>(threadIdx.x) * 16; at < bytes; at += static_cast<int>(blockDim.x) * 16)
    ptx::copy_to_shared(to + at, reinterpret_cast<const std::uint8_t*>(from) + at);
}

template <class Layout, class Plan>
__global__ void __launch_bounds__(Plan::most_threads, 1)
    sm90_moe_row(const __grid_constant__ RowParams<Layout> params) {
  std::uint8_t* const rings = ptx::dynamic_shared();
  auto& shared =
      *reinterpret_cast<RowShared<Plan>*>(rings + Plan::warps * Plan::stages * stage_bytes<Layout>);
  std::uint8_t* const x = reinterpret_cast<std::uint8_t*>(&shared + 1);
  const int x_bytes = params.products[0].begins[granule_k_chunks] * block_inputs,
            h_bytes = params.products[1].begins[granule_k_chunks] * block_inputs;
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) {
    for (std::uint64_t& full : shared.full[warp]) ptx::mbarrier_init(&full, 1);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  if (!params.settles_rows) ptx::grid_launch_dependents();
  const BlockShare gates_ups(params.products[0].granules, params.choices),
      outputs(params.products[1].granules, params.choices);
  const int team = warp / team_warps;
  RowWorker<Layout, Plan> worker{.params = params,
                                 .ring = rings + warp * Plan::stages * stage_bytes<Layout>,
                                 .full = shared.full[warp],
                                 .lane = lane,
                                 .team = team,
                                 .chunk = warp % team_warps,
                                 .expert_of_lane = 0,
                                 .begin = gates_ups.begin + team,
                                 .second_begin = outputs.begin + team,
                                 .count = gates_ups.of_team(team, Plan::teams),
                                 .second_count = outputs.of_team(team, Plan::teams)};
  // The ring is filled once by made-up choices while the kernel before this one still runs, with a few bytes
  // in place of a stage: instructions and constants come from memory too.
#pragma unroll 1
  for (int rehearsal = 1; rehearsal >= 0; --rehearsal) {
    if (!rehearsal) {
      ptx::grid_dependency_wait();
      if (params.settles_rows) ptx::grid_launch_dependents();
      copy_rows(x, params.x, x_bytes);  // before the weights, behind which it would wait
      worker.expert_of_lane =
          lane < params.choices ? params.taken.expert_of(lane, params.expert_ids[lane]) : -1;
    }
    worker.fill_ring(rehearsal != 0);
    if (rehearsal) worker.await_rehearsal();
  }
  ptx::await_copies_to_shared();
  __syncthreads();  // the row is there
  int place = 0;
  worker.run(0, shared, place, [&](int) { return x; });
  __syncthreads();  // this block's h is stored
  if (threadIdx.x == 0)
    ptx::meet_blocks(params.arrived, gridDim.x, blockIdx.x == 0, params.stuck, Stuck::expert_grid);
  __syncthreads();  // the others read h after thread 0 has seen it
  if (outputs.begin >= outputs.end) return;
  const int granules = params.products[1].granules;
  const int first = outputs.begin / granules, past = (outputs.end - 1) / granules + 1;
  copy_rows(x,
            params.activations + static_cast<std::size_t>(first) * static_cast<std::size_t>(params.h_stride),
            (past - first) * h_bytes);
  ptx::await_copies_to_shared();
  __syncthreads();  // h is there
  worker.run(1, shared, place, [&](int choice) { return x + (choice - first) * h_bytes; });
}

template <class Layout, class Plan>
constexpr int fixed_bytes = Plan::warps* Plan::stages* stage_bytes<Layout> +
                            static_cast<int>(sizeof(RowShared<Plan>));

static_assert(fixed_bytes<Mxfp4GranuleLayout, BesidePlan> >= shared_of_lone_block);

// Of inputs as large as other layers have them.
template <class Layout, class Plan>
WaitingGrid grid_of() {
  constexpr int most_inputs = 32 * 1024;
  return waiting_grid("sm90_moe_row",
                      {.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                       .threads = Plan::threads,
                       .shared_bytes = static_cast<std::size_t>(fixed_bytes<Layout, Plan> + most_inputs),
                       .share = share_of(1)},
                      sm90_moe_row<Layout, Plan>);
}

template <class Plan, class Granules>
void launch(const RowParams<typename Granules::Layout>& params, int blocks, cudaStream_t stream) {
  using Layout = typename Granules::Layout;
  const int inputs = std::max(params.products[0].begins[granule_k_chunks],
                              params.h_rows * params.products[1].begins[granule_k_chunks]) *
                     block_inputs;
  const int bytes = fixed_bytes<Layout, Plan> + inputs;
  const auto kernel = sm90_moe_row<Layout, Plan>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)),
                 .threads = Plan::threads,
                 .shared_bytes = static_cast<std::size_t>(bytes),
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(1)},
                kernel, params);
}

}  // namespace

WaitingGrids waiting_grids_of_moe_row() {
  return {grid_of<Mxfp4GranuleLayout, BesidePlan>(), grid_of<Mxfp4GranuleLayout, LonePlan>(),
          grid_of<Nvfp4GranuleLayout, BesidePlan>(), grid_of<Nvfp4GranuleLayout, LonePlan>(),
          grid_of<Int4GranuleLayout, BesidePlan>(),  grid_of<Int4GranuleLayout, LonePlan>()};
}

template <class Granules>
void moe_row_cuda(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args, int blocks,
                  cudaStream_t stream) {
  using Layout = typename Granules::Layout;
  const auto product = [](const Granules& matrix, const Bf16* bias) {
    RowProduct<Layout> made{
        .weights = matrix.data,
        .bias = bias,
        .rows = matrix.shape.rows,
        .granules = matrix.shape.granules(),
        .granule_bytes = matrix.shape.granule_bytes(),
        .of_granules = static_cast<std::uint32_t>(
            ((std::uint64_t{1} << 32) + static_cast<std::uint64_t>(matrix.shape.granules()) - 1) /
            static_cast<std::uint64_t>(matrix.shape.granules())),
        .begins = {},
        .factor = matrix.factor()};
    for (int chunk = 0; chunk <= granule_k_chunks; ++chunk)
      made.begins[chunk] = matrix.shape.chunk_begin(chunk);
    return made;
  };
  const auto of_block = [&](const Granules& matrix) {  // at most
    return (args.top_k * matrix.shape.granules() + blocks - 1) / blocks;
  };
  const RowParams<Layout> params{
      .products = {product(weights.gate_up, weights.gate_up_bias), product(weights.down, weights.down_bias)},
      .x = args.x,
      .choices = args.top_k,
      .taken = taken_of(args.share, weights.gate_up.experts),
      .expert_ids = args.expert_ids,
      .activations = args.workspace.activations,
      .h_stride = weights.down.shape.padded_cols(),
      .out = args.workspace.products,
      .arrived = args.workspace.arrived,
      .stuck = args.workspace.stuck,
      .unit = weights.unit,
      .settles_rows = args.settles_rows,
      .h_rows = std::min(args.top_k, of_block(weights.down) / weights.down.shape.granules() + 2)};
  args.settles_rows ? launch<BesidePlan, Granules>(params, blocks, stream)
                    : launch<LonePlan, Granules>(params, blocks, stream);
}

template void moe_row_cuda(const MoeMxfp4CudaWeights&, const MoeCudaArgs&, int, cudaStream_t);
template void moe_row_cuda(const MoeNvfp4CudaWeights&, const MoeCudaArgs&, int, cudaStream_t);
template void moe_row_cuda(const MoeInt4CudaWeights&, const MoeCudaArgs&, int, cudaStream_t);

}  // namespace nibble
