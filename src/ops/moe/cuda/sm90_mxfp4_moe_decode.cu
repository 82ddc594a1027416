// moe_mxfp4 for few tokens: both products in one kernel that streams every used expert's weights once, then a
// kernel that adds a token's experts.
//
// Bytes: 17/32 a weight, (3 x hidden x intermediate) weights an expert in use: 13.2 MB for gpt-oss, 2.85 us
// at 4,650 GB/s. FLOPs: 2 a weight and token, on tensor cores whose 8 columns are the expert's tokens.
// Instructions bound it next: about 18 a warp and k16 step of 16 rows.
//
// A block a multiprocessor. One warp keeps a ring of granules filled by bulk copies; 16 warps in two teams
// of 8 take every second granule, a chunk of K each. A chunk's sums go to shared memory, where one of the
// team's warps (they take turns) adds them in order and finishes the rows. Granules are dealt to blocks in
// equal contiguous ranges, which moves bytes in time but no bit.
//
// The second product needs all of h, so the grid meets once, while the ring already fills with its weights.
// Blocks wait for one another: all must be resident, so there are at most as many as multiprocessors.
#include <cuda_bf16.h>

#include <string>

#include "ops/moe/cuda/expert_groups.cuh"
#include "ops/moe/cuda/moe_cuda.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "ops/ptx/tensor_core.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int teams = 2;
constexpr int team_warps = granule_k_chunks;
constexpr int math_warps = teams * team_warps;
constexpr int decode_threads = (math_warps + 1) * 32;
constexpr int tile_tokens = 8;    // columns of one tensor-core product
constexpr int tiles_at_once = 2;  // of the same decoded weights
constexpr int sum_buffers = 2;    // a team's chunk sums being written, and being added
constexpr int max_stages = 8;
constexpr std::size_t ring_bytes = 150 * 1024;  // leaves the first-level cache room for activations

// The two products of the layer as the kernel sees them.
struct Product {
  const std::uint8_t* weights;
  const Bf16* bias;  // [experts, rows]
  GranuleShape shape;
  float scale;  // 2^exponent_shift
};

struct DecodeParams {
  Product gate_up, down;
  const Bf16* x;
  int x_stride;
  int slots, top_k, experts;
  const std::int32_t* expert_ids;
  Bf16* activations;  // [slots, padded intermediate]
  float* products;    // [slots, hidden]
  std::uint32_t* arrived;
  float swiglu_limit;
  int stages, stage_bytes;
};

// The sums of a team's chunks: a float4 a lane, as mma leaves them.
using ChunkSums = float4[tiles_at_once][team_warps][32];

struct Barriers {
  std::uint64_t full[max_stages], empty[max_stages];
  std::uint64_t sums_full[teams][sum_buffers], sums_empty[teams][sum_buffers];
};

// A block's share of a product: granules [begin, end) of those of all active experts, one after the other.
struct Share {
  int begin, end;
};
__device__ Share share_of(int granules) {
  const auto border = [&](unsigned block) {
    return static_cast<int>(static_cast<long long>(granules) * block / gridDim.x);
  };
  return {border(blockIdx.x), border(blockIdx.x + 1)};
}

