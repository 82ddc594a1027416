// A block has a place of some group at a time. Of its own it sends the row, of another one's it takes what
// comes.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/waiting_grids.cuh"
#include "ops/peer_gather/cuda/dispatch_rows.cuh"
#include "ops/peer_gather/cuda/peer_window.cuh"
#include "ops/ptx/grid.cuh"

namespace nibble {
namespace {

constexpr int place_threads = 256;
constexpr int place_blocks = 4;  // of a multiprocessor

// Of a group's place in the window whose turn it is: the row's vectors, then its ids.
__device__ __forceinline__ uint4* window_of(const DispatchRowsCudaArgs& args, const DispatchWindows& windows,
                                            const PeerRoom& room, int unit, std::uint32_t step) {
  const std::size_t window = static_cast<std::size_t>(step & 1) *
                             static_cast<std::size_t>(room.ranks / args.sharers * dispatch_few_places);
  return reinterpret_cast<uint4*>(windows.data + (window + static_cast<std::size_t>(unit)) *
                                                     dispatch_place_bytes(args.row_bytes));
}

// An id as a word that says itself that it has come: -1 is what it must not be.
__device__ __forceinline__ std::uint32_t word_of_id(std::int32_t id) {
  return static_cast<std::uint32_t>(id + 1);
}
__device__ __forceinline__ std::int32_t take_id(const PeerRoom& room, std::uint32_t* place, int peer,
                                                std::uint32_t step) {
  std::uint32_t word = ptx::load_peer(place);
  RankWait wait(room);
  while (word == absent_bits && !wait.is_over(peer, step)) word = ptx::load_peer(place);
  *place = absent_bits;
  return static_cast<std::int32_t>(word) - 1;
}

// Of a launch: what a place's block needs.
struct Few {
  const PeerRoom& room;
  const DispatchRowsCudaArgs& args;
  const DispatchWindows& windows;

  __device__ int words() const { return static_cast<int>(args.row_bytes / sizeof(uint4)); }

  // A row of this rank's group, to the ranks of others that want it, and its ids to all of them.
  __device__ void send(int row, uint4* window) const {
    const int thread = static_cast<int>(threadIdx.x), place = room.rank / args.sharers * args.places + row;
    const unsigned sharers = sharers_of(args, room.rank);
    std::uint32_t* const id_words = reinterpret_cast<std::uint32_t*>(window + words());
    std::int32_t* const ids = ids_of(args, place);
    const bool is_row = row < args.count;
    const bool sends = row % args.sharers == room.rank % args.sharers;
    if (thread < args.top_k) {
      const std::int32_t id = is_row ? __ldcg(ids + thread) : -1;
      if (!is_row) ids[thread] = id;
      for (int peer = 0; sends && peer < room.ranks; ++peer) {
        if ((sharers >> peer & 1u) == 0)
          ptx::store_peer(at_peer(room, peer, id_words + thread), word_of_id(id));
      }
    }
    if (!is_row || !sends) return;
    const unsigned wanted_by = ranks_of(args, room.ranks, place, ids) & ~sharers;
    for (int word = thread; word < words(); word += place_threads) {
      const uint4 value = but_absent(__ldcg(row_of(args, place) + word));
      for (int i = 1; i < room.ranks; ++i) {
        const int peer = (room.rank + i) % room.ranks;
        if ((wanted_by >> peer & 1u) != 0) ptx::store_peer(at_peer(room, peer, window + word), value);
      }
    }
  }

  // Another group's ids, and its row if this rank multiplies for it.
  __device__ void take_place(int group, int row, uint4* window, std::uint32_t step) const {
    const int thread = static_cast<int>(threadIdx.x), place = group * args.places + row;
    const int rank = group * args.sharers + row % args.sharers;  // which sends it
    std::uint32_t* const id_words = reinterpret_cast<std::uint32_t*>(window + words());
    std::int32_t* const ids = ids_of(args, place);
    if (thread < args.top_k) ids[thread] = take_id(room, id_words + thread, rank, step);
    __syncthreads();  // the block's ids are there
    if ((ranks_of(args, room.ranks, place, ids) >> room.rank & 1u) == 0) return;
    for (int word = thread; word < words(); word += place_threads)
      row_of(args, place)[word] = take(room, window + word, rank, step);
  }
};

__global__ void __launch_bounds__(place_threads, place_blocks)
    dispatch_few_rows(const __grid_constant__ PeerRoom room,
                      const __grid_constant__ DispatchRowsCudaArgs args,
                      const __grid_constant__ DispatchWindows windows) {
  ptx::grid_launch_dependents();
  ptx::grid_dependency_wait();
  const Few few{room, args, windows};
  // Own places are the first: a block has sent all that it sends before it waits for anything.
  const int groups = room.ranks / args.sharers, own = room.rank / args.sharers;
  for (int i = static_cast<int>(blockIdx.x); i < groups * args.places; i += static_cast<int>(gridDim.x)) {
    const int group = (own + i / args.places) % groups, row = i % args.places,
              unit = group * dispatch_few_places + row;
    const std::uint32_t step = __ldcg(windows.steps + unit);
    uint4* const window = window_of(args, windows, room, unit, step);
    if (group == own) {
      few.send(row, window);
    } else {
      few.take_place(group, row, window, step);
    }
    __syncthreads();  // all have read the step
    if (threadIdx.x == 0) windows.steps[unit] = step + 1;
  }
}

int most_place_blocks() { return place_blocks * processors_of_device(); }

}  // namespace

WaitingGrids waiting_grids_of_dispatch() {
  return {waiting_grid("dispatch_few_rows",
                       {.blocks = dim3(static_cast<unsigned>(most_place_blocks())), .threads = place_threads},
                       dispatch_few_rows)};
}

Status dispatch_few_rows_cuda(const PeerRoom& room, const DispatchRowsCudaArgs& args,
                              const DispatchWindows& windows, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_dispatch(args));
  if (args.places > dispatch_few_places) {
    return invalid_argument("up to " + std::to_string(dispatch_few_places) +
                            " rows of a rank travel through windows, not " + std::to_string(args.places));
  }
  const int blocks = std::min(room.ranks / args.sharers * args.places, most_place_blocks());
  launch_kernel({.blocks = dim3(static_cast<unsigned>(blocks)),
                 .threads = place_threads,
                 .stream = stream,
                 .overlaps = true,
                 .share = shared_196_kb},
                dispatch_few_rows, room, args, windows);
  return {};
}

}  // namespace nibble
