// The expert layer for few tokens, of weights in granules of any format. One kernel has both products and
// streams every used expert's weights once; another adds a token's experts (moe_steps.cuh). docs/performance/
// limits.md says what bounds it.
//
// A block a multiprocessor has six or eight teams of three warps (choose_kernel). A team takes every sixth or
// eighth of its block's granules; each of its warps has a chunk of K and a ring of its own, which it fills
// with bulk copies as it leaves a stage. Two stages are enough on their way: with three one token takes 4 %
// longer, as the little that is read beside the weights waits behind them. The warp with the first chunk adds
// the others' sums, from shared memory and in order, and finishes the rows a granule later. The chunks go
// around from granule to granule, and so does that work. Blocks have equal contiguous ranges of granules. Of
// an expert with more tokens than columns they are passed over once for every 8.
//
// The second product needs all of h, so the grid meets once; a warp's ring has that product's first weights
// by then. Blocks wait for one another, so all must be resident: at most one a multiprocessor.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/moe/cuda/moe_decode_outputs.cuh"
#include "ops/moe/cuda/moe_decode_products.cuh"
#include "ops/moe/cuda/moe_decode_work.cuh"
#include "ops/moe/cuda/moe_row.h"
#include "ops/moe/cuda/moe_some.h"
#include "ops/moe/cuda/moe_steps.cuh"
#include "ops/moe/many_tokens.h"
#include "ops/ptx/async_copy.cuh"
#include "ops/ptx/grid.cuh"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr int team_warps = decode_team_warps;
constexpr int tile_tokens = group_pass_tokens;  // columns of one tensor-core product
constexpr int whole_blocks = 15;                // k64 blocks of gpt-oss's chunks
constexpr int stages = 2;                       // of a warp's ring
constexpr int few_slots = moe_fewest_slots;     // as many as a warp has lanes
constexpr int places = team_warps;          // for a team's sums, taken in turn: a warp finds its own in one
constexpr int place_sums = team_warps - 1;  // the first chunk's stay in registers

enum class Chunks {
  whole,  // every chunk of both products is whole_blocks, so that a stage is known by its place in a chunk
  any,
};
enum class Slots {
  few,  // at most few_slots
  any,
};
// What a kernel is made for: how many teams a block has, and how many k64 blocks a stage at most.
template <int teams_of_block, int blocks_of_stage, Chunks chunks, Slots slots>
struct Plan {
  static constexpr int teams = teams_of_block, stage_blocks = blocks_of_stage;
  static constexpr bool whole = chunks == Chunks::whole, few = slots == Slots::few;
  static_assert(!whole || whole_blocks % stage_blocks == 0);
};
using FewestTokensPlan = Plan<6, 3, Chunks::whole, Slots::few>;
using FewTokensPlan = Plan<6, 5, Chunks::whole, Slots::few>;
using MoreTokensPlan = Plan<8, 5, Chunks::whole, Slots::any>;
using FewTokensOfAnyShapePlan = Plan<6, 6, Chunks::any, Slots::few>;
using FewGranulesOfAnyShapePlan = Plan<4, 6, Chunks::any, Slots::few>;
using MoreTokensOfAnyShapePlan = Plan<8, 5, Chunks::any, Slots::any>;

template <class Plan>
constexpr int whole_stages = whole_blocks / Plan::stage_blocks;  // of a chunk
template <class Layout, class Plan>
constexpr int stage_bytes = Plan::stage_blocks* granule_block_bytes<Layout>;

// In shared memory. `full`: a warp's stage holds its blocks. `posted`: the sums of a granule's later chunks
// lie in their place.
template <int teams>
struct Barriers {
  std::uint64_t full[teams * team_warps][stages], posted[teams][places];
};

// What a block has, and where it lies in its shared memory.
template <class Layout, class Plan>
struct BlockOf {
  static constexpr int teams = Plan::teams, warps = teams * team_warps, threads = warps * 32;
  static constexpr int ring_bytes = warps * stages * stage_bytes<Layout, Plan>;
  static constexpr int sums_bytes = teams * places * place_sums * 32 * static_cast<int>(sizeof(float4));
  static constexpr int nobodys_bytes = threads * 4;  // where touched lines go
  static constexpr int sums_at = ring_bytes;
  static constexpr int barriers_at = sums_at + sums_bytes;
  static constexpr int nobodys_at = barriers_at + static_cast<int>(sizeof(Barriers<teams>));
  static constexpr int groups_at = nobodys_at + nobodys_bytes;
  static_assert(groups_at % 16 == 0);
};