// Where the stream of granules stands: expert and granule of a position.
struct Cursor {
  int active, granule;
  __device__ Cursor(int position, int per_expert)
      : active(position / per_expert), granule(position - active * per_expert) {}
  __device__ void advance(int by, int per_expert) {
    for (granule += by; granule >= per_expert; granule -= per_expert) ++active;
  }
};

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
template <int tiles>
__device__ __forceinline__ void multiply_block(float (&sums)[tiles][4], const Codes& codes,
                                               const Inputs (&in)[tiles]) {
  const std::uint32_t words[4] = {codes.words.x, codes.words.y, codes.words.z, codes.words.w};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const PlacedPairs placed = place_pairs(words[step]);
    const std::uint32_t a0 = ptx::multiply_bf16x2(placed.pair[0], codes.even);
    const std::uint32_t a1 = ptx::multiply_bf16x2(placed.pair[1], codes.odd);
    const std::uint32_t a2 = ptx::multiply_bf16x2(placed.pair[2], codes.even);
    const std::uint32_t a3 = ptx::multiply_bf16x2(placed.pair[3], codes.odd);
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      const uint4 quad = step < 2 ? in[tile].low : in[tile].high;
      const std::uint32_t b0 = step % 2 == 0 ? quad.x : quad.z, b1 = step % 2 == 0 ? quad.y : quad.w;
      ptx::mma_m16n8k16_bf16(sums[tile], a0, a1, a2, a3, b0, b1);
    }
  }
}

// Everything a warp needs for one k64 block.
template <int tiles>
struct Block {
  Codes codes;
  Inputs in[tiles];

  __device__ __forceinline__ void load_inputs_at(const Bf16* const (&inputs)[tiles], int block) {
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) in[tile] = load_inputs(inputs[tile] + block * granule_k);
  }
  __device__ __forceinline__ void load(const std::uint8_t* at, const std::uint8_t* scales,
                                       const Bf16* const (&inputs)[tiles], int block) {
    load_inputs_at(inputs, block);
    codes = load_codes(at + block * granule_code_bytes, scales + block * granule_scale_bytes);
  }
};

// A chunk's sums from zero. codes and scales: this lane's, of the chunk's first block in shared memory, there
// once `full` has ended its phase of this parity; inputs: this lane's, in the row of its column. Loads run a
// block ahead of the arithmetic, in two sets of registers that take turns.
template <int tiles>
__device__ __forceinline__ void multiply_chunk(float (&sums)[tiles][4], const std::uint8_t* codes,
                                               const std::uint8_t* scales, int blocks,
                                               const Bf16* const (&inputs)[tiles], std::uint64_t* full,
                                               std::uint32_t parity) {
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[tile][i] = 0;
  }
  Block<tiles> a, b;
  if (blocks > 0) a.load_inputs_at(inputs, 0);
  ptx::mbarrier_wait(full, parity);
  if (blocks == 0) return;
  a.codes = load_codes(codes, scales);
#pragma unroll 1
  for (int block = 0;; block += 2) {
    if (block + 1 < blocks) b.load(codes, scales, inputs, block + 1);
    multiply_block<tiles>(sums, a.codes, a.in);
    if (block + 1 >= blocks) return;
    if (block + 2 < blocks) a.load(codes, scales, inputs, block + 2);
    multiply_block<tiles>(sums, b.codes, b.in);
    if (block + 2 >= blocks) return;
  }
}

__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;  // keeps a NaN, which fminf would not
  up = up > limit ? limit : up < -limit ? -limit : up;
  return gate * (1.0f / (1.0f + __expf(-1.702f * gate))) * (up + 1.0f);
}

// One team's walk over its granules of a product. Of the ring's sequence numbers it takes every second one.
struct TeamWalk {
  std::uint8_t* ring;
  Barriers* barriers;
  ChunkSums* sums;  // [sum_buffers] of this team
  int team, chunk, lane;
  int sequence;    // of the block's first granule of the product
  unsigned turns;  // tiles finished so far: whose turn it is to add, and which buffer
};

