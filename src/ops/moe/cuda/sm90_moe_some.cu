// The expert layer for some tokens, of weights in granules of any format, with the bits of the kernel for few
// tokens (sm90_moe_decode.cu). There three warps share a granule; here a warp has all of it.
//
// A block a multiprocessor has 24 warps. Each takes every 24th granule of its block's share of a product. It
// adds the chunks' sums of K itself and stores the result. So no warp waits for another, and what is to be
// done for a granule is done once. A warp has a ring of its own, which it fills with bulk copies as it leaves
// a stage. Of an expert with more tokens than columns granules are passed over once for every 8. The second
// product needs all of h, so the grid meets once; a warp's ring has that product's first weights by then.
// Blocks wait for one another, so all must be resident: at most one a multiprocessor.
//
// Bytes: those of the experts in use, once a pass. Instructions bound it as much
// (docs/performance/limits.md).
#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/moe/cuda/group_by_warps.cuh"
#include "ops/moe/cuda/moe_decode_outputs.cuh"
#include "ops/moe/cuda/moe_decode_products.cuh"
#include "ops/moe/cuda/moe_some.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int warps = moe_some_warps, threads = warps * 32;
constexpr int stages = 2;  // of a warp's ring
constexpr int stage_blocks = moe_some_stage_blocks;
template <class Layout>
constexpr int stage_bytes = stage_blocks* granule_block_bytes<Layout>;

using Walk = DecodeWalk<warps>;

// What a warp fetches next: it runs a ring ahead of what the warp works on.
struct Feed {
  Walk walk;
  int second = 0;
  const std::uint8_t* from = nullptr;
  int chunk = granule_k_chunks;           // of the granule; past the last: the next unit has not been found
  int blocks = 0, stage = 0, longer = 0;  // of the chunk, that are still to be fetched

  template <class Layout>
  __device__ __forceinline__ void open(const DecodeParams<Layout>& params, int of_chunk) {
    const KChunk& next = params.products[second].chunks.chunk[of_chunk];
    chunk = of_chunk;
    blocks = next.blocks;
    stage = next.stage;
    longer = next.longer;
  }
  template <class Layout>
  __device__ __forceinline__ void point(const DecodeParams<Layout>& params, const ExpertGroups& groups) {
    const DecodeProduct<Layout>& product = params.products[second];
    int pass;
    const unsigned index =
        static_cast<unsigned>(groups.experts[walk.active] * product.granules + walk.granule(pass));
    from = product.weights + std::uint64_t{index} * static_cast<unsigned>(product.granule_bytes);
    open(params, 0);
  }
  // Whether there is a stage more, in the second product too.
  template <class Layout>
  __device__ __forceinline__ bool find_stage(const DecodeParams<Layout>& params, const ExpertGroups& groups,
                                             const Walk& second_walk) {
    if (blocks > 0) return true;
    if (chunk + 1 < granule_k_chunks) {  // a granule's chunks follow one another
      open(params, chunk + 1);
      return true;
    }
    if (walk.left > 0) walk.advance(groups, params.products[second]);
    if (walk.left == 0) {
      if (second == 1) return false;
      second = 1;
      walk = second_walk;
      if (walk.left == 0) return false;
    }
    point(params, groups);
    return true;
  }
  // How many blocks it has, which count as fetched.
  __device__ __forceinline__ int take_stage() {
    const int count = stage + (longer > 0 ? 1 : 0);
    --longer;
    blocks -= count;
    return count;
  }
};

// A warp's part of the layer.
template <class Layout>
struct Worker {
  const DecodeParams<Layout>& params;
  const ExpertGroups& groups;
  std::uint8_t* ring;   // [stages, stage_bytes], the warp's
  std::uint64_t* full;  // [stages]: it holds its blocks
  int lane;
  Walk second_walk;  // where the second product begins
  Feed feed;
  int stage = 0;
  std::uint32_t full_phase = 0;

  // Into a stage that the whole warp has left. rehearsal: a few bytes in its place.
  __device__ __forceinline__ void fetch(int into, bool rehearsal = false) {
    constexpr std::uint32_t few_bytes = 16;
    if (!feed.find_stage(params, groups, second_walk)) return;
    const std::uint32_t bytes = static_cast<std::uint32_t>(feed.take_stage() * granule_block_bytes<Layout>);
    if (ptx::elected_lane()) {
      const std::uint32_t fetched = rehearsal ? few_bytes : bytes;
      ptx::mbarrier_arrive_expecting(full + into, fetched);
      ptx::bulk_copy_once_to_shared(ring + into * stage_bytes<Layout>, feed.from, fetched, full + into);
    }
    feed.from += bytes;
  }
  __device__ __forceinline__ void fill_ring(bool rehearsal) {
#pragma unroll 1
    for (int into = 0; into < stages; ++into) fetch(into, rehearsal);
    __syncwarp();  // products need all lanes at once
  }
  // Leaves the ring as it was before a rehearsal.
  __device__ __forceinline__ void await_first() {
#pragma unroll 1
    for (int into = 0; into < stages; ++into) ptx::mbarrier_wait(full + into, full_phase);
    full_phase ^= 1;
  }
  __device__ __forceinline__ void turn() {
    stage = stage + 1 < stages ? stage + 1 : 0;
    if (stage == 0) full_phase ^= 1;
  }