// What is left to do for a granule when its chunks' sums have all come.
struct Unfinished {
  bool any = false;
  float4 first;            // the first chunk's sums
  int first_slot, tokens;  // of the pass: past eight there are others
  int row, expert;
  std::uint32_t bias;  // of both rows, low half first
};

// A warp's part of the layer.
template <class Layout, class Plan>
struct Worker {
  static constexpr int teams = Plan::teams, stage_blocks = Plan::stage_blocks;
  static constexpr bool whole = Plan::whole;

  const DecodeParams<Layout>& params;
  const ExpertGroups& groups;
  std::uint8_t* ring;             // [stages, stage_bytes], the warp's
  std::uint64_t* full;            // [stages]
  std::uint64_t* posted;          // [places], the team's
  float4* sums;                   // [places, place_sums, 32] of the team, this lane's of each
  std::uint32_t* nobodys;         // this lane's
  int lane, own_place;            // own_place: of the units whose first chunk is this warp's
  DecodeWalk<teams> second_walk;  // where the second product begins
  DecodeFeed<teams> feed;
  bool ahead = false;  // whether there is a unit that is fetched, if whole
  int ordered = 0;     // stages of the first unit, if not whole
  int stage = 0;
  std::uint32_t full_phase = 0, posted_phase = 0;
  int place = 0;  // of the unit's sums
  Unfinished unfinished;

  // Fetches what comes next into a stage that the whole warp has left; part: of its chunk, if whole.
  __device__ __forceinline__ void fetch(int into, int part) {
    constexpr std::uint32_t all = stage_bytes<Layout, Plan>;
    if constexpr (whole) {
      if (part == 0) ahead = feed.blocks != 0 || feed.next_unit(params, groups, second_walk);
      if (part == whole_stages<Plan> - 1) feed.blocks = 0;
      if (ahead && ptx::elected_lane()) {
        ptx::mbarrier_arrive_expecting(full + into, all);
        ptx::bulk_copy_once_to_shared(ring + into * all, feed.from + part * all, all, full + into);
      }
    } else {
      if (feed.blocks == 0 && !feed.next_unit(params, groups, second_walk)) return;
      fetch_stage(into, static_cast<std::uint32_t>(feed.take_stage() * granule_block_bytes<Layout>));
    }
  }
  __device__ __forceinline__ void fetch_stage(int into, std::uint32_t bytes) {
    if (ptx::elected_lane()) {
      ptx::mbarrier_arrive_expecting(full + into, bytes);
      ptx::bulk_copy_once_to_shared(ring + into * stage_bytes<Layout, Plan>, feed.from, bytes, full + into);
    }
    feed.from += bytes;
  }
  // The ring's next stage.
  __device__ __forceinline__ void turn() {
    stage = stage + 1 < stages ? stage + 1 : 0;
    if (stage == 0) full_phase ^= 1;
  }

  __device__ __forceinline__ void fill_ring() {
#pragma unroll
    for (int into = 0; into < stages; ++into) {
      if (whole || into >= ordered) fetch(into, into);
    }
    __syncwarp();  // products need all lanes at once
  }
  // The same for the first unit's own stages; rehearsal: a few bytes in place of each.
  __device__ __forceinline__ void order_first(bool rehearsal) {
    constexpr std::uint32_t few_bytes = 16, all = stage_bytes<Layout, Plan>;
    ahead = feed.walk.left > 0;
    if constexpr (whole) {
      const std::uint32_t bytes = rehearsal ? few_bytes : all;
      if (ahead && ptx::elected_lane()) {
#pragma unroll
        for (int into = 0; into < stages; ++into) {
          ptx::mbarrier_arrive_expecting(full + into, bytes);
          ptx::bulk_copy_once_to_shared(ring + into * all, feed.from + into * all, bytes, full + into);
        }
      }
    } else {
      ordered = 0;
#pragma unroll
      for (int into = 0; into < stages; ++into) {
        if (!ahead || (!rehearsal && feed.blocks == 0)) break;
        const std::uint32_t bytes =
            static_cast<std::uint32_t>(feed.take_stage() * granule_block_bytes<Layout>);
        fetch_stage(into, rehearsal ? few_bytes : bytes);
        ++ordered;
      }
    }
    __syncwarp();  // products need all lanes at once
  }
  // Leaves the ring as it was before a rehearsal.
  __device__ __forceinline__ void await_first() {
    if (!ahead) return;
#pragma unroll
    for (int into = 0; into < stages; ++into) ptx::mbarrier_wait(full + into, full_phase);
    full_phase ^= 1;
  }

