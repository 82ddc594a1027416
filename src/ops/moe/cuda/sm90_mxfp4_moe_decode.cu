// moe_mxfp4 for few tokens: both products in one kernel that streams every used expert's weights once, then a
// kernel that adds a token's experts (moe_steps.cuh).
//
// Bytes: 17/32 a weight, (3 x hidden x intermediate) weights an expert in use: 13.2 MB for gpt-oss, 2.85 us
// at 4,650 GB/s. FLOPs: 2 a weight and token, on tensor cores whose 8 columns are the expert's tokens.
// Instructions are the next bound: about 20 a warp and k16 step of 16 rows, 2.1 us an expert of gpt-oss on
// 132 multiprocessors that issue one a cycle and scheduler; what a warp does once a granule is on top of
// that.
//
// A block a multiprocessor, three teams of 8 warps in it. A team takes every third of its block's granules,
// its warps a chunk of K each. Each team has a ring of its own, which bulk copies fill. A chunk's sums go to
// shared memory, where one of the team's warps (they take turns) adds them in order, refills the stage that
// all have then left, and finishes the rows. Granules are dealt to blocks in equal contiguous ranges, which
// moves bytes in time but no bit.
//
// The second product needs all of h, so the grid meets once, while the rings already fill with its weights.
// Blocks wait for one another: all must be resident, so there are at most as many as multiprocessors.
#include <cuda_bf16.h>

#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda/expert_groups.cuh"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int teams = 3;
constexpr int team_warps = granule_k_chunks;
constexpr int decode_threads = teams * team_warps * 32;
constexpr int tile_tokens = 8;  // columns of one tensor-core product
constexpr int max_team_stages = 4;
constexpr int shared_limit =
    176 * 1024;  // of ring and sums; leaves the first-level cache room for activations
constexpr int sums_bytes = team_warps * 32 * static_cast<int>(sizeof(float4));  // of one stage

// One of the layer's two products as the kernel sees it.
struct Product {
  const std::uint8_t* weights;
  const Bf16* bias;    // [experts, rows]
  const Bf16* inputs;  // [.., input_stride]
  int input_stride;
  int slots_a_row;  // of the inputs: top_k for x, 1 for h
  float scale;      // 2^exponent_shift
  GranuleShape shape;
};

struct DecodeParams {
  Product products[2];  // gate_up, down
  int slots, experts;
  const std::int32_t* expert_ids;
  Bf16* activations;  // [slots, padded intermediate], the second product's inputs
  float* out;         // [slots, hidden]
  std::uint32_t* arrived;
  float swiglu_limit;
  int team_stages, stage_bytes;
};

// `full`: the stage holds its granule. `sums`: all warps of the team have read it and left their chunk's
// sums.
struct Barriers {
  std::uint64_t full[teams][max_team_stages], sums[teams][max_team_stages];
};

// A block's granules: of all active experts' granules of a product, one after the other, those from begin on.
struct Share {
  int begin, count;
};
__device__ Share share_of(int granules) {
  const auto border = [&](unsigned block) {
    return static_cast<int>(static_cast<long long>(granules) * block / gridDim.x);
  };
  return {border(blockIdx.x), border(blockIdx.x + 1) - border(blockIdx.x)};
}

struct Inputs {  // a lane's 16 activations of its column in a k64 block
  uint4 low, high;
};
__device__ __forceinline__ Inputs load_inputs(const Bf16* at) {
  const uint4* quads = reinterpret_cast<const uint4*>(at);
  return {quads[0], quads[1]};
}

struct Codes {  // a lane's codes of a k64 block and the multipliers of its two rows
  uint4 words;
  std::uint32_t even, odd;
};
__device__ __forceinline__ Codes load_codes(const std::uint8_t* codes, const std::uint8_t* scales) {
  return {*reinterpret_cast<const uint4*>(codes), granule_multiplier(scales[0]),
          granule_multiplier(scales[1])};
}