  // The sums of a granule, in the ring's next stages.
  __device__ __forceinline__ float4 multiply(const Bf16* inputs, const KChunks& chunks) {
    const int scales_at = granule_code_bytes + granule_lane_scales<Layout>(lane);
    float4 total = make_float4(0, 0, 0, 0);
    Inputs next = load_inputs(inputs);
#pragma unroll 1
    for (int index = 0; index < granule_k_chunks; ++index) {
      const KChunk& chunk = chunks.chunk[index];
      float sums[4] = {0, 0, 0, 0};
      int left = chunk.blocks, longer = chunk.longer;
#pragma unroll 1
      do {
        const int count = chunk.stage + (longer > 0 ? 1 : 0);
        const std::uint8_t* const at = ring + stage * stage_bytes<Layout>;
        ptx::mbarrier_wait(full + stage, full_phase);
        --longer;
        left -= count;
        multiply_stage_of<Layout, stage_blocks>(count, sums, at + lane * 16, at + scales_at, inputs, next,
                                                left > 0 || index + 1 < granule_k_chunks);
        __syncwarp();  // all lanes have read the stage, which one of them is about to have overwritten
        fetch(stage);
        __syncwarp();  // the next products need all lanes at once
        turn();
        inputs += count * granule_k;
      } while (left > 0);
      const float4 own = make_float4(sums[0], sums[1], sums[2], sums[3]);
      if (index == 0)
        total = own;
      else
        total.x += own.x, total.y += own.y, total.z += own.z, total.w += own.w;
    }
    return total;
  }

  // A product's units. The grid meets between the products, when a warp knows all of its first unit of the
  // second that is not h.
  __device__ __forceinline__ void run(int second, Walk walk) {
    const DecodeProduct<Layout>& product = params.products[second];
    const int g = lane / 4, t = lane % 4;
    int expert = 0, begin = 0, tokens = 0;   // of the pass's slots; past eight tokens there are others
    const Bf16* inputs = nullptr;            // of this lane's column
    int known_active = -1, known_pass = -1;  // that inputs are of
    bool to_meet = second != 0;
#pragma unroll 1
    while (true) {
      int row = 0;
      std::uint32_t bias = 0;  // of both rows, low half first; fetched early
      if (walk.left > 0) {
        int pass;
        row = walk.granule(pass) * granule_rows + 2 * g;
        if (walk.active != known_active || pass != known_pass) {
          expert = groups.experts[walk.active];
          begin = groups.begin[walk.active] + pass * group_pass_tokens;
          tokens = groups.begin[walk.active + 1] - begin;
          // A column past the last token repeats it: its sums are dropped.
          const int slot = groups.slots[begin + min(g, tokens - 1)];
          inputs = product.inputs +
                   static_cast<std::size_t>(row_of_slot(slot, product.of_slots_a_row)) *
                       static_cast<std::size_t>(product.input_stride) +
                   t * 16;
          known_active = walk.active;
          known_pass = pass;
        }
        if (product.bias != nullptr) {
          bias = *reinterpret_cast<const std::uint32_t*>(
              product.bias + static_cast<std::size_t>(expert) * static_cast<std::size_t>(product.rows) +
              static_cast<std::size_t>(row));
        }
      }
      if (to_meet) meet_experts_grid(params.arrived, params.stuck);
      to_meet = false;
      if (walk.left == 0) break;
      const float4 total = multiply(inputs, product.chunks);
      const float even_bias = __uint_as_float(bias << 16), odd_bias = __uint_as_float(bias & 0xffff0000u);
      const PairFactors factors = product.factor.of(expert);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = 2 * t + half;
        if (column >= tokens) break;
        finish(params, second, groups.slots[begin + column], row,
               __fmul_rn(half == 0 ? total.x : total.y, factors.even) + even_bias,
               __fmul_rn(half == 0 ? total.z : total.w, factors.odd) + odd_bias);
      }
      __syncwarp();  // the next products need all lanes at once
      walk.advance(groups, product);
    }
  }
};