  // The sums of a chunk of whole_blocks, from zero.
  __device__ __forceinline__ void multiply_whole(float (&chunk_sums)[4], const Bf16* inputs) {
    chunk_sums[0] = chunk_sums[1] = chunk_sums[2] = chunk_sums[3] = 0;
    Inputs next = load_inputs(inputs);
    const int scales_at = granule_code_bytes + granule_lane_scales<Layout>(lane);
#pragma unroll
    for (int part = 0; part < whole_stages<Plan>; ++part) {
      const std::uint8_t* const at = ring + stage * stage_bytes<Layout, Plan>;
      ptx::mbarrier_wait(full + stage, full_phase);
      multiply_stage<Layout, stage_blocks>(chunk_sums, at + lane * 16, at + scales_at,
                                           inputs + part * stage_blocks * granule_k, next,
                                           part + 1 < whole_stages<Plan>);
      __syncwarp();  // all lanes have read the stage, which one of them is about to have overwritten
      fetch(stage, (part + stages) % whole_stages<Plan>);
      __syncwarp();  // the next products need all lanes at once
      turn();
    }
  }

  // A chunk's sums from zero, in the ring's next stages.
  __device__ __forceinline__ void multiply_chunk(float (&chunk_sums)[4], const Bf16* inputs,
                                                 const KChunk& chunk) {
    chunk_sums[0] = chunk_sums[1] = chunk_sums[2] = chunk_sums[3] = 0;
    if (chunk.blocks == 0) return;
    Inputs next = load_inputs(inputs);
    const int scales_at = granule_code_bytes + granule_lane_scales<Layout>(lane);
    int left = chunk.blocks, longer = chunk.longer;
#pragma unroll 1
    do {
      const int count = chunk.stage + (longer > 0 ? 1 : 0);
      const std::uint8_t* const at = ring + stage * stage_bytes<Layout, Plan>;
      ptx::mbarrier_wait(full + stage, full_phase);
      --longer;
      left -= count;
      multiply_stage_of<Layout, stage_blocks>(count, chunk_sums, at + lane * 16, at + scales_at, inputs, next,
                                              left > 0);
      __syncwarp();  // all lanes have read the stage, which one of them is about to have overwritten
      fetch(stage, 0);
      __syncwarp();  // the next products need all lanes at once
      turn();
      inputs += count * granule_k;
    } while (left > 0);
  }