// The four k16 steps of a k64 block.
__device__ __forceinline__ void multiply_block(float (&sums)[4], const Codes& codes, const Inputs& in) {
  const std::uint32_t inputs[8] = {in.low.x,  in.low.y,  in.low.z,  in.low.w,
                                   in.high.x, in.high.y, in.high.z, in.high.w};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const PlacedPairs placed =
        half == 0 ? place_pairs(codes.words.x, codes.words.y) : place_pairs(codes.words.z, codes.words.w);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      ptx::mma_m16n8k16_bf16(sums, ptx::multiply_bf16x2(placed.pair[4 * step], codes.even),
                             ptx::multiply_bf16x2(placed.pair[4 * step + 1], codes.odd),
                             ptx::multiply_bf16x2(placed.pair[4 * step + 2], codes.even),
                             ptx::multiply_bf16x2(placed.pair[4 * step + 3], codes.odd),
                             inputs[4 * half + 2 * step], inputs[4 * half + 2 * step + 1]);
    }
  }
}

// A chunk's sums from zero. codes and scales: this lane's, of the chunk's first block in shared memory, there
// once `full` has ended its phase of this parity; inputs: this lane's, in the row of its column. Loads run a
// block ahead of the arithmetic, in two sets of registers that take turns.
__device__ __forceinline__ void multiply_chunk(float (&sums)[4], const std::uint8_t* codes,
                                               const std::uint8_t* scales, int blocks, const Bf16* inputs,
                                               std::uint64_t* full, std::uint32_t parity) {
  sums[0] = sums[1] = sums[2] = sums[3] = 0;
  Inputs in_a, in_b;
  Codes codes_a, codes_b;
  if (blocks > 0) in_a = load_inputs(inputs);
  ptx::mbarrier_wait(full, parity);
  if (blocks == 0) return;
  codes_a = load_codes(codes, scales);
#pragma unroll 1
  while (true) {
    if (blocks > 1) {
      in_b = load_inputs(inputs + granule_k);
      codes_b = load_codes(codes + granule_block_bytes, scales + granule_block_bytes);
    }
    multiply_block(sums, codes_a, in_a);
    if (blocks <= 1) return;
    inputs += 2 * granule_k;
    codes += 2 * granule_block_bytes;
    scales += 2 * granule_block_bytes;
    if (blocks > 2) {
      in_a = load_inputs(inputs);
      codes_a = load_codes(codes, scales);
    }
    multiply_block(sums, codes_b, in_b);
    blocks -= 2;
    if (blocks <= 0) return;
  }
}

// What a block works on, the same in all its threads.
struct Work {
  const DecodeParams& params;
  ExpertGroups groups;
  Share first, second;  // of the two products
  std::uint8_t* ring;
  float4* sums;  // [teams][team_stages][team_warps][32]
  Barriers* barriers;

  __device__ Share share(int of_second) const { return of_second ? second : first; }

  // Begins to fetch the block's granule number `sequence` (the first product's, then the second's) into a
  // stage that nobody reads any more. By one thread.
  __device__ void fetch(int sequence, int team, int stage) const {
    const int of_second = sequence >= first.count;
    const Share range = share(of_second);
    if (of_second) sequence -= first.count;
    if (sequence >= range.count) return;
    const Product& product = params.products[of_second];
    const int position = range.begin + sequence, granules = product.shape.granules();
    const int active = position / granules;
    const std::size_t granule =
        static_cast<std::size_t>(groups.experts[active]) * static_cast<std::size_t>(granules) +
        static_cast<std::size_t>(position - active * granules);
    const std::uint32_t bytes = static_cast<std::uint32_t>(product.shape.granule_bytes());
    std::uint64_t* full = &barriers->full[team][stage];
    ptx::mbarrier_arrive_expecting(full, bytes);
    ptx::bulk_copy_to_shared(ring + (team * params.team_stages + stage) * params.stage_bytes,
                             product.weights + granule * bytes, bytes, full);
  }
};

