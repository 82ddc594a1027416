// Few rows, through windows: a thread has one vector of each rank's, sends its own and takes the others'.
#include <algorithm>
#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/peer_gather/cuda/peer_window.cuh"
#include "ops/peer_gather/cuda/slot_owners.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int few_threads = 256, blocks_a_group = gather_blocks_a_group;
constexpr int products_blocks = 8;  // of a multiprocessor

int most_products_blocks() { return products_blocks * processors_of_device(); }

__global__ void __launch_bounds__(few_threads)
    gather_few_tokens_kernel(const __grid_constant__ PeerRoom room,
                             const __grid_constant__ GatherTokensCudaArgs args) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  // A group's vectors of a rank lie together; of each eight one is each token's. Threads are dealt to those
  // of the group's tokens, neighbours to a vector's.
  const int words = args.columns, all_words = words * room.ranks;
  const int unit = static_cast<int>(blockIdx.x), group = unit / blocks_a_group;
  const int tokens = min(token_group, args.tokens - group * token_group);
  const std::uint32_t step = __ldcg(args.steps + unit);
  for (int i = unit % blocks_a_group * few_threads + static_cast<int>(threadIdx.x);
       i < words / token_group * tokens; i += blocks_a_group * few_threads) {
    const int word = i / tokens * token_group + i % tokens;
    const int window_group = static_cast<int>(step & 1) * (gather_few_tokens / token_group) + group;
    uint4* const window = reinterpret_cast<uint4*>(args.windows) +
                          static_cast<std::size_t>(window_group) * static_cast<std::size_t>(all_words);
    uint4* const to = reinterpret_cast<uint4*>(args.to) +
                      static_cast<std::size_t>(group) * static_cast<std::size_t>(all_words);
    const uint4 own = __ldcg(reinterpret_cast<const uint4*>(args.from) +
                             static_cast<std::size_t>(group) * static_cast<std::size_t>(words) + word);
    const int place = room.rank * words + word;
    for (int next = 1; next < room.ranks; ++next)
      ptx::store_peer(at_peer(room, (room.rank + next) % room.ranks, window + place), but_absent(own));
    to[place] = own;
    for (int next = 1; next < room.ranks; ++next) {
      const int peer = (room.rank + next) % room.ranks, of_peer = peer * words + word;
      to[of_peer] = take(room, window + of_peer, peer, step);
    }
  }
  __syncthreads();  // all have read the step
  if (threadIdx.x == 0) args.steps[unit] = step + 1;
}

// A piece of a slot's row is a unit. A block sends all that it has before it waits for anything, and all
// blocks have places, so what one waits for is on its way whatever order they begin in.
__global__ void __launch_bounds__(few_threads, products_blocks)
    gather_few_products_kernel(const __grid_constant__ PeerRoom room,
                               const __grid_constant__ GatherProductsCudaArgs args, int pieces) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const int words = args.hidden / 4, units = args.slots * pieces;
  // Runs run(owner, at) for this thread's vector of each of the block's units, if somebody has it.
  const auto for_each_vector = [&](const auto& run) {
    for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
      const int slot = unit / pieces, word = unit % pieces * few_threads + static_cast<int>(threadIdx.x);
      const int owner = owner_of(args.owners, room.ranks, slot, __ldcg(args.expert_ids + slot));
      if (owner >= 0 && word < words)
        run(owner, static_cast<std::size_t>(slot) * static_cast<std::size_t>(words) + word);
    }
  };
  // Which ranks add what lies there, a bit each, and where it comes through their windows.
  const std::size_t a_group = static_cast<std::size_t>(args.slots_a_group) * static_cast<std::size_t>(words);
  const auto adders = [&args, a_group](std::size_t at) {
    return a_group == 0 ? ~0u : ((1u << args.sharers) - 1) << static_cast<int>(at / a_group) * args.sharers;
  };
  const auto in_window = [a_group](std::size_t at) { return a_group > 0 ? at % a_group : at; };
  uint4 *const products = reinterpret_cast<uint4*>(args.products), *const window =
                                                                       reinterpret_cast<uint4*>(args.window);
  for_each_vector([&](int owner, std::size_t at) {
    if (owner != room.rank) return;
    const unsigned wanted_by = adders(at) & ~(1u << room.rank);
    if (wanted_by == 0) return;
    const uint4 own = but_absent(__ldcg(products + at));
    for (int i = 1; i < room.ranks; ++i) {
      const int peer = (room.rank + i) % room.ranks;
      if ((wanted_by >> peer & 1u) != 0) ptx::store_peer(at_peer(room, peer, window + in_window(at)), own);
    }
  });
  for_each_vector([&](int owner, std::size_t at) {
    if (owner != room.rank && (adders(at) >> room.rank & 1u) != 0)
      products[at] = take(room, window + in_window(at), owner, 0);
  });
}

}  // namespace

WaitingGrids waiting_grids_of_gathers() {
  return {
      waiting_grid("gather_few_tokens",
                   {.blocks = dim3(static_cast<unsigned>(gather_token_steps)), .threads = few_threads},
                   gather_few_tokens_kernel),
      waiting_grid("gather_few_products",
                   {.blocks = dim3(static_cast<unsigned>(most_products_blocks())), .threads = few_threads},
                   gather_few_products_kernel)};
}

Status gather_tokens_cuda(const PeerRoom& room, const GatherTokensCudaArgs& args, cudaStream_t stream) {
  if (args.tokens > gather_few_tokens || args.columns % dense_k != 0) {
    return invalid_argument("ranks gather up to " + std::to_string(gather_few_tokens) +
                            " tokens of whole blocks of 64 columns through windows, not " +
                            std::to_string(args.tokens) + " of " + std::to_string(args.columns));
  }
  const int groups = (args.tokens + token_group - 1) / token_group;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(groups * blocks_a_group)),
                 .threads = few_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = share_of(args.tokens)},
                gather_few_tokens_kernel, room, args);
  return {};
}

Status gather_few_products_cuda(const PeerRoom& room, const GatherProductsCudaArgs& args,
                                cudaStream_t stream) {
  const int pieces = (args.hidden / 4 + few_threads - 1) / few_threads;
  launch_kernel({.blocks = dim3(static_cast<unsigned>(std::min(args.slots * pieces, most_products_blocks()))),
                 .threads = few_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = args.slots <= 16 ? shared_228_kb : shared_196_kb},
                gather_few_products_kernel, room, args, pieces);
  return {};
}

}  // namespace nibble