  // By the warp of the first chunk: the other chunks' sums in order, then bias and store.
  __device__ __forceinline__ void finish_unit(int second) {
    unfinished.any = false;
    const DecodeProduct<Layout>& product = params.products[second];
    ptx::mbarrier_wait(posted + own_place, posted_phase);
    posted_phase ^= 1;
    float4 total = unfinished.first;
#pragma unroll
    for (int chunk = 1; chunk < team_warps; ++chunk) {
      const float4 more = sums[(own_place * place_sums + chunk - 1) * 32];
      total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
    }
    const float even_bias = __uint_as_float(unfinished.bias << 16),
                odd_bias = __uint_as_float(unfinished.bias & 0xffff0000u);
    const PairFactors factors = product.factor.of(unfinished.expert);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = lane % 4 * 2 + half;
      if (column >= unfinished.tokens) break;
      finish(params, second, groups.slots[unfinished.first_slot + column], unfinished.row,
             __fmul_rn(half == 0 ? total.x : total.y, factors.even) + even_bias,
             __fmul_rn(half == 0 ? total.z : total.w, factors.odd) + odd_bias);
    }
    __syncwarp();  // the next products need all lanes at once
  }

  // A product's units. What a granule lacks is done a unit later, when the other warps will have posted. The
  // grid meets between the products, when a warp knows all of its first unit of the second that is not h.
  __device__ __forceinline__ void run(int second, DecodeWalk<teams>& walk) {
    const DecodeProduct<Layout>& product = params.products[second];
    const int g = lane / 4, t = lane % 4;
    int expert = 0, begin = 0, end = 0;      // of its slots
    const Bf16* inputs = nullptr;            // of this lane's column
    int known_active = -1, known_pass = -1;  // that inputs are of
    bool to_meet = second != 0;
#pragma unroll 1
    while (true) {
      const bool any = walk.left > 0 && (!whole || feed.second == second);
      const int chunk = walk.chunk;
      int row = 0, first_block = 0, blocks = 0;
      std::uint32_t bias = 0;  // fetched early
      bool untouched = false;
      if (any) {
        int pass;
        row = walk.granule(pass) * granule_rows + 2 * g;
        first_block = whole ? chunk * whole_blocks : product.chunks.chunk[chunk].begin;
        blocks = whole ? whole_blocks : product.chunks.chunk[chunk].blocks;
        if (walk.active != known_active || pass != known_pass) {
          expert = groups.experts[walk.active];
          begin = groups.begin[walk.active] + pass * tile_tokens;
          end = groups.begin[walk.active + 1];
          // A column past the last token repeats it: its sums are dropped.
          const int slot = groups.slots[min(begin + g, end - 1)];
          inputs = product.inputs +
                   static_cast<std::size_t>(row_of_slot(slot, product.of_slots_a_row)) *
                       static_cast<std::size_t>(product.input_stride) +
                   t * 16;
          known_active = walk.active;
          known_pass = pass;
          untouched = g < end - begin;
        }
        if (chunk == 0 && product.bias != nullptr) {
          bias = *reinterpret_cast<const std::uint32_t*>(
              product.bias + static_cast<std::size_t>(expert) * static_cast<std::size_t>(product.rows) +
              static_cast<std::size_t>(row));
        }
      }
      if (to_meet) meet_experts_grid(params.arrived, params.stuck);
      to_meet = false;
      if (!any) break;
      const Bf16* const chunk_inputs = inputs + first_block * granule_k;
      // All that the lane will read of the chunk is under way before the first of it is waited for.
      if (untouched) {
        if constexpr (whole) {
#pragma unroll
          for (int block = 0; block < whole_blocks; ++block)
            ptx::touch_sector(nobodys, chunk_inputs + block * granule_k);
        } else {
          for (int block = 0; block < blocks; ++block)
            ptx::touch_sector(nobodys, chunk_inputs + block * granule_k);
        }
      }
      float chunk_sums[4];
      if constexpr (whole) {
        multiply_whole(chunk_sums, chunk_inputs);
      } else {
        multiply_chunk(chunk_sums, chunk_inputs, product.chunks.chunk[chunk]);
      }
      const float4 own = make_float4(chunk_sums[0], chunk_sums[1], chunk_sums[2], chunk_sums[3]);
      if (unfinished.any) finish_unit(second);
      if (chunk == 0) {
        unfinished = {true, own, begin, end - begin, row, expert, bias};
      } else {
        // The place is free: who read it three units ago did so before posting to the next unit's, and both
        // that write now have waited for what was posted there or read it themselves.
        sums[(place * place_sums + chunk - 1) * 32] = own;
        ptx::mbarrier_arrive(posted + place);  // each lane for its own sums
      }
      place = place + 1 < places ? place + 1 : 0;
      if constexpr (!whole) walk.next(groups, product);  // the feed's has gone on, if whole
    }
    if (unfinished.any) finish_unit(second);
  }
};

// Threads that registers are shared out to: of four teams as of six, so that theirs leave room beside them.
template <class Layout, class Plan>
constexpr int sharing_threads = std::max(BlockOf<Layout, Plan>::threads, 6 * team_warps * 32);