// finish(slot, row, first, second): the sums of rows `row` and `row + 1`, called by the lane that holds them.
template <class RowOfSlot, class Finish>
__device__ __forceinline__ void walk_product(TeamWalk& walk, const DecodeParams& params,
                                             const Product& product, const ExpertGroups& groups, Share share,
                                             RowOfSlot row_of_slot, Finish finish) {
  const int g = walk.lane / 4, t = walk.lane % 4;
  const int granules = product.shape.granules();
  const int first_block = product.shape.chunk_begin(walk.chunk);
  const int blocks = product.shape.chunk_begin(walk.chunk + 1) - first_block;
  const int codes_at = first_block * granule_block_bytes + walk.lane * 16;
  const int scales_at = first_block * granule_block_bytes + blocks * granule_code_bytes + g * 4 + t / 2 * 2;
  const int input_at = first_block * granule_k + t * 16;

  // The first position whose sequence number is this team's.
  const int skip = (walk.team + walk.sequence) % teams;
  Cursor cursor(share.begin + skip, granules);
  for (int position = share.begin + skip; position < share.end;
       position += teams, cursor.advance(teams, granules)) {
    const int sequence = walk.sequence + position - share.begin;
    const int stage = sequence % params.stages;
    const std::uint32_t parity = static_cast<std::uint32_t>(sequence / params.stages) & 1;
    const std::uint8_t* granule = walk.ring + stage * params.stage_bytes;
    const int expert = groups.experts[cursor.active];
    const int first_slot = groups.begin[cursor.active], tokens = groups.begin[cursor.active + 1] - first_slot;
    const int row = cursor.granule * granule_rows + 2 * g;

    for (int done = 0; done < tokens; done += tiles_at_once * tile_tokens) {
      // A column past the last token repeats it: its sums are dropped.
      const Bf16* inputs[tiles_at_once];
#pragma unroll
      for (int tile = 0; tile < tiles_at_once; ++tile) {
        const int column = min(done + tile * tile_tokens + g, tokens - 1);
        inputs[tile] = row_of_slot(groups.slots[first_slot + column]) + input_at;
      }
      const int tiles = tokens - done > tile_tokens ? 2 : 1;
      const unsigned buffer = walk.turns % sum_buffers;
      const std::uint32_t buffer_parity = walk.turns / sum_buffers & 1;
      const bool adds = static_cast<int>(walk.turns % team_warps) == walk.chunk;
      ++walk.turns;
      // Fetched before the products so that it has come when they are done.
      __nv_bfloat162 bias{};
      if (adds) {
        bias = *reinterpret_cast<const __nv_bfloat162*>(
            product.bias + static_cast<std::size_t>(expert) * product.shape.rows + row);
      }

      float sums[tiles_at_once][4];
      if (tiles == 1) {
        const Bf16* const one[1] = {inputs[0]};
        float(&first)[1][4] = *reinterpret_cast<float(*)[1][4]>(&sums[0]);
        multiply_chunk<1>(first, granule + codes_at, granule + scales_at, blocks, one,
                          &walk.barriers->full[stage], parity);
      } else {
        multiply_chunk<tiles_at_once>(sums, granule + codes_at, granule + scales_at, blocks, inputs,
                                      &walk.barriers->full[stage], parity);
      }
      if (done + tiles_at_once * tile_tokens >= tokens) {
        __syncwarp();  // all lanes have read their weights
        if (walk.lane == 0) ptx::mbarrier_arrive(&walk.barriers->empty[stage]);
      }

      ptx::mbarrier_wait(&walk.barriers->sums_empty[walk.team][buffer], buffer_parity ^ 1);
      ChunkSums& shared = walk.sums[buffer];
      shared[0][walk.chunk][walk.lane] = make_float4(sums[0][0], sums[0][1], sums[0][2], sums[0][3]);
      if (tiles > 1)
        shared[1][walk.chunk][walk.lane] = make_float4(sums[1][0], sums[1][1], sums[1][2], sums[1][3]);
      __syncwarp();  // the arrival below speaks for all lanes
      if (walk.lane == 0) ptx::mbarrier_arrive(&walk.barriers->sums_full[walk.team][buffer]);
      if (!adds) continue;

      ptx::mbarrier_wait(&walk.barriers->sums_full[walk.team][buffer], buffer_parity);
      for (int tile = 0; tile < tiles; ++tile) {
        float4 total = shared[tile][0][walk.lane];
#pragma unroll
        for (int chunk = 1; chunk < team_warps; ++chunk) {
          const float4 more = shared[tile][chunk][walk.lane];
          total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        const float first_bias = __low2float(bias), second_bias = __high2float(bias);
        const int column = done + tile * tile_tokens + 2 * t;
        if (column < tokens) {
          finish(groups.slots[first_slot + column], row, __fmul_rn(total.x, product.scale) + first_bias,
                 __fmul_rn(total.z, product.scale) + second_bias);
        }
        if (column + 1 < tokens) {
          finish(groups.slots[first_slot + column + 1], row, __fmul_rn(total.y, product.scale) + first_bias,
                 __fmul_rn(total.w, product.scale) + second_bias);
        }
      }
      __syncwarp();  // all lanes have read the sums
      if (walk.lane == 0) ptx::mbarrier_arrive(&walk.barriers->sums_empty[walk.team][buffer]);
    }
  }
}

// Fills the ring with a product's granules; returns the next sequence number.
__device__ int feed_product(const DecodeParams& params, const Product& product, const ExpertGroups& groups,
                            Share share, int sequence, std::uint8_t* ring, Barriers* barriers) {
  const int granules = product.shape.granules();
  const std::uint32_t bytes = static_cast<std::uint32_t>(product.shape.granule_bytes());
  Cursor cursor(share.begin, granules);
  for (int position = share.begin; position < share.end;
       ++position, ++sequence, cursor.advance(1, granules)) {
    const int stage = sequence % params.stages;
    const std::uint32_t round = static_cast<std::uint32_t>(sequence / params.stages);
    ptx::mbarrier_wait(&barriers->empty[stage], (round & 1) ^ 1);
    ptx::mbarrier_arrive_expecting(&barriers->full[stage], bytes);
    const std::size_t granule =
        static_cast<std::size_t>(groups.experts[cursor.active]) * static_cast<std::size_t>(granules) +
        static_cast<std::size_t>(cursor.granule);
    ptx::bulk_copy_to_shared(ring + stage * params.stage_bytes, product.weights + granule * bytes, bytes,
                             &barriers->full[stage]);
  }
  return sequence;
}

// Only the warps that compute: the one that feeds the ring runs ahead.
__device__ __forceinline__ void sync_math_warps() {
  asm volatile("bar.sync 1, %0;" ::"n"(math_warps * 32) : "memory");
}

// Every block's h is visible to every block's math warps afterwards.
__device__ void meet_grid(std::uint32_t* arrived) {
  sync_math_warps();
  if (threadIdx.x == 0) {
    ptx::count_up_release(arrived);
    constexpr unsigned give_up = 1u << 23;  // polls, seconds: a block is missing
    for (unsigned polls = 0; ptx::load_acquire(arrived) < gridDim.x; ++polls) {
      if (polls == give_up) __trap();
    }
  }
  sync_math_warps();
}

__global__ void __launch_bounds__(decode_threads, 1)
    sm90_mxfp4_moe_decode(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ Barriers barriers;
  __shared__ ChunkSums sums[teams][sum_buffers];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const ExpertGroups groups =
      expert_groups_at(shared + params.stages * params.stage_bytes, params.slots, params.experts);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < params.stages; ++stage) {
      ptx::mbarrier_init(&barriers.full[stage], 1);
      ptx::mbarrier_init(&barriers.empty[stage], team_warps);
    }
    for (int team = 0; team < teams; ++team) {
      for (int buffer = 0; buffer < sum_buffers; ++buffer) {
        ptx::mbarrier_init(&barriers.sums_full[team][buffer], team_warps);
        ptx::mbarrier_init(&barriers.sums_empty[team][buffer], 1);
      }
    }
    ptx::fence_mbarrier_init();
  }
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int active = group_slots(groups, params.expert_ids, params.slots, params.experts);
  const Share gate_up = share_of(active * params.gate_up.shape.granules());
  const Share down = share_of(active * params.down.shape.granules());

  if (warp == math_warps) {
    if (lane == 0) {
      const int next = feed_product(params, params.gate_up, groups, gate_up, 0, shared, &barriers);
      feed_product(params, params.down, groups, down, next, shared, &barriers);
    }
    return;
  }

  const int team = warp / team_warps;
  TeamWalk walk{.ring = shared,
                .barriers = &barriers,
                .sums = sums[team],
                .team = team,
                .chunk = warp % team_warps,
                .lane = lane,
                .sequence = 0,
                .turns = 0};
  const int activation_stride = params.down.shape.padded_cols();
  walk_product(
      walk, params, params.gate_up, groups, gate_up,
      [&](int slot) { return params.x + static_cast<std::size_t>(slot / params.top_k) * params.x_stride; },
      [&](int slot, int row, float gate, float up) {
        reinterpret_cast<__nv_bfloat16*>(
            params.activations)[static_cast<std::size_t>(slot) * activation_stride + row / 2] =
            __float2bfloat16_rn(swiglu(gate, up, params.swiglu_limit));
      });
  walk.sequence = gate_up.end - gate_up.begin;
  meet_grid(params.arrived);
  walk_product(
      walk, params, params.down, groups, down,
      [&](int slot) { return params.activations + static_cast<std::size_t>(slot) * activation_stride; },
      [&](int slot, int row, float first, float second) {
        *reinterpret_cast<float2*>(params.products + static_cast<std::size_t>(slot) * params.down.shape.rows +
                                   row) = make_float2(first, second);
      });
}