// Stores what became of two rows' sums: h of a gate and its up projection, or two outputs.
__device__ __forceinline__ void finish(const DecodeParams& params, int second, int slot, int row, float even,
                                       float odd) {
  if (second) {
    const std::size_t at =
        static_cast<std::size_t>(slot) * static_cast<std::size_t>(params.products[1].shape.rows);
    *reinterpret_cast<float2*>(params.out + at + static_cast<std::size_t>(row)) = make_float2(even, odd);
  } else {
    const std::size_t at =
        static_cast<std::size_t>(slot) * static_cast<std::size_t>(params.products[1].input_stride);
    reinterpret_cast<__nv_bfloat16*>(params.activations)[at + static_cast<std::size_t>(row / 2)] =
        __float2bfloat16_rn(swiglu_on_device(even, odd, params.swiglu_limit));
  }
}

// Every block's h is visible to every block's threads afterwards.
__device__ void meet_grid(std::uint32_t* arrived) {
  __syncthreads();  // this block's h is stored
  if (threadIdx.x == 0) {
    ptx::count_up_release(arrived);
    constexpr unsigned give_up = 1u << 23;  // polls, which take seconds: a block is missing
    for (unsigned polls = 0; ptx::load_acquire(arrived) < gridDim.x; ++polls) {
      if (polls == give_up) __trap();
    }
  }
  __syncthreads();  // the others read h after thread 0 has seen it
}

// The sums of all chunks, in order of the index; `sums` is this lane's of chunk 0.
__device__ __forceinline__ float4 add_chunks(const float4* sums) {
  float4 total = sums[0];
#pragma unroll
  for (int chunk = 1; chunk < team_warps; ++chunk) {
    const float4 more = sums[chunk * 32];
    total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
  }
  return total;
}