// In shared memory, behind the rings.
struct Barriers {
  std::uint64_t full[warps][stages];
};
template <class Layout>
constexpr int barriers_at = warps* stages* stage_bytes<Layout>;
template <class Layout>
constexpr int groups_at = barriers_at<Layout> + static_cast<int>(sizeof(Barriers));

template <class Layout>
__global__ void __launch_bounds__(threads, 1)
    sm90_moe_some(const __grid_constant__ DecodeParams<Layout> params) {
  static_assert(groups_at<Layout> % 16 == 0);
  static_assert(group_notes_bytes(moe_cuda_max_slots, moe_many_most_experts, warps) <= barriers_at<Layout>);
  std::uint8_t* const shared = ptx::dynamic_shared();
  auto& barriers = *reinterpret_cast<Barriers*>(shared + barriers_at<Layout>);
  const ExpertGroups groups = expert_groups_at(shared + groups_at<Layout>, params.slots, params.experts);
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) {
    for (std::uint64_t& full : barriers.full[warp]) ptx::mbarrier_init(&full, 1);
    ptx::fence_mbarrier_init();
  }
  if (!params.settles_rows) ptx::grid_launch_dependents();
  Worker<Layout> worker{.params = params,
                        .groups = groups,
                        .ring = shared + warp * stages * stage_bytes<Layout>,
                        .full = barriers.full[warp],
                        .lane = lane,
                        .second_walk = {},
                        .feed = {}};
  Walk walk;
  // All is done once on made-up choices while the kernel before this one still runs, as in the kernel for few
  // tokens: instructions and constants come from memory too. So both times must be the same code.
#pragma unroll 1
  for (int rehearsal = 1; rehearsal >= 0; --rehearsal) {
    __syncthreads();  // nobody reads the made-up tables any more
    if (!rehearsal) {
      ptx::grid_dependency_wait();
      if (params.settles_rows) ptx::grid_launch_dependents();
    }
    const SlotChoices choices{rehearsal ? nullptr : params.expert_ids, params.taken, params.experts};
    // Notes lie where the rings are filled afterwards.
    group_slots_by_warps<warps>(groups, group_notes_at(shared, params.slots, warps), choices,
                                rehearsal ? min(params.slots, moe_fewest_slots) : params.slots);
    walk.enter(groups, params.products[0].granules, params.of_block, warp);
    worker.feed = {.walk = walk};
    if (walk.left > 0) {
      // A granule has a stage a chunk at least, so the ring's are the first unit's own.
      worker.feed.point(params, groups);
      worker.fill_ring(rehearsal != 0);
    }
    worker.second_walk.enter(groups, params.products[1].granules, params.of_block, warp);
    if (rehearsal && walk.left > 0) worker.await_first();
  }
  if (walk.left == 0) worker.fill_ring(false);
  worker.run(0, walk);
  worker.run(1, worker.second_walk);
}

template <class Layout>
int shared_bytes_of(int slots, int experts) {
  return groups_at<Layout> + expert_groups_bytes(slots, experts);
}

template <class Layout>
WaitingGrid grid_of() {
  return waiting_grid("sm90_moe_some",
                      {.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                       .threads = threads,
                       .shared_bytes = static_cast<std::size_t>(
                           shared_bytes_of<Layout>(moe_cuda_max_slots, moe_many_most_experts)),
                       .share = shared_164_kb},
                      sm90_moe_some<Layout>);
}

}  // namespace

WaitingGrids waiting_grids_of_moe_some() {
  return {grid_of<Mxfp4GranuleLayout>(), grid_of<Nvfp4GranuleLayout>(), grid_of<Int4GranuleLayout>()};
}

template <class Layout>
void moe_some_cuda(const DecodeParams<Layout>& params, int blocks, cudaStream_t stream) {
  const int bytes = shared_bytes_of<Layout>(params.slots, params.experts);
  cuda_check(cudaFuncSetAttribute(sm90_moe_some<Layout>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)),
                 .threads = threads,
                 .shared_bytes = static_cast<std::size_t>(bytes),
                 .stream = stream,
                 .overlaps = true,
                 .share = shared_164_kb},
                sm90_moe_some<Layout>, params);
}

template void moe_some_cuda(const DecodeParams<Mxfp4GranuleLayout>&, int, cudaStream_t);
template void moe_some_cuda(const DecodeParams<Nvfp4GranuleLayout>&, int, cudaStream_t);
template void moe_some_cuda(const DecodeParams<Int4GranuleLayout>&, int, cudaStream_t);

}  // namespace nibble