// out[token] = sum of expert_weights x products in order of the top-k, each operation rounded, four columns a
// thread. Bytes: 4 x hidden x (top_k + 1) a token. It also resets the counter at which the blocks met.
__global__ void __launch_bounds__(128)
    moe_combine(const float* products, const std::int32_t* expert_ids, const float* expert_weights, int top_k,
                int hidden, float* out, std::uint32_t* arrived) {
  ptx::grid_launch_dependents();
  const int token = static_cast<int>(blockIdx.y);
  const int column = (static_cast<int>(blockIdx.x) * 128 + static_cast<int>(threadIdx.x)) * 4;
  ptx::grid_dependency_wait();
  if (blockIdx.x == 0 && token == 0 && threadIdx.x == 0) *arrived = 0;
  if (column >= hidden) return;
  float4 sum = make_float4(0, 0, 0, 0);
  bool any = false;
  for (int choice = 0; choice < top_k; ++choice) {
    const int slot = token * top_k + choice;
    if (expert_ids[slot] < 0) continue;
    const float weight = expert_weights[slot];
    const float4 y =
        *reinterpret_cast<const float4*>(products + static_cast<std::size_t>(slot) * hidden + column);
    const float4 term = make_float4(__fmul_rn(weight, y.x), __fmul_rn(weight, y.y), __fmul_rn(weight, y.z),
                                    __fmul_rn(weight, y.w));
    sum = any ? make_float4(__fadd_rn(sum.x, term.x), __fadd_rn(sum.y, term.y), __fadd_rn(sum.z, term.z),
                            __fadd_rn(sum.w, term.w))
              : term;
    any = true;
  }
  *reinterpret_cast<float4*>(out + static_cast<std::size_t>(token) * hidden + column) = sum;
}