template <class Layout, class Plan>
__global__ void __launch_bounds__(sharing_threads<Layout, Plan>, 1)
    sm90_moe_decode(const __grid_constant__ DecodeParams<Layout> params) {
  using Block = BlockOf<Layout, Plan>;
  constexpr bool whole = Plan::whole, few = Plan::few;
  std::uint8_t* const shared = ptx::dynamic_shared();
  float4* const sums = reinterpret_cast<float4*>(shared + Block::sums_at);
  auto& barriers = *reinterpret_cast<Barriers<Plan::teams>*>(shared + Block::barriers_at);
  std::uint32_t* const nobodys = reinterpret_cast<std::uint32_t*>(shared + Block::nobodys_at);
  const ExpertGroups groups = expert_groups_at(shared + Block::groups_at, params.slots, params.experts);
  const int warp = ptx::warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int team = warp / team_warps, chunk = warp % team_warps;
  if (lane == 0) {
    for (std::uint64_t& full : barriers.full[warp]) ptx::mbarrier_init(&full, 1);
    if (chunk == 0) {
      for (std::uint64_t& posted : barriers.posted[team]) ptx::mbarrier_init(&posted, place_sums * 32);
    }
    ptx::fence_mbarrier_init();
  }
  if (!params.settles_rows) ptx::grid_launch_dependents();
  Worker<Layout, Plan> worker{.params = params,
                              .groups = groups,
                              .ring = shared + warp * stages * stage_bytes<Layout, Plan>,
                              .full = barriers.full[warp],
                              .posted = barriers.posted[team],
                              .sums = sums + team * places * place_sums * 32 + lane,
                              .nobodys = nobodys + threadIdx.x,
                              .lane = lane,
                              .own_place = chunk == 0 ? 0 : team_warps - chunk,
                              .second_walk = {},
                              .feed = {}};
  DecodeWalk<Plan::teams> walk;
  // All is done once on made-up choices while the kernel before this one still runs, with a few bytes in
  // place of a stage: a kernel's instructions and constants come from memory too, and nothing else happens
  // until they have. So both times must be the same code.
#pragma unroll 1
  for (int rehearsal = 1; rehearsal >= 0; --rehearsal) {
    if constexpr (!few) __syncthreads();  // nobody reads the made-up tables any more
    if (!rehearsal) {
      ptx::grid_dependency_wait();
      if (params.settles_rows) ptx::grid_launch_dependents();
    }
    const SlotChoices choices{rehearsal ? nullptr : params.expert_ids, params.taken, params.experts};
    if constexpr (few) {
      // Each warp finds its first unit by itself. What else is to be known is found while its bytes come.
      const LaneGroups lanes = group_lanes(lane < params.slots ? choices.expert_of(lane) : -1);
      walk = {.chunk = chunk};
      const int expert = walk.enter(lanes, params.products[0].granules, params.of_block, team);
      worker.feed = {.walk = walk, .second = 0, .from = nullptr, .blocks = 0, .stage = 0, .longer = 0};
      if (walk.left > 0) worker.feed.point(params, expert);
      worker.order_first(rehearsal != 0);
      worker.second_walk.enter(lanes, params.products[1].granules, params.of_block, team);
      if (warp == 0) write_groups(groups, lanes);
      __syncthreads();  // the tables are there; all have initialised their barriers
    } else {
      group_slots(groups, choices, rehearsal ? min(params.slots, few_slots) : params.slots);
      walk = {.chunk = chunk};
      walk.enter(groups, params.products[0].granules, params.of_block, team);
      worker.feed = {.walk = walk, .second = 0, .from = nullptr, .blocks = 0, .stage = 0, .longer = 0};
      if (walk.left > 0) worker.feed.point(params, groups.experts[walk.active]);
      worker.order_first(rehearsal != 0);
      worker.second_walk.enter(groups, params.products[1].granules, params.of_block, team);
    }
    if (rehearsal) worker.await_first();
  }
  // Not of an own unit alone, unless whole: what follows the first may be of the second product.
  if (!whole || !worker.ahead) worker.fill_ring();
#pragma unroll 1
  for (int second = 0; second < 2; ++second) {
    if constexpr (!whole) {
      if (second) {
        const int next_chunk = walk.chunk;
        walk = worker.second_walk;
        walk.chunk = next_chunk;
      }
    }
    worker.run(second, whole ? worker.feed.walk : walk);
  }
  take_products(params);
}