// A warp's part of the layer: chunk `chunk` of its team's granules.
__device__ __forceinline__ void run_warp(const Work& work, int team, int chunk, int lane) {
  const DecodeParams& params = work.params;
  const ExpertGroups& groups = work.groups;
  const int g = lane / 4, t = lane % 4;
  float4* const team_sums = work.sums + team * params.team_stages * (team_warps * 32) + lane;
  int stage = 0, sequence = team;
  unsigned full_phases = 0, sums_phases = 0;  // a bit a stage: the parity to wait for next
  unsigned turn = 0;                          // whose turn it is to add

#pragma unroll 1
  for (int second = 0; second < 2; ++second) {
    if (second) meet_grid(params.arrived);
    const Product& product = params.products[second];
    const int granules = product.shape.granules();
    const int first_block = product.shape.chunk_begin(chunk);
    const int blocks = product.shape.chunk_begin(chunk + 1) - first_block;
    const int codes_at = first_block * granule_block_bytes + lane * 16;
    const int scales_at = first_block * granule_block_bytes + granule_code_bytes + g * 4 + t / 2 * 2;
    const Bf16* const my_inputs = product.inputs + first_block * granule_k + t * 16;
    const int begin = second ? work.first.count : 0;  // of this product in the block's sequence
    const int past_end = begin + work.share(second).count;
    const int position = work.share(second).begin + sequence - begin;
    int active = position / granules, granule = position - active * granules;
    int expert = 0, first_slot = 0, tokens = 0;
    const Bf16* inputs = nullptr;
    // A column past the last token repeats it: its sums are dropped.
    const auto inputs_from = [&](int token) {
      const int slot = groups.slots[first_slot + min(token + g, tokens - 1)];
      return my_inputs + static_cast<std::size_t>(slot / product.slots_a_row) *
                             static_cast<std::size_t>(product.input_stride);
    };
    const auto enter_expert = [&] {
      expert = groups.experts[active];
      first_slot = groups.begin[active];
      tokens = groups.begin[active + 1] - first_slot;
      inputs = inputs_from(0);
    };
    if (sequence < past_end) enter_expert();

#pragma unroll 1
    while (sequence < past_end) {
      const std::uint8_t* const base = work.ring + (team * params.team_stages + stage) * params.stage_bytes;
      float4* const stage_sums = team_sums + stage * (team_warps * 32);
      const int row = granule * granule_rows + 2 * g;
#pragma unroll 1
      for (int done = 0;;) {
        __syncwarp();  // one lane may have been fetching; the products need all at once
        const bool adds = static_cast<int>(turn++ % team_warps) == chunk;
        const bool last = done + tile_tokens >= tokens;
        // Fetched before the products so that it has come when they are done.
        std::uint32_t bias = 0;  // of both rows, low half first
        if (adds) {
          bias = *reinterpret_cast<const std::uint32_t*>(
              product.bias + static_cast<std::size_t>(expert) * static_cast<std::size_t>(product.shape.rows) +
              static_cast<std::size_t>(row));
        }
        float sums[4];
        multiply_chunk(sums, base + codes_at, base + scales_at, blocks, inputs,
                       &work.barriers->full[team][stage], full_phases >> stage & 1);
        stage_sums[chunk * 32] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        __syncwarp();  // the arrival speaks for all lanes: codes read, sums written
        if (lane == 0) ptx::mbarrier_arrive(&work.barriers->sums[team][stage]);
        if (adds) {
          ptx::mbarrier_wait(&work.barriers->sums[team][stage], sums_phases >> stage & 1);
          const float4 total = add_chunks(stage_sums);
          __syncwarp();  // nobody reads this stage's codes or sums any more
          if (last && lane == 0) work.fetch(sequence + teams * params.team_stages, team, stage);
          const float even_bias = __uint_as_float(bias << 16), odd_bias = __uint_as_float(bias & 0xffff0000u);
          const int column = done + 2 * t;
          if (column < tokens) {
            finish(params, second, groups.slots[first_slot + column], row,
                   __fmul_rn(total.x, product.scale) + even_bias,
                   __fmul_rn(total.z, product.scale) + odd_bias);
          }
          if (column + 1 < tokens) {
            finish(params, second, groups.slots[first_slot + column + 1], row,
                   __fmul_rn(total.y, product.scale) + even_bias,
                   __fmul_rn(total.w, product.scale) + odd_bias);
          }
        }
        sums_phases ^= 1u << stage;
        done += tile_tokens;
        if (!last || done > tile_tokens) {
          // More tokens than columns: the same weights once more, when the sums' place is free again.
          inputs = inputs_from(last ? 0 : done);
          if (!last) ptx::named_barrier(1 + team, team_warps * 32);
        }
        if (last) break;
      }
      full_phases ^= 1u << stage;
      stage = stage + 1 < params.team_stages ? stage + 1 : 0;
      sequence += teams;
      granule += teams;
      if (granule >= granules) {
        for (; granule >= granules; granule -= granules) ++active;
        if (sequence < past_end) enter_expert();
      }
    }
  }
}

__global__ void __launch_bounds__(decode_threads, 1)
    sm90_mxfp4_moe_decode(const __grid_constant__ DecodeParams params) {
  __shared__ Barriers barriers;
  const int stages = teams * params.team_stages;
  std::uint8_t* const shared = ptx::dynamic_shared();
  std::uint8_t* const sums = shared + stages * params.stage_bytes;
  const ExpertGroups groups = expert_groups_at(sums + stages * sums_bytes, params.slots, params.experts);
  if (threadIdx.x == 0) {
    for (int team = 0; team < teams; ++team) {
      for (int stage = 0; stage < params.team_stages; ++stage) {
        ptx::mbarrier_init(&barriers.full[team][stage], 1);
        ptx::mbarrier_init(&barriers.sums[team][stage], team_warps);
      }
    }
    ptx::fence_mbarrier_init();
  }
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int active = group_slots(groups, params.expert_ids, params.slots, params.experts);
  const Work work{.params = params,
                  .groups = groups,
                  .first = share_of(active * params.products[0].shape.granules()),
                  .second = share_of(active * params.products[1].shape.granules()),
                  .ring = shared,
                  .sums = reinterpret_cast<float4*>(sums),
                  .barriers = &barriers};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  static_assert(teams * max_team_stages <= teams * team_warps, "a warp for each stage");
  if (lane == 0 && warp < stages) work.fetch(warp, warp % teams, warp / teams);
  run_warp(work, warp / team_warps, warp % team_warps, lane);
}

}  // namespace