// Launched so that it may take its place while the kernel before it still runs.
template <class... Params, class... Args>
void launch_dependent(void (*kernel)(Params...), dim3 blocks, int threads, std::size_t shared_bytes,
                      cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, args...));
}

Status check_shapes(const MoeCudaWeights& weights, const MoeCudaArgs& args) {
  const GranuleShape& up = weights.gate_up.shape;
  const GranuleShape& down = weights.down.shape;
  if (up.rows != 2 * down.cols || up.cols != down.rows || weights.gate_up.experts != weights.down.experts) {
    return invalid_argument("the expert layer's matrices do not fit each other: gate_up [" +
                            std::to_string(up.rows) + ", " + std::to_string(up.cols) + "], down [" +
                            std::to_string(down.rows) + ", " + std::to_string(down.cols) + "]");
  }
  if (up.rows % granule_rows != 0 || down.rows % granule_rows != 0 || up.cols % mxfp4_block != 0 ||
      down.cols % mxfp4_block != 0) {
    return invalid_argument("the expert layer's rows must be multiples of 16 and its columns of 32");
  }
  if (args.x_stride < up.padded_cols() || args.x_stride % 8 != 0) {
    return invalid_argument("activations need a stride of at least " + std::to_string(up.padded_cols()) +
                            ", a multiple of 8, not " + std::to_string(args.x_stride));
  }
  if (args.top_k < 1 || args.top_k > 8) {
    return invalid_argument("a top-k from 1 to 8 is supported, not " + std::to_string(args.top_k));
  }
  return {};
}

}  // namespace