template <class Layout>
struct Choice {
  void (*kernel)(DecodeParams<Layout>);
  int threads, fixed_bytes, stage_blocks;
  SharedShare share;
};
template <class Layout, class Plan>
constexpr Choice<Layout> choice_of(SharedShare share) {
  return {sm90_moe_decode<Layout, Plan>, BlockOf<Layout, Plan>::threads, BlockOf<Layout, Plan>::groups_at,
          Plan::stage_blocks, share};
}

template <class Granules>
bool has_whole_chunks(const MoeCudaWeightsOf<Granules>& weights) {
  constexpr int all_blocks = granule_k_chunks * whole_blocks;
  return weights.gate_up.shape.blocks() == all_blocks && weights.down.shape.blocks() == all_blocks;
}

// One token's granules leave a third of eight teams idle in their last round; of many tokens eight teams hide
// more latency. In a step of gpt-oss-120b six are 6 % faster with 8 sequences (32 slots), eight 3 % with 32,
// and those gain 9 % with 128 from the larger first-level cache, though they begin later for it. Up to four
// tokens, which wait for what passes between multiprocessors, leave more room to it in memory's queues:
// stages of three blocks make 0.5 % there, and from 8 tokens on, which count instructions, 2 % less. Where a
// block has at most four granules of the first product, four teams leave the registers that a block of the
// launch behind needs, as a shared expert's.
template <class Layout>
Choice<Layout> choose_kernel(bool has_whole_chunks, int tokens, int slots, int granules_of_block) {
  if (!has_whole_chunks) {
    if (slots <= few_slots && granules_of_block <= FewGranulesOfAnyShapePlan::teams)
      return choice_of<Layout, FewGranulesOfAnyShapePlan>(share_of(tokens));
    return slots > few_slots ? choice_of<Layout, MoreTokensOfAnyShapePlan>(shared_164_kb)
                             : choice_of<Layout, FewTokensOfAnyShapePlan>(share_of(tokens));
  }
  if (slots > few_slots) return choice_of<Layout, MoreTokensPlan>(shared_164_kb);
  return slots <= few_slots / 2 ? choice_of<Layout, FewestTokensPlan>(share_of(tokens))
                                : choice_of<Layout, FewTokensPlan>(share_of(tokens));
}

// Of as many experts and slots as other kernels and launches have.
template <class Layout, class Plan>
WaitingGrid grid_of() {
  const Choice<Layout> choice = choice_of<Layout, Plan>(Plan::few ? share_of(1) : shared_164_kb);
  const int slots = Plan::few ? few_slots : moe_cuda_max_slots;
  return waiting_grid("sm90_moe_decode",
                      {.blocks = dim3(static_cast<unsigned>(processors_of_device())),
                       .threads = choice.threads,
                       .shared_bytes = static_cast<std::size_t>(
                           choice.fixed_bytes + expert_groups_bytes(slots, moe_many_most_experts)),
                       .share = choice.share},
                      choice.kernel);
}
template <class Layout>
void add_grids(WaitingGrids& grids) {
  grids.insert(grids.end(),
               {grid_of<Layout, FewestTokensPlan>(), grid_of<Layout, FewTokensPlan>(),
                grid_of<Layout, MoreTokensPlan>(), grid_of<Layout, FewTokensOfAnyShapePlan>(),
                grid_of<Layout, FewGranulesOfAnyShapePlan>(), grid_of<Layout, MoreTokensOfAnyShapePlan>()});
}

template <class Layout>
void launch(const Choice<Layout>& choice, const DecodeParams<Layout>& params, int blocks,
            cudaStream_t stream) {
  const int bytes = choice.fixed_bytes + expert_groups_bytes(params.slots, params.experts);
  cuda_check(cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)),
                 .threads = choice.threads,
                 .shared_bytes = static_cast<std::size_t>(bytes),
                 .stream = stream,
                 .overlaps = true,
                 .share = choice.share},
                choice.kernel, params);
}