Status moe_mxfp4_cuda(const MoeCudaWeights& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_moe_shapes(weights, args));
  int device = 0, processors = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const int blocks = args.blocks > 0 && args.blocks < processors ? args.blocks : processors;
  const int stage_bytes = std::max(weights.gate_up.shape.granule_bytes(), weights.down.shape.granule_bytes());
  const int team_stages = std::min(max_team_stages, shared_limit / (teams * (stage_bytes + sums_bytes)));
  if (team_stages < 1) {
    return invalid_argument(
        "an expert matrix of more than " +
        std::to_string((shared_limit / teams - sums_bytes) / granule_block_bytes * granule_k) +
        " columns has no kernel for few tokens");
  }
  const auto product = [](const Mxfp4Granules& matrix, const Bf16* bias, const Bf16* inputs, int stride,
                          int slots) {
    return Product{.weights = matrix.data,
                   .bias = bias,
                   .inputs = inputs,
                   .input_stride = stride,
                   .slots_a_row = slots,
                   .scale = __builtin_ldexpf(1.0f, matrix.exponent_shift),
                   .shape = matrix.shape};
  };

  const int tokens_at_once = moe_cuda_max_slots / args.top_k;
  if (args.out == nullptr && args.tokens > tokens_at_once) {
    return invalid_argument("the outputs of " + std::to_string(args.tokens) +
                            " tokens' experts cannot be left unadded, only those of " +
                            std::to_string(tokens_at_once));
  }
  for (int first = 0; first < args.tokens; first += tokens_at_once) {
    const int tokens = std::min(tokens_at_once, args.tokens - first);
    const std::size_t slot = static_cast<std::size_t>(first) * static_cast<std::size_t>(args.top_k);
    const Bf16* x = args.x + static_cast<std::size_t>(first) * static_cast<std::size_t>(args.x_stride);
    const DecodeParams params{
        .products = {product(weights.gate_up, weights.gate_up_bias, x, args.x_stride, args.top_k),
                     product(weights.down, weights.down_bias, args.workspace.activations,
                             weights.down.shape.padded_cols(), 1)},
        .slots = tokens * args.top_k,
        .experts = weights.gate_up.experts,
        .expert_ids = args.expert_ids + slot,
        .activations = args.workspace.activations,
        .out = args.workspace.products,
        .arrived = args.workspace.arrived,
        .swiglu_limit = weights.swiglu_limit,
        .team_stages = team_stages,
        .stage_bytes = stage_bytes};
    const int shared_bytes =
        teams * team_stages * (stage_bytes + sums_bytes) + expert_groups_bytes(params.slots, params.experts);
    cuda_check(cudaFuncSetAttribute(sm90_mxfp4_moe_decode, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    shared_bytes));
    launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)),
                   .threads = decode_threads,
                   .shared_bytes = static_cast<std::size_t>(shared_bytes),
                   .stream = stream,
                   .overlaps = true},
                  sm90_mxfp4_moe_decode, params);
    if (args.out == nullptr) continue;
    MoeCudaArgs part = args;
    part.tokens = tokens;
    part.expert_ids += slot;
    part.expert_weights += slot;
    part.out += static_cast<std::size_t>(first) * static_cast<std::size_t>(weights.down.shape.rows);
    launch_moe_combine(part, weights.down.shape.rows, stream);
  }
  return {};
}

}  // namespace nibble