Status moe_mxfp4_cuda(const MoeCudaWeights& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_shapes(weights, args));
  int device = 0, processors = 0, most_shared = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  cuda_check(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const int blocks = args.blocks > 0 && args.blocks < processors ? args.blocks : processors;
  const auto product = [](const Mxfp4Granules& matrix, const Bf16* bias) {
    return Product{matrix.data, bias, matrix.shape, __builtin_ldexpf(1.0f, matrix.exponent_shift)};
  };
  const int stage_bytes = std::max(weights.gate_up.shape.granule_bytes(), weights.down.shape.granule_bytes());
  const int stages = std::min(max_stages, static_cast<int>(ring_bytes) / stage_bytes);
  if (stages < 2) {
    return invalid_argument("an expert matrix of more than " +
                            std::to_string(ring_bytes / 2 / granule_block_bytes * granule_k) +
                            " columns has no kernel for few tokens");
  }

  const int hidden = weights.down.shape.rows;
  const int tokens_at_once = moe_cuda_max_slots / args.top_k;
  for (int first = 0; first < args.tokens; first += tokens_at_once) {
    const int tokens = std::min(tokens_at_once, args.tokens - first);
    const std::size_t slot = static_cast<std::size_t>(first) * static_cast<std::size_t>(args.top_k);
    const DecodeParams params{
        .gate_up = product(weights.gate_up, weights.gate_up_bias),
        .down = product(weights.down, weights.down_bias),
        .x = args.x + static_cast<std::size_t>(first) * static_cast<std::size_t>(args.x_stride),
        .x_stride = args.x_stride,
        .slots = tokens * args.top_k,
        .top_k = args.top_k,
        .experts = weights.gate_up.experts,
        .expert_ids = args.expert_ids + slot,
        .activations = args.workspace.activations,
        .products = args.workspace.products,
        .arrived = args.workspace.arrived,
        .swiglu_limit = weights.swiglu_limit,
        .stages = stages,
        .stage_bytes = stage_bytes};
    const int shared_bytes = stages * stage_bytes + expert_groups_bytes(params.slots, params.experts);
    cuda_check(cudaFuncSetAttribute(sm90_mxfp4_moe_decode, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    shared_bytes));
    launch_dependent(sm90_mxfp4_moe_decode, dim3(static_cast<unsigned>(blocks)), decode_threads,
                     static_cast<std::size_t>(shared_bytes), stream, params);
    launch_dependent(moe_combine,
                     dim3(static_cast<unsigned>((hidden + 511) / 512), static_cast<unsigned>(tokens)), 128, 0,
                     stream, static_cast<const float*>(args.workspace.products), params.expert_ids,
                     args.expert_weights + slot, args.top_k, hidden,
                     args.out + static_cast<std::size_t>(first) * static_cast<std::size_t>(hidden),
                     args.workspace.arrived);
  }
  return {};
}

}  // namespace nibble