DecodePeers peers_of(const MoePeers& peers) {
  if (peers.room == nullptr) return {};
  return {*peers.room, places_of_others(*peers.room, peers.window), peers.window, peers.owners};
}

}  // namespace

WaitingGrids waiting_grids_of_moe_decode() {
  WaitingGrids grids;
  add_grids<Mxfp4Granules::Layout>(grids);
  add_grids<Nvfp4Granules::Layout>(grids);
  add_grids<Int4Granules::Layout>(grids);
  return grids;
}

template <class Granules>
Status moe_few_cuda(const MoeCudaWeightsOf<Granules>& weights, const MoeCudaArgs& args, cudaStream_t stream) {
  using Layout = typename Granules::Layout;
  NIBBLE_RETURN_IF_ERROR(check_moe_shapes(weights, args));
  const int processors = processors_of_device();
  const int blocks = args.blocks > 0 && args.blocks < processors ? args.blocks : processors;
  if (takes_one_row(weights, args) && !has_whole_chunks(weights)) {
    moe_row_cuda(weights, args, blocks, stream);
    if (args.out != nullptr) add_experts_cuda(args, weights.down.shape.rows, stream);
    return {};
  }
  const int all_slots = args.tokens * args.top_k, experts = weights.gate_up.experts;
  const int granules =
      (std::min(all_slots, experts) * weights.gate_up.shape.granules() + blocks - 1) / blocks;
  const bool some = !has_whole_chunks(weights) && takes_some(weights, args, granules);
  const Choice<Layout> choice =
      choose_kernel<Layout>(has_whole_chunks(weights), args.tokens, all_slots, granules);
  const int stage_blocks = some ? moe_some_stage_blocks : choice.stage_blocks;
  const auto product = [stage_blocks](const Granules& matrix, const Bf16* bias, const Bf16* inputs,
                                      int stride,
                                      int slots) {  // of a row
    return DecodeProduct<Layout>{.weights = matrix.data,
                                 .bias = bias,
                                 .inputs = inputs,
                                 .input_stride = stride,
                                 .of_slots_a_row = of_slots_a_row(slots),
                                 .rows = matrix.shape.rows,
                                 .granules = matrix.shape.granules(),
                                 .granule_bytes = matrix.shape.granule_bytes(),
                                 .chunks = k_chunks(matrix.shape, stage_blocks),
                                 .factor = matrix.factor()};
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
    const DecodeParams<Layout> params{
        .products = {product(weights.gate_up, weights.gate_up_bias, x, args.x_stride, args.top_k),
                     product(weights.down, weights.down_bias, args.workspace.activations,
                             weights.down.shape.padded_cols(), 1)},
        .slots = tokens * args.top_k,
        .experts = weights.gate_up.experts,
        .taken = taken_of(args.share, weights.gate_up.experts),
        .expert_ids = args.expert_ids + slot,
        .activations = args.workspace.activations,
        .out = args.workspace.products,
        .arrived = args.workspace.arrived,
        .stuck = args.workspace.stuck,
        .of_block = static_cast<std::uint32_t>((1ull << 32) / static_cast<unsigned>(blocks)),
        .unit = weights.unit,
        .settles_rows = args.settles_rows,
        .peers = peers_of(args.peers)};
    if (some)
      moe_some_cuda(params, blocks, stream);
    else
      launch(choice, params, blocks, stream);
    if (args.out == nullptr) continue;
    MoeCudaArgs part = args;
    part.tokens = tokens;
    part.expert_ids += slot;
    part.expert_weights += slot;
    part.out += static_cast<std::size_t>(first) * static_cast<std::size_t>(weights.down.shape.rows);
    add_experts_cuda(part, weights.down.shape.rows, stream);
  }
  return {};
}

template Status moe_few_cuda(const MoeMxfp4CudaWeights&, const MoeCudaArgs&, cudaStream_t);
template Status moe_few_cuda(const MoeNvfp4CudaWeights&, const MoeCudaArgs&, cudaStream_t);
template Status moe_few_cuda(const MoeInt4CudaWeights&, const MoeCudaArgs&, cudaStream_t);

}  // namespace nibble
